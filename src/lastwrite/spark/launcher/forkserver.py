"""A process that loads in advance all that workers need, and from which workers are forked.

A worker needs NumPy, Numba, the modules of Lastwrite and the compiled kernels. Loading them takes
half a second of a core. Without a fork server, each worker would load them, after the JVM has
started. The fork server loads them once, while the JVM starts, and workers share its pages.

    driver ── starts ──► fork server ── forks ──► Spark's daemon (pyspark.daemon) ─ forks ─► workers
       │                                                         ▲ passes on its streams and
       └──── starts ──► JVM ── starts ──► launcher.attach ───────┘ its environment

The fork server is a separate program, or a fork of the driver. It is a fork if the driver is the
command line on Linux, which needs the same modules. The fork server ends when the driver ends, and
a daemon ends when the JVM ends. Both detect this by a pipe that closes, even after a crash.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from lastwrite.encoding.kernel_cache import report_compiling
from lastwrite.spark.launcher.attach import ADDRESS
from lastwrite.spark.launcher.lifeline import Lifeline
from lastwrite.storage.machine import available_bytes, core_count, raise_oom_score

# The system whose kernels the fork server loads, because most rounds are on its logs. If the
# kernels are not compiled, they are compiled only for work on these logs. Workers load the kernels
# of other systems when they need them.
USUAL = "kafka"
WARM_UP = f"lastwrite.{USUAL}.warm_up"
# compiler processes: one begins with the first part, one with the last, and a third would only wait
_COMPILERS = 2
_COMPILER_BYTES = 512 << 20  # free memory for each compiler process, with a reserve for the JVM
_BACKLOG = 16


class ForkServer:
    """The driver's handle of the fork server.

    ``spawn`` or ``fork`` starts the server process, ``close`` ends it.
    """

    def __init__(self, folder: Path) -> None:
        """Create the handle.

        ``folder`` is a folder of this run for which ``can_listen`` has returned true.
        """
        self.address = str(folder / "forkserver")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(_BACKLOG)
        self._spawned: subprocess.Popen[bytes] | None = None
        self._forked = 0
        self._compilers: list[int] = []
        self._life = Lifeline()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variable by which ``spark.launcher.attach`` finds this server."""
        return {ADDRESS: self.address}

    def spawn(self, system: str | None) -> None:
        """Start the fork server as a separate program. ``system`` is as in ``load``."""
        with self._listener as listener:
            self._spawned = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno()), system or ""],
                stdin=self._life.far_end,
                stdout=subprocess.DEVNULL,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},
            )
        self._life.hand_over()

    def fork(
        self,
        system: Callable[[], str | None],
        note: Callable[[str], None] | None = None,
        warm_up: str = WARM_UP,
    ) -> None:
        """Load all modules in this process, which also needs them, and fork the server from it.

        The arguments are passed to ``load``.
        """
        load(system, note, warm_up, self._compilers)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # Python warns because NumPy has started threads. They are idle, so the fork is safe.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._forked = os.fork()
        if self._forked == 0:
            _serve_forked(self._listener, self._life.far_end)
        self._life.hand_over()
        self._listener.close()

    def close(self) -> None:
        """End the server process. The daemons that it forked end with their JVM.

        May be called again after Ctrl-C has interrupted a call.
        """
        self._listener.close()
        # The ids are cleared before the kill, because after the wait another process may get the
        # same id. If an interrupt prevents the kill, the process ends when its pipe closes.
        spawned, self._spawned = self._spawned, None
        forked, self._forked = self._forked, 0
        if spawned is not None:
            spawned.kill()
            spawned.wait()
        if forked:
            _kill(forked)
        while self._compilers:
            _kill(self._compilers.pop())
        self._life.close()


def can_listen(folder: Path) -> bool:
    """Whether the paths of sockets in ``folder`` are short enough on every system.

    Sockets to which Spark gives a random name are included.
    """
    return hasattr(socket, "AF_UNIX") and len(os.fsencode(folder)) + 48 < 104


def can_fork() -> bool:
    """Whether a fork of this process works: macOS frameworks and threads prevent it."""
    return sys.platform == "linux" and threading.active_count() == 1


