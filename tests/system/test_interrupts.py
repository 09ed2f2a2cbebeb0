"""Ctrl-C at any stage: one sentence, one status, the log as it was, and nothing of the run left."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lastwrite.cli import interrupts_kept
from tests.system.test_killed_starts import mark as mark
from tests.system.test_killed_starts import started, wait_until_gone, write_log

pytestmark = pytest.mark.spark
SLOWLY = (
    "--config",
    "log.cleaner.io.max.bytes.per.second=2000",
    "--config",
    "min.cleanable.dirty.ratio=0",
)


@pytest.mark.parametrize(
    "moment", [0.0, 0.3, 0.6, 0.9, 1.2, "starting Spark", "scan: ", "rewrite: "]
)
def test_an_interrupt(tmp_path: Path, mark: str, moment: float | str) -> None:
    root = write_log(tmp_path / "log")
    before = contents(root)
    command = [
        sys.executable,
        "-m",
        "lastwrite.cli",
        "compact",
        str(root),
        "--topic",
        "t",
        *(() if moment == "rewrite: " else SLOWLY),
    ]
    if (
        moment == "rewrite: "
    ):  # scan and rewriting share the throttle: so slow that the one that comes later is met
        command += ["--config", "log.cleaner.io.max.bytes.per.second=60000", *SLOWLY[2:]]
    run = start(command)
    assert run.stderr is not None
    said: list[str] = []
    if isinstance(moment, str):
        for line in run.stderr:
            said.append(line)
            if line.startswith(moment):
                break
    else:
        while not catches(run.pid, signal.SIGALRM):  # the interpreter itself is still starting
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.01)
        time.sleep(moment)
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does
    killer = threading.Timer(60, run.kill)
    killer.start()
    said += run.stderr.readlines()
    assert run.wait() == 1, said
    killer.cancel()
    assert said[-1] == "lastwrite: interrupted; what was not finished was left as it was\n"
    assert "memory" not in "".join(said) and "Traceback" not in "".join(said)
    wait_until_gone(mark, 60)
    assert started(mark) == []
    assert contents(root) == before
    assert list((tmp_path / "t").iterdir()) == []


@pytest.fixture
def usual_handler() -> Iterator[None]:
    """A shell starts what it runs in the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_handler")
def test_an_interrupt_that_meets_a_callback_of_c_code_counts() -> None:
    """Python drops an exception there; Numba calls back whenever it loads a kernel."""

    @ctypes.CFUNCTYPE(None)
    def callback() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        callback()
        time.sleep(60)


@pytest.mark.usefixtures("usual_handler")
def test_an_interrupt_that_meets_an_import_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module of Cython drops an exception while it is imported."""
    (tmp_path / "drops_exceptions.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(1000): pass\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        importlib.import_module("drops_exceptions")
        time.sleep(60)


@pytest.mark.usefixtures("usual_handler")
def test_an_interrupt_that_meets_logging_leaves_no_lock() -> None:
    """Another thread would wait for it for ever, as the one that starts Spark did."""
    lock = threading.RLock()
    text = (
        "lock.acquire()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "for _ in range(1000): pass\n"
        "lock.release()\n"
    )
    code = compile(text, logging.__file__, "exec")
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        exec(code, {"lock": lock, "os": os, "signal": signal})
        time.sleep(60)
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(lock.acquire(timeout=60)))
    other.start()
    other.join()
    assert taken == [True]


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start it as a terminal would, in the foreground."""
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal."""
    caught = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigCgt" in line
    )
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def contents(root: Path) -> dict[Path, bytes]:
    return {
        file: file.read_bytes()
        for file in root.rglob("*")
        if file.is_file() and file.name != ".lock"
    }
