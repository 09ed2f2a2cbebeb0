"""Kernels that were compiled from other sources are not used."""

from __future__ import annotations

from pathlib import Path

import lastwrite
from lastwrite.pipeline.kernel_cache import drop_stale_kernels, kernel_folders


def test_a_changed_source_drops_what_was_compiled_in_every_folder(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        (folder / "__pycache__").mkdir(parents=True)
        (folder / "code.py").write_text("x = 1")
    assert not drop_stale_kernels(folders)
    compiled = [
        folder / "__pycache__" / f"code.kernel.{kind}"
        for folder in folders
        for kind in ("nbi", "1.nbc")
    ]
    for file in compiled:
        file.write_bytes(b"machine code")
    assert not drop_stale_kernels(folders)
    assert all(file.exists() for file in compiled)
    (folders[0] / "code.py").write_text("x = 2")
    assert drop_stale_kernels(folders)
    assert not any(file.exists() for file in compiled)
    assert not drop_stale_kernels(folders)


def test_folders_that_cannot_be_written_are_left_alone(tmp_path: Path) -> None:
    assert not drop_stale_kernels([tmp_path / "not there"])


def test_a_source_beside_the_folders_counts_as_well(tmp_path: Path) -> None:
    folder, beside = tmp_path / "kernels", tmp_path / "intrinsics.py"
    (folder / "__pycache__").mkdir(parents=True)
    beside.write_text("x = 1")
    drop_stale_kernels([folder], [beside])
    compiled = folder / "__pycache__" / "code.kernel.nbi"
    compiled.write_bytes(b"machine code")
    beside.write_text("x = 2")
    assert drop_stale_kernels([folder], [beside])
    assert not compiled.exists()


def test_every_folder_with_kernels_is_watched() -> None:
    package = Path(lastwrite.__file__).parent
    found = {source.parent for source in package.rglob("*.py") if "@njit" in source.read_text()}
    assert found <= set(kernel_folders())
