"""A process that has loaded what a worker needs before Spark asks for one, and forks it from there.

A worker needs NumPy, Numba, our modules and the compiled kernels: half a second of a core for each
worker, after the JVM has come up, since only then does Spark start any. Here it is one half second,
spent while the JVM comes up, and workers share those pages.

    driver ── starts ──► fork server ── forks ──► Spark's daemon (pyspark.daemon) ── forks ──►
    workers
       └──── starts ──► JVM ── starts ──► lastwrite.spark.launcher.attach ──┘ passes on its streams
       and environment

The fork server is a program of its own, or a fork of the driver where the driver needs to load the
same things anyway and is ours alone: the command line on Linux. It ends with the driver, a daemon
ends with the JVM, whichever way they end: each holds the end of a pipe.
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
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from lastwrite.encoding.kernel_cache import say_compiling
from lastwrite.spark.launcher.attach import ADDRESS
from lastwrite.spark.launcher.lifeline import Lifeline
from lastwrite.storage.machine import go_first_for_memory

# The system of most rounds: its kernels are loaded where they are compiled, and compiled first
# where it is its logs that the work is on. Rounds of others compile and load what they need.
USUAL = "kafka"
_WARM_UP = f"lastwrite.{USUAL}.warm_up"
_BACKLOG = 16


class ForkServer:
    """The driver's end of it: ``spawn`` or ``fork`` starts the process, ``close`` ends it."""

    def __init__(self, folder: Path) -> None:
        """``folder``: of this run; its path must be short enough for a socket (``can_listen``)."""
        self.address = str(folder / "forkserver")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.address)
        self._listener.listen(_BACKLOG)
        self._spawned: subprocess.Popen[bytes] | None = None
        self._forked = 0
        self._life = Lifeline()

    @property
    def environment(self) -> dict[str, str]:
        """What the JVM must be told for ``lastwrite.spark.launcher.attach`` to find the way."""
        return {ADDRESS: self.address}

    def spawn(self, system: str | None) -> None:
        """Start it as a program of its own, which loads everything by itself; ``system``: as for
        ``load``.
        """
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
        self, system: Callable[[], str | None], say: Callable[[str], None] | None = None
    ) -> None:
        """Load everything here, which this process needs too, and start it as a copy; ``system``
        and ``say``: as for ``load``.
        """
        load(system, say)
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            # NumPy's idle threads are known to bear it
            warnings.simplefilter("ignore", DeprecationWarning)
            self._forked = os.fork()
        if self._forked == 0:
            _serve_forked(self._listener, self._life.far_end)
        self._life.hand_over()
        self._listener.close()

    def close(self) -> None:
        """End it; daemons that it forked end with their JVM. Where an interrupt ends this, it is
        called again.
        """
        self._listener.close()
        # first: a number that was awaited is another process' soon; what is missed ends by its pipe
        spawned, self._spawned = self._spawned, None
        forked, self._forked = self._forked, 0
        if spawned is not None:
            spawned.kill()
            spawned.wait()
        if forked:
            os.kill(forked, signal.SIGKILL)
            os.waitpid(forked, 0)
        self._life.close()


def can_listen(folder: Path) -> bool:
    """Whether a socket's name in ``folder`` is short enough for every system, Spark's own drawn
    names included.
    """
    return hasattr(socket, "AF_UNIX") and len(os.fsencode(folder)) + 48 < 104


def can_fork() -> bool:
    """Whether a copy of this process would be whole: macOS' frameworks do not bear it, nor do
    threads.
    """
    return sys.platform == "linux" and threading.active_count() == 1


def load(system: Callable[[], str | None], say: Callable[[str], None] | None = None) -> None:
    """Import what the stages import, and load the kernels of the usual path, for as long as the
    process lives. Where they are not compiled, ``system`` is asked whose logs the work is on, and
    ``say`` is told if they are compiled first.
    """
    was_enabled = gc.isenabled()
    gc.disable()  # it would look again and again through what stays
    with suppress(Exception):  # whatever it is, the work will meet it and say so
        is_compiled = import_module(_WARM_UP).is_compiled()
        is_needed = is_compiled or system() == USUAL
        if is_needed and not is_compiled and can_fork():
            if say is not None:
                say_compiling(say)
            _compile_first()
        _load_all(with_kernels=is_needed)
    gc.freeze()  # a collection in a worker would copy every page that it looks at
    if was_enabled:
        gc.enable()


def _compile_first() -> None:
    """Fill Numba's cache from a process that ends: the compiler's memory would stay, here and in
    every worker.
    """
    child = os.fork()
    if child == 0:
        try:
            import_module(_WARM_UP).compile_kernels()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _load_all(*, with_kernels: bool) -> None:
    import pyspark.worker  # noqa: F401

    if with_kernels:
        import_module(_WARM_UP).load_kernels()


# ---------------------------------------------------------------------- the process itself


def main() -> None:
    go_first_for_memory()
    listener = socket.socket(fileno=int(sys.argv[1]))
    load(lambda: sys.argv[2])
    _serve(listener)


def _serve_forked(listener: socket.socket, life: int) -> None:
    """Be the fork server, and nothing else of what the driver was."""
    try:
        os.setsid()  # Ctrl-C is the driver's affair
        go_first_for_memory()
        os.dup2(life, 0)
        os.dup2(life, 1)  # nothing is written there
        kept = listener.fileno()
        # of a JVM's input, too: its other end must see the driver's end
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 2 and int(name) != kept:
                with suppress(OSError):
                    os.close(int(name))
        _serve(listener)
    finally:
        os._exit(0)


def _serve(listener: socket.socket) -> None:
    """Fork a daemon for each that attaches, until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a daemon ended
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
    """Take the place of the process that attached. ``attached`` stays open: its end tells that we
    ended.
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
        # the driver may have put others there
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
    """What ``lastwrite.spark.launcher.attach`` tells, and its three streams."""
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
