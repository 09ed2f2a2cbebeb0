"""What a caller in Python meets before the first call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lastwrite
from bench.generate import write_log


def test_the_functions_are_listed() -> None:
    assert set(lastwrite.__all__) <= set(dir(lastwrite))
    shown = [name for name in dir(lastwrite) if not name.startswith("_")]
    assert shown == sorted(lastwrite.__all__)
    for name in lastwrite.__all__:
        assert getattr(lastwrite, name).__doc__, name


def test_the_package_runs_as_the_command() -> None:
    said = [
        subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        for command in (
            [sys.executable, "-m", "lastwrite"],
            [str(Path(sys.executable).with_name("lastwrite"))],
        )
    ]
    assert said[0] == said[1] == f"lastwrite {lastwrite.__version__}\n"


def test_a_generated_log_needs_segments_of_a_buffer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="segment_bytes is 1000"):
        write_log(tmp_path / "t-0", lambda first, end: None, 0, 10, 10, 1000)  # type: ignore
    assert not list((tmp_path / "t-0").glob("*.log"))
