"""A real Kafka broker with tiered storage (KIP-405) in a folder.

    with tiered_broker(tmp_path / "data", tmp_path / "tier") as broker:
        create_topic(broker, "orders", TIERED)

The storage manager is Kafka's own ``LocalTieredStorage``, from the test jar of kafka-storage 4.3.1.
The test jar of 4.4.0 was not published. The manager uses
``org.apache.kafka.common.utils.LogContext``, which is in another package in 4.4.0. A small class
with that name replaces it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.jars import Unavailable, alone, fetch_jars
from tests.support.kafka.broker import Broker, kafka_home

POM = Path(__file__).with_name("tiered-pom.xml")
_LOG_CONTEXT = """package org.apache.kafka.common.utils;
public class LogContext {
    public LogContext(String prefix) { }
    public org.slf4j.Logger logger(Class<?> of) { return org.slf4j.LoggerFactory.getLogger(of); }
}
"""
TIERED = {  # topic settings: small segments, deleted from the broker's disk once they are copied
    "cleanup.policy": "delete",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "internal.segment.bytes": "3000",
    "segment.index.bytes": "1024",
    "index.interval.bytes": "300",
}


def tiered_home() -> Path:
    """The folder with the storage manager. ``kafka_home`` has the broker's jars.

    Raises:
        Unavailable: There is no Java or ``javac``, or there are no jars and no Maven to fetch them.
    """
    kafka = kafka_home()
    home = kafka.with_name(f"{kafka.name}-tiered")
    if shutil.which("javac") is None:
        raise Unavailable("a broker with tiers needs a JDK: no javac on PATH")
    fetch_jars(home, "the storage manager of Kafka's tests", POM, "kafka-storage-4.3.1-test.jar")
    classes = home / "classes"
    with alone(home):
        if not classes.exists():
            source = home / "LogContext.java"
            source.write_text(_LOG_CONTEXT)
            aside = home / f"classes.{os.getpid()}"
            subprocess.run(
                ["javac", "-cp", f"{kafka}/lib/*", "-d", str(aside), str(source)],
                check=True,
                timeout=120,
            )
            aside.rename(classes)
    return home


class TieredBroker(Broker):
    """A ``Broker`` with the storage manager on its class path."""

    def _java(self, *arguments: str) -> list[str]:
        said = list(super()._java(*arguments))
        place = said.index("-cp") + 1
        more = self.home.with_name(f"{self.home.name}-tiered")
        said[place] = f"{said[place]}:{more}/lib/*:{more}/classes"
        return said


def tiered_broker(
    data: Path, tier: Path, settings: Mapping[str, str] | None = None
) -> TieredBroker:
    """A broker that copies closed segments to ``tier`` within one or two seconds.

    Raises:
        Unavailable: See ``tiered_home``.
    """
    tiered_home()
    tier.mkdir(parents=True, exist_ok=True)
    manager = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    return TieredBroker(
        kafka_home(),
        data,
        {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": manager,
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
            "rsm.config.dir": str(tier),
            "remote.log.manager.task.interval.ms": "500",
            "replica.high.watermark.checkpoint.interval.ms": "200",
            "log.retention.check.interval.ms": "500",
            "log.segment.delete.delay.ms": "100",
            "log.initial.task.delay.ms": "500",
            **(settings or {}),
        },
    )


def tier_of(tier: Path) -> Path:
    """The folder in which the storage manager writes the topics' folders."""
    return tier / "kafka-tiered-storage"


def wait_until_copied(data: Path, partition: str, seconds: float = 120) -> None:
    """Wait until the broker's disk has only the active segment of the partition."""
    deadline = time.monotonic() + seconds
    while len(list((data / partition).glob("*.log"))) > 1:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{partition} was not copied after {seconds} s")
        time.sleep(0.2)
    time.sleep(1)  # the broker records a copied segment a moment later
