"""A folder of files for others, which is there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator

from lastwrite.errors import InvalidConfig
from lastwrite.storage import files


@contextlib.contextmanager
def new_folder(target: str) -> Iterator[str]:
    """A folder to write into, which becomes ``target`` when the context ends well, and else goes.

    Raises:
        InvalidConfig: ``target`` is there and not empty.
        LogError: it cannot be written.
    """
    target = os.path.abspath(target)
    if os.path.lexists(target) and not (os.path.isdir(target) and not os.listdir(target)):
        raise InvalidConfig(
            "there is something already", path=target, remedy="give a folder that is not there yet"
        )
    staged = f"{target}.lastwrite-{uuid.uuid4().hex[:12]}"
    files.make_folder(staged)
    try:
        yield staged
        files.fsync_dir(staged)
        files.rename(staged, target)
        files.fsync_dir(os.path.dirname(target))
    finally:
        shutil.rmtree(staged, ignore_errors=True)
