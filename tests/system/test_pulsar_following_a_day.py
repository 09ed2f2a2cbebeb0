"""Tests of a day of following Pulsar in minutes.

The standalone and the daemons are killed, the bucket is unavailable, and a disk is full, while
ledgers are closed and the broker compacts.
"""

from __future__ import annotations

import base64
import contextlib
import random
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import LogError
from lastwrite.spark.inline import INLINE
from tests.support.day import WAITS, Running, config_words, live_through, until_level
from tests.support.objects import s3_server
from tests.support.pulsar.broker import Broker, Unavailable, pulsar_home
from tests.support.pulsar.driver import Driver
from tests.system.test_pulsar_reading import told

pytestmark = [pytest.mark.broker, pytest.mark.long]

NAMESPACE = "persistent://public/default"
TABLE, LOG = f"{NAMESPACE}/day-table", f"{NAMESPACE}/day-log"


class Load:
    """Writes repeated keys and deletes to both topics until ``stop``, also during failures.

    The clients resend unacknowledged messages, so only the topic shows what was stored.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._is_over = threading.Event()
        self._rng = random.Random(18)
        self.answered: set[str] = set()  # acknowledged values of the log topic, in base64
        self.count = 0
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _message(self, topic: str) -> dict[str, Any]:
        self.count += 1
        value = base64.b64encode(b"%09d" % self.count * 5).decode()
        is_delete = topic == TABLE and self._rng.random() < 0.15
        key = f"k{self._rng.randrange(300)}"
        return {"key": key, "value": None if is_delete else value}

    def _write(self) -> None:
        while not self._is_over.wait(0.1):
            with contextlib.suppress(RuntimeError):  # the broker is down: try again
                for topic in (TABLE, LOG):
                    messages = [self._message(topic) for _ in range(10)]
                    is_batch = self._rng.random() < 0.5
                    self._driver.send(topic, [{"batch": is_batch, "messages": messages}])
                    if topic == LOG:
                        self.answered |= {each["value"] for each in messages}
                if self._rng.random() < 0.03:
                    self._driver.unload(self._rng.choice((TABLE, LOG)))
                if self._rng.random() < 0.03:
                    self._driver.compact(TABLE)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(180)
        assert not self._thread.is_alive()


def table_of(driver: Driver, topic: str) -> dict[str, bytes]:
    rows = driver.read(topic, compacted=True)
    last = {row["key"]: row["value"] for row in rows}
    return {key: base64.b64decode(value) for key, value in last.items() if value is not None}


def is_level(driver: Driver, archive: str, config: dict[str, str]) -> bool:
    try:
        return all(
            lastwrite.latest(archive, each, config=config) == table_of(driver, each)
            for each in (TABLE, LOG)
        )
    except LogError:
        return False


def check_log(driver: Driver, load: Load, archive: str) -> None:
    """Each message is there once and in order, and no acknowledged message is missing."""
    rows = [told(row) for row in lastwrite.read(archive, topic=LOG)]
    assert rows == driver.read(LOG)
    assert load.answered <= {row["value"] for row in rows}


def test_archive_stays_correct_through_kills_and_outages(tmp_path: Path, small_disk: Path) -> None:
    try:
        broker = Broker(pulsar_home(), tmp_path / "data")
    except Unavailable as reason:
        pytest.skip(str(reason))
    folder = str(small_disk / "archive")
    with broker, s3_server(tmp_path / "s3") as server, Driver(broker) as driver:
        for topic in (TABLE, LOG):
            driver.create(topic)
        settings = {
            "metadataStoreUrl": broker.metadata_url,
            "compactionThreshold": "2000",
            "brokerServiceCompactionMonitorIntervalInSeconds": "2",
        }
        common = ["--topic", "day-*", "--every", "1", *WAITS, *config_words(settings)]
        load = Load(driver)
        cleaning = Running(
            tmp_path / "cleaning.log",
            *("clean", "--source", NAMESPACE, "--to", "s3://archive/day", *common),
            *config_words(server.config),
            *("--master", "local[2]"),
        )
        following = Running(
            tmp_path / "following.log", "fetch", NAMESPACE, "--to", folder, "--follow", *common
        )
        live_through(broker, broker.start, server, small_disk, cleaning, following)
        load.stop()
        for archive, config in (("s3://archive/day", server.config), (folder, {})):
            until_level(partial(is_level, driver, archive, config), (cleaning, following))
        cleaning.stop()
        following.stop()
        assert load.count > 1000
        assert any(each["event"] == "round" for each in cleaning.events())
        for archive, config in (("s3://archive/day", server.config), (folder, {})):
            assert is_level(driver, archive, config)
            report = lastwrite.verify(archive, config=config, spark=INLINE)
            assert report.exit_status == 0
        check_log(driver, load, folder)
