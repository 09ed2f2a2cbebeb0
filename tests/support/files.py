"""What a folder holds, for tests that say what may change of it."""

from __future__ import annotations

from pathlib import Path


def contents(folder: Path, but: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The bytes of every file below ``folder``, by its path from there; ``but``: of all whose names
    do not end so.
    """
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith(but)
    }
