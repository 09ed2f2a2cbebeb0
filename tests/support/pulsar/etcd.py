"""A real etcd server on free ports of 127.0.0.1, over a folder of its own.

The program is ``etcd`` on PATH, or in ``LASTWRITE_ETCD_HOME``. Otherwise, apt downloads Debian's
package once to ``~/.cache/lastwrite/etcd``, without installing it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.support.jars import Unavailable, alone, free_ports


def etcd_program() -> str:
    """The path of the etcd program.

    Raises:
        Unavailable: There is no etcd, and apt cannot download it.
    """
    given = os.environ.get("LASTWRITE_ETCD_HOME")
    home = Path(given or Path.home() / ".cache" / "lastwrite" / "etcd")
    if found := shutil.which("etcd"):
        return found
    program = home / "usr" / "bin" / "etcd"
    with alone(home):
        if not program.exists():
            if not shutil.which("apt-get") or not shutil.which("dpkg"):
                raise Unavailable(f"no etcd on PATH nor in {home}, and no apt to fetch it")
            home.mkdir(parents=True, exist_ok=True)
            get = subprocess.run(
                ["apt-get", "download", "etcd-server"], cwd=home, capture_output=True, text=True
            )
            packages = list(home.glob("etcd-server_*.deb"))
            if not packages:
                raise Unavailable(f"apt cannot fetch etcd-server: {get.stderr[-300:]}")
            subprocess.run(["dpkg", "-x", str(packages[0]), str(home)], check=True)
    return str(program)


@contextlib.contextmanager
def etcd_server(folder: Path) -> Iterator[str]:
    """The URL of an etcd server that runs while the context is open."""
    program = etcd_program()
    client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "etcd.out").open("wb") as said:
        process = subprocess.Popen(
            [
                program,
                *("--data-dir", str(folder / "data")),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"default={peer}"),
            ],
            stdout=said,
            stderr=said,
        )
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{client}/health", timeout=2)
                break
            time.sleep(0.1)
        yield client
    finally:
        process.terminate()
        process.wait(30)
