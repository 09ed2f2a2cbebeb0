"""Fixtures that several modules of system tests share: a Pulsar standalone and a small disk.

The standalone starts when a test first asks for it and runs until the end of the session.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pulsar.broker import Broker, Unavailable, pulsar_home
from tests.support.pulsar.driver import Driver


@pytest.fixture(scope="session")
def pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real standalone with transactions. A test that kills it must start it again."""
    try:
        made = Broker(
            pulsar_home(),
            tmp_path_factory.mktemp("pulsar") / "data",
            {"transactionCoordinatorEnabled": "true"},
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


@pytest.fixture(scope="session")
def driver(pulsar: Broker) -> Iterator[Driver]:
    """A driver of Pulsar's own Java clients, connected to ``pulsar``."""
    try:
        made = Driver(pulsar, transactions=True)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 60 MB that a test may fill. Mounting it needs root."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(place)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"mounting a small disk needs rights: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)
