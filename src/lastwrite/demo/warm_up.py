"""Loads the modules and kernels of the demo before a worker gets its first task.

The kernels of ``verify`` and of the SQL query are compiled while the compaction runs. Kernels that
only compressed batches need are not compiled, because the sample has no compressed batches.
"""

from __future__ import annotations

import numpy as np

from lastwrite.commands.rows import last_writes, planned_rows
from lastwrite.commands.systems import KAFKA
from lastwrite.decoding.options import DecodingConfig
from lastwrite.demo.question import can_query
from lastwrite.demo.sample_topic import SAMPLE, SampleTopic
from lastwrite.encoding.machine_code import is_stored
from lastwrite.kafka import warm_up
from lastwrite.rows import place_kernels
from lastwrite.rows.system import rows_of
from lastwrite.verification import invariants
from lastwrite.verification.rows import ROW_WORDS

if can_query():
    from lastwrite.rows.decoded import DecodedRows

load_kernels = warm_up.load_kernels


def is_compiled() -> bool:
    """Whether the compiled code of the largest kernels is cached and current."""
    later = [invariants._judge, *([place_kernels.reduce] if can_query() else [])]
    return all(map(is_stored, (*warm_up.LARGEST, *later)))


def verify() -> None:
    rows, ends = np.zeros((1, ROW_WORDS), np.uint64), np.zeros(1, np.uint32)
    invariants.by_bucket(rows, 1, 0, np.empty_like(rows), ends)
    invariants.judged(rows, 0, 0, np.zeros(invariants.COUNTS, np.int64))


def query() -> None:
    """Read the last writes of the sample."""
    if can_query():
        rows = rows_of(KAFKA)
        logs = rows.logs_of(str(SAMPLE), SampleTopic.name.topic, None, is_compacted=True)
        wanted = DecodedRows(
            DecodingConfig.of({"key_format": "utf8", "value_format": "utf8"}), None, lambda: ""
        )
        for unit in last_writes(rows, logs, wanted.raw_columns):
            for _ in wanted.of(planned_rows(unit)):
                pass


PARTS = (warm_up.scan, warm_up.judge, warm_up.elect, warm_up.rewrite)
LATER = (verify, query)