def load(
    system: Callable[[], str | None],
    note: Callable[[str], None] | None = None,
    warm_up: str = WARM_UP,
    compilers: list[int] | None = None,
) -> None:
    """Import what the stages need, and load the usual kernels.

    Modules and kernels stay loaded until the process ends. If kernels are not compiled, ``system``
    is called to find out whose logs are processed. ``note`` is called before they are compiled, and
    while they are. ``warm_up`` names the module with the kernels. ``compilers`` receives the ids of
    the compiling processes, which the caller kills at the end.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # a garbage collection would scan objects that are never freed
    # an error is ignored here, because a task will raise and report it
    with suppress(Exception):
        kernels = import_module(warm_up)
        is_compiled = kernels.is_compiled()
        is_needed = is_compiled or system() == USUAL
        if is_needed and not is_compiled and can_fork():
            if note is not None:
                report_compiling(note)
            _compile_first(kernels, note, [] if compilers is None else compilers)
        _load_all(kernels if is_needed else None)
    gc.freeze()  # a collection in a worker would copy every page that it visits
    if was_enabled:
        gc.enable()


def _compile_first(kernels: Any, note: Callable[[str], None] | None, compilers: list[int]) -> None:
    """Compile the kernels in child processes before they are loaded.

    Two processes need half the time of one: one begins with the first part, the other with the
    last, and a kernel is compiled by one of them (``kernel_cache.only_compiler``). The processes
    then compile the kernels that are needed later, while this process continues.

    The compiler's memory is freed when a child ends. Otherwise every worker would inherit it.
    """
    reports, reporting = socket.socketpair()
    count = min(_COMPILERS, core_count(), max(1, available_bytes() // _COMPILER_BYTES))
    for number in range(count):
        child = os.fork()
        if child == 0:
            _compile(kernels, reporting, is_last_first=number > 0)
        compilers.append(child)
    reporting.close()
    begin = time.monotonic()
    done: set[int] = set()
    with reports:
        while len(done) < len(kernels.PARTS) and (report := reports.recv(1)):
            if note is not None and report[0] not in done:
                seconds = time.monotonic() - begin
                note(f"compiled {len(done) + 1} of {len(kernels.PARTS)} parts in {seconds:.0f} s")
            done.add(report[0])


def _compile(kernels: Any, reporting: socket.socket, *, is_last_first: bool) -> NoReturn:
    """Compile in this forked copy, and send the number of each finished part."""
    try:
        with Path(os.devnull).open("r+b") as nothing:  # replaces the driver's streams
            for number in range(3):
                os.dup2(nothing.fileno(), number)
        _close_all_but(reporting.fileno())
        order = -1 if is_last_first else 1
        for number, part in list(enumerate(kernels.PARTS))[::order]:
            # an error is ignored here, because a task will raise and report it
            with suppress(Exception):
                part()
            with suppress(OSError):  # ignored: the driver has received all parts, and reads no more
                reporting.send(bytes([number]))
        for part in kernels.LATER[::order]:
            with suppress(Exception):
                part()
    finally:
        os._exit(0)


def _load_all(kernels: Any = None) -> None:
    import pyspark.worker  # noqa: F401

    if kernels is not None:
        kernels.load_kernels()


def _kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def _close_all_but(kept: int) -> None:
    """Close the driver's files, except the standard streams and ``kept``.

    A copy of the pipe by which a JVM detects the driver's end must not stay open here.
    """
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != kept:
            with suppress(OSError):
                os.close(int(name))


# ---------------------------------------------------------------------- the process itself


def main() -> None:
    raise_oom_score()
    listener = socket.socket(fileno=int(sys.argv[1]))
    load(lambda: sys.argv[2])
    _serve(listener)


def _serve_forked(listener: socket.socket, life: int) -> None:
    """Run the fork server in the forked copy, after closing the driver's open files."""
    try:
        os.setsid()  # a new session, so that Ctrl-C reaches only the driver
        raise_oom_score()
        os.dup2(life, 0)
        os.dup2(life, 1)  # replaces standard output, which the server does not use
        _close_all_but(listener.fileno())
        _serve(listener)
    finally:
        os._exit(0)


def _serve(listener: socket.socket) -> None:
    """Fork a daemon for each process that attaches, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # let the system remove ended daemons
    with selectors.DefaultSelector() as waiting:
        waiting.register(0, selectors.EVENT_READ)
        waiting.register(listener, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in waiting.select()]
            if 0 in ready:
                return
            attached, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _become_daemon(attached)
            attached.close()


def _become_daemon(attached: socket.socket) -> None:
    """Continue as the daemon of the process that attached.

    ``attached`` is its connection. The connection closes when the daemon ends. The attached process
    then ends, too.
    """
    status = 1
    try:
        told, streams = _received(attached)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environb.clear()
        os.environb.update(
            {
                name.encode("latin-1"): value.encode("latin-1")
                for name, value in told["environment"].items()
            }
        )
        os.chdir(told["folder"])
        sys.argv = told["arguments"]
        for place in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
            if place and place not in sys.path:
                sys.path.insert(1, place)
        # Create new stream objects, because the driver may have replaced its own.
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
        from pyspark.daemon import manager

        manager()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        os._exit(status)


def _received(attached: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Receive the environment and the standard streams of ``spark.launcher.attach``."""
    data, streams, _, _ = socket.recv_fds(attached, 4, 3)
    size = 4 + int.from_bytes(data, "big")
    while len(data) < size:
        more = attached.recv(size - len(data))
        if not more:
            raise EOFError("the process that attached has ended")
        data += more
    told: dict[str, Any] = json.loads(data[4:])
    return told, streams


if __name__ == "__main__":
    main()
