"""Reads the files of a folder and unpacks archives."""

from __future__ import annotations

import tarfile
from pathlib import Path


def contents(folder: Path, but: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The bytes of every file below ``folder`` by relative path, except the paths in ``but``."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {name: data for name, data in found.items() if name not in but}


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack a tar archive into ``folder``, and return the folder.

    Uses tarfile's ``data`` filter if Python has it: 3.11 has it from 3.11.4, Debian 12 has 3.11.2.
    """
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(folder, filter="data")
        else:
            packed.extractall(folder)
    return folder
