"""``explain``: why a partition, a duplicate or a tombstone is not removed yet, and when it will be.

    lastwrite.explain("/var/lib/kafka/orders-0", key=b"order-7")

This module selects the system; ``explanation.partition`` does the work, in this process. Nothing is
written.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from lastwrite.commands.selection import TopicConfig, find_partitions, overrides
from lastwrite.config.keyless import may_drop, reject_elsewhere
from lastwrite.config.stores import store_settings
from lastwrite.config.system import SettingSources
from lastwrite.engine.context import Context, Options
from lastwrite.explanation.partition import explain_partition, explainer_of
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.reports.explanation import ExplainReport
from lastwrite.spark.inline import choose_spark
from lastwrite.spark.use import exchange_for, runner_for
from lastwrite.storage.choice import Topics
from lastwrite.storage.objects import address


def explain(
    path: str,
    *,
    system: str | None = None,
    topic: Topics = None,
    partition: int | None = None,
    config: Mapping[str, object] | None = None,
    now_ms: int | None = None,
    key: bytes | None = None,
    include_active: bool = False,
    memory: str | int | None = None,
    progress: Progress | None = None,
    topic_config: TopicConfig | None = None,
    metadata: str | None = None,
    drop_keyless: bool = False,
) -> ExplainReport:
    """Explain why the partitions at ``path`` are not clean, and when this changes.

    It assumes that the settings stay the same. It does not start Spark and changes nothing.

    Args:
        path: a log root, or a partition's folder.
        system: ``kafka``, ``rocketmq`` or ``pulsar``. None means: detect it from the files.
        topic, partition: selection as for ``compact``. None means all.
        config: settings by upstream's names, as for ``compact``.
        now_ms: the current time, in milliseconds since 1970. None means the clock.
        key: list every record of this key, why it is still in the log, and when it is removed.
        include_active: treat the active segment as closed, as ``compact`` does.
        memory: memory limit, in bytes or as ``"2g"``.
        progress, topic_config, metadata, drop_keyless: as for ``compact``.

    Raises:
        NotALog, InvalidConfig: nothing was read.

    Damage, and partitions that a broker or another run has locked, do not raise. The report
    contains them.
    """
    address.use(store_settings(config))
    options = Options(
        config=may_drop(config, drop_keyless),
        now_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        include_active=include_active,
        dry_run=True,
    )
    sources = SettingSources(overrides=overrides(topic_config), metadata=metadata)
    found, folders = find_partitions([str(path)], system, topic, partition, sources)
    reject_elsewhere(options.config, found.name, found.governs_keyless)
    found.check_config(options.config)
    report = ExplainReport(path=str(path), now_ms=options.now_ms, system=found.name)
    with runner_for(choose_spark(None), "", memory, {}, NoProgress()) as (runner, plan):
        exchange = exchange_for(runner)
        try:
            context = Context(found, exchange, 1, plan.limits(), options, progress or NoProgress())
            explainer = explainer_of(found)
            report.partitions = [
                explain_partition(explainer, context, folder, key) for folder in folders
            ]
        finally:
            exchange.close()
    return report
