"""The engine as tests call it: without Spark, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.model.report import CompactionReport
from lastwrite.pipeline.inline import INLINE


def compact(
    root: Path, config: Mapping[str, object], now_ms: int, **arguments: Any
) -> CompactionReport:
    """One round over the logs under ``root``, whatever share of them is dirty."""
    return lastwrite.compact(
        str(root),
        config={**config, "min.cleanable.dirty.ratio": "0"},
        now_ms=now_ms,
        spark=INLINE,
        **arguments,
    )
