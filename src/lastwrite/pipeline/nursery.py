"""A process that has loaded what a worker needs before Spark asks for one, and forks it from there.

A worker needs NumPy, Numba, our modules and the compiled kernels: half a second of a core for each worker, after the
JVM has come up, since only then does Spark start any. Here it is one half second, spent while the JVM comes up, and
workers share those pages.

    driver ── starts ──► nursery ── forks ──► Spark's daemon (pyspark.daemon) ── forks ──► workers
       └──── starts ──► JVM ── starts ──► lastwrite.attach ──┘ passes on its streams and environment

The nursery ends with the driver, a daemon with the JVM, whichever way they end: each holds the end of a pipe.
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
from contextlib import suppress
from pathlib import Path

from lastwrite.attach import ADDRESS

_BACKLOG = 16


class Nursery:
    """The driver's end of it: starts the process, and ends it."""

    def __init__(self, folder: Path) -> None:
        """``folder``: of this run, with room for a socket; its path must be short (``can_listen``)."""
        self.address = str(folder / "nursery")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen(_BACKLOG)
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(listener.fileno())], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, pass_fds=(listener.fileno(),), start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},
            )  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        """What the JVM must be told for ``lastwrite.attach`` to find the way."""
        return {ADDRESS: self.address}

    def close(self) -> None:
        """End it; daemons that it forked end with their JVM."""
        self._process.kill()
        with self._process:  # closes the pipe, waits
            pass


def can_listen(folder: Path) -> bool:
    """Whether a socket's name in ``folder`` is short enough for every system, Spark's own drawn names included."""
    return hasattr(socket, "AF_UNIX") and len(os.fsencode(folder)) + 48 < 104


# ---------------------------------------------------------------------- the process itself


def serve(listener: socket.socket) -> None:
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
    """Take the place of the process that attached. ``attached`` stays open: its end tells that we ended."""
    status = 1
    try:
        head, streams, _, _ = socket.recv_fds(attached, 4, 3)
        while len(head) < 4:
            head += attached.recv(4 - len(head))
        size = int.from_bytes(head, "big")
        text = b""
        while len(text) < size:
            text += attached.recv(size - len(text)) or _cut_off()
        told = json.loads(text)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environb.clear()
        os.environb.update(
            {name.encode("latin-1"): value.encode("latin-1") for name, value in told["environment"].items()}
        )
        os.chdir(told["folder"])
        sys.argv = told["arguments"]
        for place in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
            if place and place not in sys.path:
                sys.path.insert(1, place)
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
        from pyspark.daemon import manager

        manager()
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    finally:
        os._exit(status)


def _cut_off() -> bytes:
    raise EOFError("the process that attached has ended")


def preload() -> None:
    """Import what the stages import, and load the kernels of the usual path by running them on next to nothing."""
    import numpy as np
    import pyspark.worker  # noqa: F401

    import lastwrite.pipeline.exchange
    import lastwrite.pipeline.kafka  # noqa: F401
    from lastwrite.compaction import election, verdict
    from lastwrite.formats.fingerprint import SECRET_WORDS, secret_from
    from lastwrite.formats.kafka.chunk import KafkaFormat
    from lastwrite.model.columns import BATCH
    from lastwrite.model.policy import Policy

    form = KafkaFormat(1 << 20)
    table, data = np.empty(0, dtype=BATCH), np.empty(64, dtype=np.uint8)
    states, entries = np.empty(1, dtype=np.uint8), np.empty((1, 2), dtype=np.uint64)
    form.split(data, 0, 0, 0)
    secret = secret_from(bytes(8 * SECRET_WORDS))
    for run in form.opened(data, table):
        form.walk(run, table, secret, 0, states, entries, 0)
    actions, horizons = np.empty(0, np.uint8), np.empty(0, np.int64)
    counts = np.zeros(len(verdict.Verdict), np.int64)
    verdict.judge(table, states[:0], Policy(now_ms=0, tombstone_retention_ms=0), 0, states, actions, horizons, counts)
    election.partition(entries, 0, 1, entries, np.empty(2, np.uint32))
    form.rebuild(data, table, actions, horizons, states, data, np.empty((1, 5), np.int64))


def main() -> None:
    listener = socket.socket(fileno=int(sys.argv[1]))
    with suppress(Exception):  # whatever it is, the worker will meet it and say so
        preload()
    gc.collect()
    gc.freeze()  # a collection in a worker would copy every page that it looks at
    serve(listener)


if __name__ == "__main__":
    main()
