"""Runs the engine in this process, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.commands.systems import system_at
from lastwrite.reports.compaction import CompactionReport
from lastwrite.spark.inline import INLINE


def compact(
    root: Path, config: Mapping[str, object], now_ms: int, **arguments: Any
) -> CompactionReport:
    """Compact the logs under ``root`` once, whatever their dirty ratio.

    Kafka's cleanup policy is ``compact`` unless ``config`` sets another. Keyless Kafka records are
    dropped.
    """
    is_kafka = system_at(str(root), arguments.get("system")).name == "kafka"
    policy = {"cleanup.policy": "compact"} if is_kafka else {}
    arguments.setdefault("drop_keyless", is_kafka)
    return lastwrite.compact(
        str(root),
        config={**policy, **config, "min.cleanable.dirty.ratio": "0"},
        now_ms=now_ms,
        spark=INLINE,
        **arguments,
    )
