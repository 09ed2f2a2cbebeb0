"""Tests of Ctrl-C at any stage: one error line, one exit status, an unchanged log, no leftovers."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.cli import deferred_interrupts
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.folders import single
from tests.support.pulsar.topics import put_ledger, topic_folder
from tests.system.test_killed_starts import mark as mark
from tests.system.test_killed_starts import started, wait_until_gone, write_log

pytestmark = pytest.mark.spark
CORPUS = Path(__file__).parents[1] / "corpus"
SLOWLY = (
    "--config",
    "log.cleaner.io.max.bytes.per.second=2000",
    "--config",
    "min.cleanable.dirty.ratio=0",
)
# this exchange has separate stages even for a small log
IN_STAGES = ("--conf", "spark.lastwrite.exchange=folder")


@pytest.mark.parametrize(
    "moment", [0.0, 0.3, 0.6, 0.9, 1.2, "starting Spark", "compact: ", "scan: ", "rewrite: "]
)
def test_interrupt_at_any_moment_leaves_the_log_unchanged(
    tmp_path: Path, mark: str, moment: float | str
) -> None:
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
    # Scan and rewrite share the throttle. It is so slow that the interrupt always meets the
    # rewrite.
    if moment == "rewrite: ":
        command += ["--config", "log.cleaner.io.max.bytes.per.second=60000", *SLOWLY[2:]]
    if moment in ("scan: ", "rewrite: "):
        command += IN_STAGES
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
    assert (
        said[-1]
        == "lastwrite: the command was interrupted; unfinished work was not committed [LW-107]\n"
    )
    assert "memory" not in "".join(said) and "Traceback" not in "".join(said)
    wait_until_gone(mark, 60)
    assert started(mark) == []
    assert contents(root) == before
    assert list((tmp_path / "t").iterdir()) == []


@pytest.fixture
def usual_handler() -> Iterator[None]:
    """The default handler. A shell starts background processes with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_handler")
def test_interrupt_during_a_c_callback_counts() -> None:
    """Python drops an exception that a C callback raises. Numba calls back whenever it loads a
    kernel.
    """

    @ctypes.CFUNCTYPE(None)
    def callback() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        callback()
        time.sleep(60)


@pytest.mark.usefixtures("usual_handler")
def test_interrupt_during_an_import_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Cython module drops an exception that is raised during its import."""
    (tmp_path / "drops_exceptions.py").write_text(
        "import os, signal\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    for _ in range(1000): pass\n"
        "except KeyboardInterrupt:\n"
        "    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        importlib.import_module("drops_exceptions")
        time.sleep(60)


@pytest.mark.usefixtures("usual_handler")
def test_interrupt_during_logging_leaves_no_lock() -> None:
    """A lock left by the interrupt would block the other threads that log."""
    lock = threading.RLock()
    text = (
        "lock.acquire()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "for _ in range(1000): pass\n"
        "lock.release()\n"
    )
    code = compile(text, logging.__file__, "exec")
    with pytest.raises(KeyboardInterrupt), deferred_interrupts():
        exec(code, {"lock": lock, "os": os, "signal": signal})
        time.sleep(60)
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(lock.acquire(timeout=60)))
    other.start()
    other.join()
    assert taken == [True]


def start(command: list[str]) -> subprocess.Popen[str]:
    """Start the command in the foreground, as a terminal does."""
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


# The program sends itself SIGINT before a file operation. The first argument is the operation's
# name, or its number with a trailing space.
AT_AN_OPERATION = """
import os, signal, sys
from lastwrite.cli import main
from lastwrite.storage import files

class Interrupted(files.FaultPoints):
    def reach(self, operation, path):
        self.passed += f"{operation} {os.path.basename(path)}".startswith(at)
        if self.passed == number and not self.point:
            self.point = number
            os.kill(os.getpid(), signal.SIGINT)

