"""What Spark starts as its Python daemon on this machine: hands itself over to the fork server, and
waits.

    python -m lastwrite.spark.launcher.attach pyspark.worker

Spark starts a Python program, reads from its standard output where it listens, and has workers
forked by it. Ours passes its environment and its standard streams on to a process that has loaded
all a worker needs (``lastwrite.spark.launcher.forkserver``), which forks a daemon of Spark's own
behind them. Where there is no fork server, as on another machine, this process is that daemon
itself.

Nothing is imported here that a start can do without: it lies on the way of the first task.
"""

from __future__ import annotations

import json
import os
import socket
import sys

# the environment variable that tells where the fork server listens
ADDRESS = "LASTWRITE_FORKSERVER"


def main() -> None:
    """Let the fork server be Spark's daemon until it ends, or be it."""
    try:
        with socket.socket(socket.AF_UNIX) as fork_server:
            fork_server.connect(os.environ[ADDRESS])
            told = json.dumps(
                {
                    "environment": {
                        name.decode("latin-1"): text.decode("latin-1")
                        for name, text in os.environb.items()
                    },
                    "arguments": sys.argv,
                    "folder": os.getcwd(),
                }
            ).encode()
            socket.send_fds(fork_server, [len(told).to_bytes(4, "big")], [0, 1, 2])
            fork_server.sendall(told)
            fork_server.recv(1)  # nothing ever comes: the daemon has ended
    except (OSError, KeyError):
        from importlib import import_module

        import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
