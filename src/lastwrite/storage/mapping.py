"""Memory-mapped files as context managers."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from lastwrite.errors import CommitConflict
from lastwrite.model.columns import ByteArray
from lastwrite.storage.files import to_log_error


@contextmanager
def mapped(path: str, size_bytes: int | None = None) -> Iterator[ByteArray]:
    """A read-only memory map of a file. A view that outlives the context keeps the mapping open.

    Raises:
        CommitConflict: the file vanished, or does not have ``size_bytes``.
        LogError: the file cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(handle).st_size
            if size_bytes is not None and size != size_bytes:
                raise CommitConflict(
                    f"another program changed the file during the command: it has {size} "
                    f"bytes, not {size_bytes}",
                    path=path,
                    remedy="stop the program that changes the file, then run the command again",
                )
            view = mmap.mmap(handle, size, prot=mmap.PROT_READ) if size else None
        finally:
            os.close(handle)
    except OSError as error:
        raise to_log_error(error, path, "read the file") from error
    if view is None:
        yield np.empty(0, np.uint8)
        return
    try:
        yield np.frombuffer(view, np.uint8)
    finally:
        with suppress(BufferError):
            view.close()


@contextmanager
def mapped_for_writing(path: str) -> Iterator[ByteArray]:
    """A writable memory map of a file.

    Changes are written to the file. The file's size stays the same.
    """
    handle = os.open(path, os.O_RDWR)
    try:
        view = mmap.mmap(handle, 0)
    finally:
        os.close(handle)
    try:
        yield np.frombuffer(view, np.uint8)
    finally:
        with suppress(BufferError):
            view.close()
