"""``inspect``: counts and checks the contents of a log, without Spark and without changes.

This module selects the system; its ``look/inspect.py`` does the work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lastwrite.commands.selection import TopicConfig, find_partitions, overrides, paths_of
from lastwrite.commands.systems import KAFKA, PULSAR, ROCKETMQ, system_of
from lastwrite.config.stores import store_settings
from lastwrite.config.system import SettingSources, no_topics_of_kafka
from lastwrite.engine.context import Options
from lastwrite.engine.system import system_named
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.look.inspection import InspectReport
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.pulsar.look.inspection import PulsarReport
from lastwrite.rocketmq.look.inspection import StoreReport
from lastwrite.storage.choice import Topics
from lastwrite.storage.objects import address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastwrite.spark.inline import Inline


def inspect(
    path: str | Sequence[str],
    *,
    system: str | None = None,
    topic: Topics = None,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
    now_ms: int | None = None,
    memory: str | int | None = None,
    include_active: bool = False,
    spark: SparkSession | Inline | None = None,
    progress: Progress | None = None,
    topic_config: TopicConfig | None = None,
    metadata: str | None = None,
) -> InspectReport | StoreReport | PulsarReport:
    """Read everything at ``path`` and report its contents.

    Args:
        path: a log root, a partition's folder, or one file of either; for Kafka also several
            roots. Or a RocketMQ store, or a folder or file of it. Or a Pulsar topic folder, or a
            folder above several.
        system: ``kafka``, ``rocketmq`` or ``pulsar``. None means: detect it from the files.
        topic, partition: selection as for ``compact``; for RocketMQ, ``partition`` is the queue.
            None means all.
        config: settings by upstream's names, which decide what is dirty and due.
        now_ms: the current time, in milliseconds since 1970. None means the clock.
        memory: the size of the largest batch to read, with its records uncompressed. None means
            256 MiB.
        spark: a session whose workers count the distinct keys. None means: count in this process.
        include_active, progress, topic_config, metadata: as for ``compact``.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was read.

    Damage does not raise. The report contains it, with file and byte.
    """
    address.use(store_settings(config))
    paths = paths_of(path)
    whose = {system_of(each, system, metadata) for each in paths}
    if len(paths) > 1 and whose != {KAFKA}:
        raise InvalidConfig(
            "several paths were given, and not all are Kafka log roots",
            remedy="inspect one path at a time",
        )
    path = paths[0]
    sources = SettingSources(overrides=overrides(topic_config), metadata=metadata)
    if whose == {PULSAR}:
        from lastwrite.pulsar.look.inspect import inspect_topics  # imported only if needed

        no_topics_of_kafka("a topic of Pulsar", sources)
        return inspect_topics(path, topic, partition, config, now_ms, progress, spark)
    if whose == {ROCKETMQ}:
        from lastwrite.rocketmq.look.inspect import inspect_store  # imported only if needed

        no_topics_of_kafka("a RocketMQ store", sources)
        return inspect_store(path, topic, partition, config, now_ms, include_active, progress)
    from lastwrite.kafka.look.inspect import inspect_file, inspect_logs  # imported only if needed

    began = time.monotonic()
    options = Options(
        config=dict(config or {}),
        now_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        include_active=include_active,
        dry_run=True,
    )
    system_named(KAFKA).check_config(options.config)
    report = InspectReport(path=", ".join(paths), system=KAFKA, now_ms=options.now_ms)
    progress = progress or NoProgress()
    if len(paths) == 1 and os.path.isfile(path):
        inspect_file(path, report, memory, progress)
    else:
        kafka, folders = find_partitions(paths, KAFKA, topic, partition, sources)
        inspect_logs(kafka, folders, report, options, memory, spark, progress)
    report.seconds = round(time.monotonic() - began, 3)
    return report
