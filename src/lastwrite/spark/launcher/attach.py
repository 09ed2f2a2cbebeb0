"""The program that Spark starts as its Python daemon on this machine; it delegates to the fork
server.

    python -m lastwrite.spark.launcher.attach pyspark.worker

Spark starts a Python program, reads the daemon's port from its standard output, and lets it fork
workers. This program passes its environment and its standard streams to the fork server
(``lastwrite.spark.launcher.forkserver``), which has loaded everything that a worker needs. The fork
server forks a Spark daemon that uses them. Without a fork server, as on another machine, this
process is that daemon itself.

Only necessary modules are imported here, because the first task waits for this program.
"""

from __future__ import annotations

import json
import os
import socket
import sys

# the environment variable with the fork server's address
ADDRESS = "LASTWRITE_FORKSERVER"


def main() -> None:
    """Run Spark's daemon in the fork server and wait for its end, or run the daemon here."""
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
            # wait for the daemon's end: it closes the connection and sends nothing
            fork_server.recv(1)
    except (OSError, KeyError):
        from importlib import import_module

        import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
