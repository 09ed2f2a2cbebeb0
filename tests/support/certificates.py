"""Certificates of a broker, a client and a stranger, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def certificates(folder: Path) -> Path:
    """``broker.pem``, ``client.pem``, ``stranger.pem`` in the folder, which is returned: a
    certificate each; beside it its ``.key``, and both as ``.both``. Skips where openssl is missing.
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
