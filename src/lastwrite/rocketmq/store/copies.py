"""What a copy of a store's compaction logs needs besides them, so that a broker can be started on
it.

Source: RocketMQ 5.5.0; docs/formats/rocketmq-compaction.md, "A store rewritten offline".
"""

from __future__ import annotations

import os

from lastwrite.storage import files
from lastwrite.storage.files import to_log_error


def copy_config(source: str, target: str) -> None:
    """Give the store ``target`` the files of the folder ``config`` of ``source``, as far as it has
    none of that name.

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
        path, copy = os.path.join(folder, name), os.path.join(place, name)
        if os.path.isfile(path) and not os.path.lexists(copy):
            files.copy(path, copy)
    files.fsync_dir(place)
