"""Tests of the fuzzer: a short run, its coverage, and that it finds planted faults."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import lastwrite
from lastwrite.encoding.kernel import Kernel
from lastwrite.errors import CorruptLog
from tests.fuzz.covered import NOT_READERS, imported, readers
from tests.fuzz.run import Run, targets_of
from tests.fuzz.target import Target, reader
from tests.support.edge import Edge

PACKAGE = str(Path(lastwrite.__file__).parent.parent)


@pytest.fixture(scope="module")
def targets() -> list[Target]:
    return targets_of("all")


def test_every_reader_of_bytes_is_covered(targets: list[Target]) -> None:
    known = {name for target in targets for name in target.covers}
    missing = [name for name in readers() if name not in known and name not in NOT_READERS]
    assert not missing, (
        "name them in a target of tests/fuzz, or in tests/fuzz/covered.py with the reason"
    )
    assert not [name for name in NOT_READERS if name not in readers() or name in known]


@pytest.mark.long
def test_targets_run_the_functions_that_they_cover(targets: list[Target]) -> None:
    """Only Python functions are checked. They call the kernels."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            module = frame.f_code.co_filename[len(PACKAGE) + 1 : -3].replace("/", ".")
            called.add(f"{module}:{frame.f_code.co_qualname}")

    for target in targets:
        if target.share < 0.2:
            continue  # targets for whole rounds and files, which use the same readers
        rng = random.Random(target.name)
        sys.setprofile(note)
        try:
            for _ in range(60):
                data, context = target.make(rng)
                target.check(data, context, rng)
        finally:
            sys.setprofile(None)
    idle = []
    for target in targets:
        for name in target.covers:
            function = name.partition(":")[2]
            if target.share < 0.2 or name not in readers():
                continue
            module = imported(name)
            found = getattr(sys.modules[module], function.partition(".")[0])
            full = f"{module}:{function}."
            if not isinstance(found, Kernel) and not any(
                f"{each}.".startswith(full) for each in called
            ):
                idle.append(f"{target.name}: {name}")
    assert not idle


def test_short_run_finds_nothing(tmp_path: Path, targets: list[Target]) -> None:
    run = Run("all", 20_261_122, tmp_path, targets=targets)
    run.through(0, 6000)
    assert run.inputs == 6000 and not run.findings, run.findings


# ---------------------------------------------------------------------- what counts as a finding


def planted(read: object, samples: tuple[bytes, ...] = (b"abcdefgh",)) -> list[Target]:
    return [reader("planted", read, samples, [])]  # type: ignore[arg-type]


def crash(data: bytes) -> None:
    if len(data) == 5:
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGSEGV)


def beyond(data: bytes) -> None:
    """A read of one byte beyond the input."""
    faulthandler.disable()
    edge = Edge()
    found = edge.put(data)
    longer = np.lib.stride_tricks.as_strided(found, (len(data) + 1,), (1,))
    assert len(data) != 5 or longer[len(data)] >= 0


def refuse(data: bytes) -> None:
    raise CorruptLog("all is wrong", 0)


def index(data: bytes) -> int:
    return data[4]


def greed(data: bytes) -> bytes:
    return bytes(1 << 33)


@pytest.mark.parametrize(
    ("read", "kind"),
    [
        (crash, "crash: SIGSEGV"),
        (beyond, "crash: SIG"),
        (index, "IndexError"),
        (greed, "MemoryError"),
    ],
)
def test_planted_fault_is_found_and_saved(tmp_path: Path, read: object, kind: str) -> None:
    run = Run("all", 3, tmp_path, targets=planted(read))
    run._warm_up = lambda: None  # type: ignore[method-assign] - in this process
    run.through(0, 300 if read is not greed else 3)
    assert run.inputs == (300 if read is not greed else 3), "a crash ends the run"
    assert run.findings and all(kind in found for found in run.findings)
    saved = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert len(saved) == len(run.findings) <= 3
    for one in saved:
        target, rng = run.drawn(one["number"])
        assert target.make(rng)[0].hex() == one["input"], "the same seed makes the same input"


def test_endless_reader_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spin(data: bytes) -> None:
        while len(data) == 5:
            pass

    monkeypatch.setattr("tests.fuzz.run._HUNG_SECONDS", 0.2)
    run = Run("all", 3, tmp_path, targets=planted(spin))
    run._warm_up = lambda: None  # type: ignore[method-assign]
    run.through(0, 100)
    assert run.inputs == 100 and run.findings and "hang" in run.findings[0]


def test_log_errors_are_valid_results(tmp_path: Path) -> None:
    run = Run("all", 3, tmp_path, targets=planted(refuse))
    run.through(0, 100, jobs=2)
    assert run.inputs == 100 and not run.findings and run.outcomes == {"planted: refused": 100}
