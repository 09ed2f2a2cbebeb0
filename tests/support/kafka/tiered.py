"""A real Kafka broker with tiered storage (KIP-405) into a folder.

    with tiered_broker(tmp_path / "data", tmp_path / "tier") as broker:
        create_topic(broker, "orders", TIERED)

The storage manager is Kafka's own ``LocalTieredStorage``, of the test jar of kafka-storage 4.3.1:
that of 4.4.0 was not published. It asks for ``org.apache.kafka.common.utils.LogContext``, which
4.4.0 has in another package; a class of one method stands in for it.
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
TIERED = {  # of a topic: small segments, gone from the broker's disk once they are copied
    "cleanup.policy": "delete",
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "internal.segment.bytes": "3000",
    "segment.index.bytes": "1024",
    "index.interval.bytes": "300",
}


def tiered_home() -> Path:
    """The jars of ``kafka_home`` and, beside them, the storage manager.

    Raises:
        Unavailable: no Java, no ``javac``, or no jars and no Maven to fetch them.
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
    """A ``Broker`` with the storage manager among its classes."""

    def _java(self, *arguments: str) -> list[str]:
        said = list(super()._java(*arguments))
        place = said.index("-cp") + 1
        more = self.home.with_name(f"{self.home.name}-tiered")
        said[place] = f"{said[place]}:{more}/lib/*:{more}/classes"
        return said


def tiered_broker(
    data: Path, tier: Path, settings: Mapping[str, str] | None = None
) -> TieredBroker:
    """A broker that copies closed segments below ``tier`` within a second or two.

    Raises:
        Unavailable: as ``tiered_home``.
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
    """The folder in which the storage manager has the topics' folders."""
    return tier / "kafka-tiered-storage"


def wait_until_copied(data: Path, partition: str, seconds: float = 120) -> None:
    """Return when of a partition only its active segment is left on the broker's disk."""
    deadline = time.monotonic() + seconds
    while len(list((data / partition).glob("*.log"))) > 1:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{partition} was not copied after {seconds} s")
        time.sleep(0.2)
    time.sleep(1)  # what was copied is noted behind it
