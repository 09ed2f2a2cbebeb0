"""Kafka's own cleaner, loader and append path, run by a peer program outside this repository.

``LASTWRITE_PEERS`` names the folder of peers (default: ``shared/peers`` beside the repository).
``LASTWRITE_KAFKA_HOME`` names a folder that the peer's ``setup.sh`` has filled. Without one, Maven
fills a folder in the user's cache once. Tests that need the oracle are skipped with the reason if
it cannot run.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.jars import alone
from tests.support.kafka.logs import headers_of

REPOSITORY = Path(__file__).resolve().parents[3]
PEERS = Path(os.environ.get("LASTWRITE_PEERS", REPOSITORY.parent / "shared" / "peers"))
PEER = PEERS / "kafka"

# Far more slots than a scenario has keys, so that Kafka's round takes all keys at once, as
# Lastwrite's does.
MAP_SLOTS = 100_000
LONG_MAX = 2**63 - 1


@functools.cache
def kafka_home() -> Path:
    """The folder with Kafka's jars and the oracle's classes.

    Skips the test if it cannot be made.
    """
    return peer_home("Kafka", "CleanerOracle")


def peer_home(system: str, oracle: str) -> Path:
    """The folder that the peer's ``setup.sh`` has filled, or fills in the user's cache.

    Skips the test if it cannot be filled. ``oracle`` is the class that a filled folder has.
    ``LASTWRITE_<SYSTEM>_HOME`` names a folder that is used if it is filled.
    """
    name = system.lower()
    peer = PEERS / name
    if not (peer / "oracle.sh").exists():
        pytest.skip(f"no {system} peer at {peer}; LASTWRITE_PEERS names the folder of peers")
    _need_java()
    given = os.environ.get(f"LASTWRITE_{system.upper()}_HOME")
    if given and _is_filled(
        Path(given), oracle
    ):  # a folder with the jars only is for tests with a broker
        return Path(given)
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        / "lastwrite"
        / f"{name}-peer"
    )
    with alone(cache):
        if not _is_filled(cache, oracle):
            if shutil.which("mvn") is None:
                pytest.skip(f"Maven is missing, which brings {system}'s jars")
            building = cache.with_name(f"{name}-peer.{os.getpid()}")
            made = subprocess.run(
                [str(peer / "setup.sh"), str(building)], capture_output=True, text=True, check=False
            )
            if made.returncode:
                shutil.rmtree(building, ignore_errors=True)
                pytest.skip(
                    f"{system}'s jars did not come: {(made.stderr or made.stdout).strip()[-300:]}"
                )
            shutil.rmtree(cache, ignore_errors=True)
            building.rename(cache)
    return cache


def _is_filled(home: Path, oracle: str) -> bool:
    return (home / "classes" / f"{oracle}.class").exists() and (home / "lib").is_dir()


def _need_java() -> None:
    java = shutil.which("java")
    if java is None:
        pytest.skip("Java is missing, which runs Kafka's own cleaner")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = said.partition('"')[2].partition(".")[0].strip('"')
    if not version.isdigit() or int(version) < 17:
        pytest.skip(
            f"Java 17 or newer is missing; `java -version` says: {said.splitlines()[0] if said else 'nothing'}"
        )


@functools.cache
def _gen_log() -> ModuleType:
    """The peer's scenario generator, a script that is imported as a module."""
    spec = importlib.util.spec_from_file_location("lastwrite_gen_log", PEER / "gen_log.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        spec.loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


class Oracle:
    """The peer's CleanerOracle in its own JVM."""

    def __init__(self) -> None:
        home = kafka_home()  # skips the test before the peer is imported
        self._asked = _gen_log().Oracle(home)

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a request. Fails with an AssertionError if Kafka threw an exception."""
        answer = self.attempt(op, **arguments)
        assert answer["ok"], f"{op} {arguments}: {answer.get('error')}: {answer.get('message')}"
        return answer

    def attempt(self, op: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a request. ``ok`` is false if Kafka threw an exception."""
        answer: dict[str, Any] = self._asked.ask(op, **arguments)
        return answer

    def play(self, seed: int, folder: Path) -> dict[str, Any]:
        """Let Kafka write, clean and retain the peer's scenario of ``seed``.

        Leaves every state of the log in ``folder``, and returns the steps.
        """
        peer = _gen_log()
        made: dict[str, Any] = peer.play(self._asked, peer.scenario(seed), folder)
        return made

    def close(self) -> None:
        self._asked.close()


def scenario(seed: int) -> dict[str, Any]:
    """A random scenario of the peer, with transactions, producers, old formats, lags and retention.

    Adds to the peer's scenario: Half of the scenarios have no compression, so that bytes can be
    compared. Some phases have a high watermark below the log end, and some raise the log start.
    Some topics have only the policy delete. Some have the largest possible retention or lag, so
    that tombstones never expire or records never become cleanable. ``plain`` is true if no batch is
    compressed.
    """
    plan: dict[str, Any] = _gen_log().scenario(seed)
    rng = random.Random(f"lastwrite-{seed}")
    config = dict(plan["topic_config"])
    plain = rng.random() < 0.5
    lagging = rng.random() < 0.2
    if rng.random() < 0.03:
        config |= {"cleanup.policy": "delete", "retention.ms": "1000", "retention.bytes": "2000"}
    phases = []
    for phase in plan["phases"]:
        actions = [_without_codec(action) if plain else action for action in phase["actions"]]
        phases.append(
            {
                "actions": _gen_log()._explicit(actions),
                "now_ms": phase["now_ms"],
                # the replicated share of the log at the begin of the round
                "replicated": rng.choice([0.3, 0.6, 0.9, 1.0]) if lagging else 1.0,
                # how far the log start moves before the round; None means not at all
                "raise_log_start": rng.choice([0.1, 0.5]) if rng.random() < 0.05 else None,
            }
        )
    # Drawn last, so that the other random values do not change.
    if rng.random() < 0.12:
        config["delete.retention.ms"] = rng.choice([LONG_MAX, LONG_MAX - phases[0]["now_ms"]])
    if rng.random() < 0.05:
        config["max.compaction.lag.ms"] = LONG_MAX
        config["min.compaction.lag.ms"] = rng.choice([LONG_MAX - phases[0]["now_ms"], LONG_MAX])
    config = {name: str(value) for name, value in config.items()}
    codecs = {a["batch"]["codec"] for phase in phases for a in phase["actions"] if "batch" in a}
    return {"name": plan["name"], "config": config, "phases": phases, "plain": codecs <= {"none"}}


def _without_codec(action: dict[str, Any]) -> dict[str, Any]:
    return {"batch": {**action["batch"], "codec": "none"}} if "batch" in action else action


def shut_down(folder: Path) -> None:
    """Trim the indexes as a broker does at its shutdown. The oracle does not.

    Removes the zeros after the entries, and ends the active segment's time index with the largest
    timestamp. Otherwise, the next load would take the zeros for entries and lose the largest
    timestamp.
    """
    active = max(folder.glob("*.log"))
    for suffix, entry_bytes in ((".index", 8), (".timeindex", 12)):
        for file in folder.glob(f"*{suffix}"):
            times = file.stat()
            entries = file.read_bytes()
            filled = len(entries.rstrip(b"\0"))
            entries = entries[: -(-filled // entry_bytes) * entry_bytes]
            if suffix == ".timeindex" and file.stem == active.stem:
                entries += _last_time_entry(active, entries)
            file.write_bytes(entries)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def _last_time_entry(log: Path, entries: bytes) -> bytes:
    """The time index entry of the largest timestamp in ``log``, for the first batch that has it.

    Empty if ``entries`` already ends with that timestamp.
    """
    before = int.from_bytes(entries[-12:-4], "big", signed=True) if entries else -1
    headers = [header for _, header in headers_of(log)]
    largest = max((header.max_timestamp_ms for header in headers), default=-1)
    if largest <= before:
        return b""
    offset = next(header.last_offset for header in headers if header.max_timestamp_ms == largest)
    return largest.to_bytes(8, "big") + (offset - int(log.stem)).to_bytes(4, "big")