number, at = sys.argv[1].split(" ", 1) if sys.argv[1][0].isdigit() else (1, sys.argv[1])
number = int(number)
files.faults = Interrupted()
main(sys.argv[2:])
"""
NAMES = ("consumequeue", "compaction", "index")


def interrupted(at: str, *arguments: object) -> list[str]:
    """The standard error of a command that is interrupted before the operation ``at``."""
    run = start([sys.executable, "-c", AT_AN_OPERATION, at, *map(str, arguments)])
    assert run.stderr is not None
    said = run.stderr.read().splitlines()
    assert run.wait() == 1, said
    assert (
        said[-1]
        == "lastwrite: the command was interrupted; unfinished work was not committed [LW-107]"
    )
    return said[:-1]


@pytest.mark.parametrize(
    ("at", "is_new"),
    # The sync of new files is left out: a worker does it, and Ctrl-C never reaches only a worker.
    [("mkdir compaction.lastwrite", False), ("exchange compaction", False), ("unlink 0", True)],
)
def test_interrupted_rocketmq_round_is_complete_or_undone(
    tmp_path: Path, mark: str, at: str, is_new: bool
) -> None:
    store = tmp_path / "store"
    shutil.copytree(CORPUS / "rocketmq" / "5.5.0", store)
    (store / "abort.running").unlink()
    before = contents(store)
    said = interrupted(at, "compact", store, *SLOWLY[2:], *IN_STAGES)
    assert not any("contains only a part of" in line for line in said)
    assert (contents(store) != before) is is_new
    assert [path.name for path in store.iterdir() if ".lastwrite" in path.name] == []
    wait_until_gone(mark, 60)
    assert lastwrite.verify(str(store), spark=INLINE).exit_status == 0


@pytest.mark.parametrize(
    ("at", "is_new"), [("write ", False), ("rename compacted.json", False), ("unlink ", True)]
)
def test_interrupted_pulsar_round_is_complete_or_undone(
    tmp_path: Path, mark: str, at: str, is_new: bool
) -> None:
    archive = tmp_path / "archive"
    folder = Path(topic_folder(archive, "persistent://a/b/t"))
    put_ledger(folder, 1, [single("k", f"v{n}") for n in range(5)])
    lastwrite.compact(str(archive), spark=INLINE)
    put_ledger(folder, 2, [single("k", f"w{n}") for n in range(5)])
    before = without_surveys(archive)
    interrupted(at, "compact", archive)
    after = without_surveys(archive)
    assert (after != before) is is_new
    assert not any(".aside" in path.name for path in after)
    wait_until_gone(mark, 60)
    assert lastwrite.verify(str(archive), spark=INLINE).exit_status == 0


def without_surveys(archive: Path) -> dict[Path, bytes]:
    """The archive's files without surveys. A ledger's survey is valid whether or not the round
    ends.
    """
    return {path: data for path, data in contents(archive).items() if path.suffix != ".survey"}


@pytest.mark.parametrize(
    ("at", "trees"),
    [
        ("mkdir compaction.dispatched", ()),
        ("rename compaction", ()),
        ("rename index", ("compaction",)),
        ("rename consumequeue", ("compaction", "index")),
    ],
)
def test_interrupted_dispatch_names_the_finished_trees(
    tmp_path: Path, mark: str, at: str, trees: tuple[str, ...]
) -> None:
    store, whole = tmp_path / "store", tmp_path / "whole"
    shutil.copytree(CORPUS / "rocketmq" / "5.5.0", store)
    for path in (*(store / name for name in NAMES), store / "abort.running"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(store, whole)
    there = set(os.listdir(store))
    said = interrupted(at, "dispatch", store)
    told = (
        f"{store}: {', '.join(trees)} were installed before the failure; run the same command "
        "again to install the others"
    )
    assert [line for line in said if "were installed" in line] == ([told] if trees else [])
    assert set(os.listdir(store)) - there - {"lock"} == set(trees)
    for each in (store, whole):
        assert (
            lastwrite.dispatch(str(each), now_ms=1_790_000_000_000, spark=INLINE).exit_status == 0
        )
    made = [
        {path.relative_to(each): data for path, data in contents(each).items()}
        for each in (store, whole)
    ]
    assert len(made[0]) == len(made[1]) > 10
    wait_until_gone(mark, 60)


@pytest.mark.parametrize("at", ["mkdir a", "write fetched.json", "link ", "fsync folder shapes"])
def test_interrupted_fetch_names_the_command_that_completes_it(
    tmp_path: Path, mark: str, at: str
) -> None:
    archive = tmp_path / "archive"
    fetch = ("fetch", CORPUS / "pulsar" / "offloaded", "--to")
    said = interrupted(at, *fetch, archive)
    told = (
        f"{archive} contains only a part of the fetched topics; run the command again to "
        "complete it"
    )
    is_begun = archive.exists() and bool(os.listdir(archive))
    assert said == ([f"{told}, or delete the folder"] if is_begun else [])
    assert is_begun is (at != "mkdir a")
    assert list(archive.rglob("*.aside")) == []
    if is_begun:
        assert interrupted("fsync folder", *fetch, archive) == [told]
    for each in (archive, tmp_path / "other"):
        assert cli.run([str(each) for each in (*fetch, each)]) == 0
    names = [
        sorted(str(p.relative_to(top)) for p in top.rglob("*"))
        for top in (archive, tmp_path / "other")
    ]
    assert names[0] == names[1]
