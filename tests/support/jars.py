"""What all real brokers of the tests need: a Java, jars from Maven, and free ports."""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from random import SystemRandom
from typing import TypeVar

COPY_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


T = TypeVar("T")


class Unavailable(Exception):
    """A real broker cannot run here. The message names what is missing."""


def need_java() -> None:
    """Check that there is a Java for a real broker.

    Raises:
        Unavailable: There is no Java 17 or newer on PATH.
    """
    java = shutil.which("java")
    if java is None:
        raise Unavailable("a real broker needs Java 17 or newer on PATH: none found")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < 17:
        raise Unavailable(f"a real broker needs Java 17 or newer; {java} says: {said.strip()}")


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock ``folder`` against other processes while it is filled.

    Of several workers of one test run, one fetches the files and the others find them.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch_jars(home: Path, what: str, pom: Path, marker: str, *properties: str) -> None:
    """Have Maven copy the jars of ``pom`` to ``home/lib``, unless the jar ``marker`` is there.

    The jars are copied to another folder, which is then renamed. An interrupted fetch therefore
    leaves no ``home/lib``.

    Raises:
        Unavailable: There is no Maven, or Maven failed. ``what`` names the jars in the message.
    """
    with alone(home):
        if (home / "lib" / marker).exists():
            return
        maven = shutil.which("mvn")
        if maven is None:
            raise Unavailable(f"no {what} in {home} and no mvn on PATH to fetch it")
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home, prefix="fetch-") as work:
            lib = Path(work) / "lib"
            done = subprocess.run(
                [
                    maven,
                    "-B",
                    "-q",
                    "-f",
                    str(pom),
                    COPY_DEPENDENCIES,
                    "-DincludeScope=runtime",
                    f"-DoutputDirectory={lib}",
                    *properties,
                ],
                capture_output=True,
                text=True,
                timeout=900,
            )
            if done.returncode != 0:
                raise Unavailable(
                    f"Maven could not fetch {what}:\n{(done.stdout + done.stderr)[-2000:]}"
                )
            try:
                lib.rename(home / "lib")
            except OSError:
                if not (home / "lib" / marker).exists():  # otherwise another process was faster
                    raise


def free_ports(count: int) -> list[int]:
    """Unused ports of 127.0.0.1.

    They are below the range from which systems choose the ports of outgoing connections. A test can
    therefore start to listen on them minutes later.
    """
    held: list[socket.socket] = []
    while len(held) < count:
        with contextlib.suppress(OSError):
            port = SystemRandom().randrange(15_000, 32_000)
            held.append(socket.create_server(("127.0.0.1", port)))
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


def run_until_stopped(
    usage: str | None,
    start: Callable[[Path, Mapping[str, str]], AbstractContextManager[T]],
    ready: Callable[[T], str],
) -> int:
    """Run a broker as a program, with FOLDER and NAME=VALUE… from the command line, until Ctrl-C.

    Prints a line when the broker is ready.
    """
    if len(sys.argv) < 2:
        print(usage, file=sys.stderr)
        return 2
    settings = dict(argument.split("=", 1) for argument in sys.argv[2:])
    with (
        start(Path(sys.argv[1]).resolve(), settings) as broker,
        contextlib.suppress(KeyboardInterrupt),
    ):
        print(f"ready: {ready(broker)}; Ctrl-C stops it", flush=True)
        signal.pause()
    return 0
