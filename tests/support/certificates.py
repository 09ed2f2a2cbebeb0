"""TLS certificates for tests, made by openssl: of a broker, a client and a stranger."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def certificates(folder: Path) -> Path:
    """Write ``broker.pem``, ``client.pem`` and ``stranger.pem``, and return the folder.

    Each has its private key in a ``.key`` file, and both together in a ``.both`` file. Skips the
    test if openssl is missing.
    """
    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing")
    for name in ("broker", "client", "stranger"):
        line = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -keyout {name}.key"
        more = ["-out", f"{name}.pem", "-addext", "subjectAltName=IP:127.0.0.1"]
        command = ["openssl", *line.split(), *more]
        subprocess.run(command, cwd=folder, check=True, timeout=60, stderr=subprocess.DEVNULL)
        both = (folder / f"{name}.key").read_text() + (folder / f"{name}.pem").read_text()
        (folder / f"{name}.both").write_text(both)
    return folder
