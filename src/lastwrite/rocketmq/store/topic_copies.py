"""Copies the configuration that a broker needs to start on a copy of compaction logs.

Source: RocketMQ 5.5.0; docs/formats/rocketmq-compaction.md, "A store rewritten offline".
"""

from __future__ import annotations

import os

from lastwrite.rocketmq.format import names
from lastwrite.storage import files
from lastwrite.storage.files import to_log_error

# Files with positions of broker services in queues that a copy does not have. With these files, a
# broker on the copy would skip delayed messages up to the old positions.
OF_OTHER_QUEUES = (
    names.DELAY_OFFSETS,
    names.TIMER_CHECKPOINT,
    "timermetrics",
    "transactionMetrics",
)


def copy_config(source: str, target: str) -> None:
    """Copy the files of the folder ``config`` of ``source`` to the store ``target``.

    Existing files are kept. Files with the positions of delayed messages are not copied, because
    the copy has no such messages.

    Raises:
        LogError: a file cannot be read or written.
    """
    folder, place = os.path.join(source, "config"), os.path.join(target, "config")
    try:
        found = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise to_log_error(error, folder, "list the folder") from error
    files.make_folder(place, files.owner_of(folder).as_far_as_may())
    for name in found:
        if name.removesuffix(names.BACKUP_SUFFIX) in OF_OTHER_QUEUES:
            continue
        path, copy = os.path.join(folder, name), os.path.join(place, name)
        if os.path.isfile(path) and not os.path.lexists(copy):
            files.copy(path, copy)
    files.fsync_dir(place)
