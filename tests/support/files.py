"""What a folder holds, for tests that say what may change of it."""

from __future__ import annotations

from pathlib import Path


def contents(folder: Path, but: tuple[str, ...] = ()) -> dict[str, bytes]:
    """The bytes of every file below ``folder``, by its path from there; ``but`` those paths."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    return {name: data for name, data in found.items() if name not in but}
