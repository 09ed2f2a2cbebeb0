"""Kafka's own cleaner, run by a peer program outside this repository.

``LASTWRITE_PEERS`` names the folder of peers (default: ``shared/peers`` beside the repository).
``LASTWRITE_KAFKA_HOME`` names a folder that the peer's ``setup.sh`` has filled. Without it, Maven
fills a folder in the user's cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PEERS = Path(os.environ.get("LASTWRITE_PEERS", REPOSITORY.parent / "shared" / "peers"))
PEER = PEERS / "kafka"


def peer_home(system: str, oracle: str) -> Path:
    """The folder that the peer's ``setup.sh`` has filled, or fills in the user's cache.

    ``oracle`` is the class that a filled folder has.

    Raises:
        SystemExit: The peer, Java or Maven is missing. The message names it.
    """
    name = system.lower()
    peer = PEERS / name
    if not (peer / "oracle.sh").exists():
        raise SystemExit(f"no {system} peer at {peer}: set LASTWRITE_PEERS to the folder of peers")
    if shutil.which("java") is None:
        raise SystemExit(f"{system}'s cleaner needs java 17 or newer on the PATH")
    given = os.environ.get(f"LASTWRITE_{system.upper()}_HOME")
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        / "lastwrite"
        / f"{name}-peer"
    )
    home = Path(given) if given else cache
    if not (home / "classes" / f"{oracle}.class").exists():
        if shutil.which("mvn") is None:
            raise SystemExit(
                f"{home} holds no {system}, and Maven is missing, which would bring it"
            )
        subprocess.run([str(peer / "setup.sh"), str(home)], check=True, stdout=subprocess.DEVNULL)
    return home


def kafka_home() -> Path:
    """The folder with Kafka's jars and the oracle's classes. Raises the errors of ``peer_home``."""
    return peer_home("Kafka", "CleanerOracle")


def oracle_command(*args: str) -> list[str]:
    return [str(PEER / "oracle.sh"), str(kafka_home()), *args]


def write_log(folder: Path, **settings: object) -> dict[str, Any]:
    """Write a log with Kafka's own append path. ``settings`` are LogWriter's."""
    args = [f"{name.replace('_', '.')}={value}" for name, value in settings.items()]
    done = subprocess.run(
        oracle_command("write", str(folder), *args), stdout=subprocess.PIPE, check=True
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


class WarmCleaner:
    """The cleaner in a long-lived JVM, so that its second run finds compiled code."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            oracle_command("serve"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid

    def clean(
        self, folder: Path, config: dict[str, str], now_ms: int, map_bytes: int, rounds: int = 1
    ) -> dict[str, Any]:
        """Run at most ``rounds`` rounds over ``folder``, until nothing is cleanable.

        Returns Kafka's own figures.

        Raises:
            RuntimeError: Kafka failed.
        """
        request = {
            "op": "clean",
            "dir": str(folder),
            "config": {"cleanup.policy": "compact", **config},
            "now_ms": now_ms,
            "dedupe_buffer_size": map_bytes,
            "rounds": rounds,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        if not answer.get("ok") or answer.get("skipped"):
            raise RuntimeError(f"Kafka's cleaner says: {answer}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def start_cold(
    folder: Path, config: dict[str, str], now_ms: int, map_bytes: int
) -> subprocess.Popen[str]:
    """Start one round in a JVM of its own. ``answer_of`` reads its output."""
    args = ["cleanup.policy=compact", *(f"{name}={value}" for name, value in config.items())]
    return subprocess.Popen(
        oracle_command(
            "clean", str(folder), *args, f"now_ms={now_ms}", f"dedupe_buffer_size={map_bytes}"
        ),
        stdout=subprocess.PIPE,
        text=True,
    )


def answer_of(status: int, said: str) -> dict[str, Any]:
    """Kafka's own figures of a round in a JVM that has ended.

    Raises:
        RuntimeError: Kafka failed.
    """
    answer: dict[str, Any] = json.loads(said) if said else {}
    if status or not answer.get("ok"):
        raise RuntimeError(f"Kafka's cleaner ended with status {status}: {answer}")
    return answer


def clean_cold(folder: Path, config: dict[str, str], now_ms: int, map_bytes: int) -> dict[str, Any]:
    """Run one round in a JVM of its own. Returns Kafka's own figures."""
    process = start_cold(folder, config, now_ms, map_bytes)
    said, _ = process.communicate()
    return answer_of(process.returncode, said)
