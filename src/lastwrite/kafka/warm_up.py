"""Loads the modules and kernels of a Kafka compaction before a worker gets its first task."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import lastwrite.spark.folder_exchange  # noqa: F401  Spark tasks unpickle it
from lastwrite.encoding.compression import Codec
from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.encoding.machine_code import is_stored
from lastwrite.engine.elect import NO_KEYS, losers_among
from lastwrite.engine.rules import election, verdict
from lastwrite.engine.rules.sums import sums_of
from lastwrite.engine.rules.transactions import aborted_table, flag_aborted
from lastwrite.kafka.format import kernels, packed_kernels
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.format.index import SegmentIndexer
from lastwrite.kafka.recovery import index_check
from lastwrite.model.columns import (
    BATCH,
    NO_HORIZON,
    REBUILD,
    BatchTable,
    ByteArray,
    UInt64Array,
)
from lastwrite.model.policy import Policy, Strategy

# the largest kernels that a compaction of uncompressed batches runs
LARGEST = (kernels.split, kernels.walk, kernels.rebuild, election.elect, verdict._judge)


def is_compiled() -> bool:
    """Whether the compiled code of the largest kernels is cached and current."""
    return all(map(is_stored, (*LARGEST, packed_kernels.open_many)))


def load_kernels() -> None:
    """Run the kernels of a compaction once on nearly no data, because the first run loads them."""
    for part in (scan, judge, elect, rewrite):
        part()


def scan() -> None:
    form, data, table, states, entries = _nearly_no_data()
    form.split(data, 0, 0, 0)
    flag_aborted(table, aborted_table((), 0, 0))
    secret = secret_from(bytes(8 * SECRET_WORDS))
    for run in form.opened(data, table):
        form.walk(run, table, secret, 0, states, entries, 0)
    sums_of(table)
    numbers = np.empty(0, np.int64)
    one = np.zeros(1, dtype=BATCH)
    index_check.time_if_true(numbers, numbers, numbers, numbers, one, 0, index_check.NO_TIME, 0)


def judge() -> None:
    _, _, table, states, _ = _nearly_no_data()
    actions, horizons = np.empty(0, np.uint8), np.empty(0, np.int64)
    counts = np.zeros(len(verdict.Verdict), np.int64)
    policy = Policy(now_ms=0, tombstone_retention_ms=0)
    verdict.judge(table, states[:0], policy, 0, states, actions, horizons, counts)


def elect() -> None:
    _, _, _, states, entries = _nearly_no_data()
    election.partition(entries, 0, 1, entries, np.empty(2, np.uint32))
    rows = np.ones((1, 2), np.uint64)
    election.drop_losers(rows, np.ones(1, np.uint32), states)
    ends = np.ones((1, 1), np.uint32)
    election.mark(
        states, losers_among([rows.ctypes.data], 2, ends, [0], *NO_KEYS, Strategy.OFFSET)[1][0]
    )


def rewrite() -> None:
    form, data, table, states, _ = _nearly_no_data()
    actions, horizons = np.empty(0, np.uint8), np.empty(0, np.int64)
    form.rebuild(data, table, actions, horizons, states, data, np.empty((1, 5), np.int64))
    SegmentIndexer(0).append(*np.ones((4, 1), np.int64))


def rewrite_compressed() -> None:
    """Run the kernels that only compressed batches need."""
    form = KafkaFormat(1 << 20)
    records = [Record(offset, 0, b"%d" % offset, b"", ()) for offset in range(2)]
    data = np.frombuffer(encode_batch(records, codec=Codec.LZ4), np.uint8).copy()
    table = form.split(data, 0, len(data), 0).table
    actions, horizons = np.full(1, REBUILD, np.uint8), np.full(1, NO_HORIZON, np.int64)
    keep, out = np.array([1, 0], np.uint8), np.empty(form.rebuilt_size(table, 2), np.uint8)
    form.rebuild(data, table, actions, horizons, keep, out, np.empty((1, 5), np.int64))


# The parts that are compiled before the first task. One process begins with the first part and
# another one with the last part, so the largest parts are at both ends.
PARTS = (scan, judge, elect, rewrite, rewrite_compressed)
# the parts that are compiled while the first tasks run
LATER: tuple[Callable[[], None], ...] = ()


def _nearly_no_data() -> tuple[KafkaFormat, ByteArray, BatchTable, ByteArray, UInt64Array]:
    table, data = np.empty(0, dtype=BATCH), np.empty(64, dtype=np.uint8)
    states, entries = np.empty(1, dtype=np.uint8), np.empty((1, 2), dtype=np.uint64)
    return KafkaFormat(1 << 20), data, table, states, entries
