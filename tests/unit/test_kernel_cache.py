"""Tests that kernels compiled from other sources are not used."""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import lastwrite
from lastwrite.encoding.kernel_cache import COMPILING, drop_stale_kernels, kernel_folders


def test_changed_source_deletes_compiled_kernels_in_every_folder(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        (folder / "__pycache__").mkdir(parents=True)
        (folder / "code.py").write_text("x = 1")
    assert not drop_stale_kernels(folders)
    compiled = [
        folder / "__pycache__" / f"code.kernel.{kind}"
        for folder in folders
        for kind in ("nbi", "1.nbc", "code")
    ]
    for file in compiled:
        file.write_bytes(b"machine code")
    assert not drop_stale_kernels(folders)
    assert all(file.exists() for file in compiled)
    (folders[0] / "code.py").write_text("x = 2")
    assert drop_stale_kernels(folders)
    assert not any(file.exists() for file in compiled)
    assert not drop_stale_kernels(folders)


def test_unwritable_folders_are_skipped(tmp_path: Path) -> None:
    assert not drop_stale_kernels([tmp_path / "not there"])


def test_compilation_is_reported_once(tmp_path: Path) -> None:
    told = (
        "from lastwrite.encoding.kernel_cache import report_if_compiling\n"
        "def say(text): print(text)\n"
        "report_if_compiling(say, 'lastwrite.encoding.checksum:crc32')\n"
        "report_if_compiling(say, 'lastwrite.encoding.checksum:crc32')\n"
        "from lastwrite.encoding.checksum import crc32\n"
        "import numpy as np\n"
        "crc32(np.zeros(8, np.uint8), 0, 8)\n"
        "report_if_compiling(say, 'lastwrite.encoding.checksum:crc32')\n"
    )
    command = [sys.executable, "-c", told]
    cache = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in (f"{COMPILING}\n", ""):
        assert subprocess.check_output(command, env=cache, text=True) == expected


def test_every_folder_that_kernels_depend_on_is_watched() -> None:
    package = Path(lastwrite.__file__).parent
    kernels = [
        source
        for source in package.rglob("*.py")
        if "njit" in source.read_text() or "@intrinsic" in source.read_text()
    ]
    watched = set(kernel_folders())
    assert {source.parent for source in kernels} <= watched
    for source in kernels:
        for taken in re.findall(
            r"^from (lastwrite[\w.]*) import", source.read_text(), re.MULTILINE
        ):
            place = package.joinpath(*taken.split(".")[1:])
            assert taken == "lastwrite.errors" or watched & {place, place.parent}, (
                f"{source}: {taken}"
            )


def test_second_process_waits_while_a_kernel_is_compiled() -> None:
    """Only for the same kernel: otherwise two processes could not compile two at the same time."""
    held = (
        "import sys\n"
        "from lastwrite.encoding.kernel_cache import only_compiler\n"
        "with only_compiler('lastwrite.encoding.checksum', sys.argv[1]):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with contextlib.ExitStack() as open_processes:

        def started(name: str) -> subprocess.Popen[str]:
            process = open_processes.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", held, name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            open_processes.callback(process.kill)
            return process

        first = started("kernel-1")
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        second, other = started("kernel-1"), started("kernel-2")
        assert second.stdout is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert not select.select([second.stdout], [], [], 0.3)[0]
        first.communicate()
        assert second.stdout.readline() == "held\n"
