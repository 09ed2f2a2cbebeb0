"""Loads the modules and kernels of a Kafka compaction before a worker gets its first task."""

from __future__ import annotations

import numpy as np

import lastwrite.spark.folder_exchange  # noqa: F401  Spark tasks unpickle it
from lastwrite.encoding.compression import Codec
from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.encoding.machine_code import is_stored
from lastwrite.engine.elect import NO_KEYS, losers_among
from lastwrite.engine.rules import election, verdict
from lastwrite.engine.rules.transactions import aborted_table, flag_aborted
from lastwrite.kafka.format import kernels
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.model.columns import BATCH, NO_HORIZON, REBUILD
from lastwrite.model.policy import Policy, Strategy


def is_compiled() -> bool:
    """Whether the compiled code of the largest kernels is cached and current."""
    each = (kernels.split, kernels.walk, kernels.rebuild, election.elect, verdict._judge)
    return all(map(is_stored, each))


def load_kernels() -> None:
    """Run the kernels of a compaction once on nearly no data, because the first run loads them."""
    form = KafkaFormat(1 << 20)
    table, data = np.empty(0, dtype=BATCH), np.empty(64, dtype=np.uint8)
    states, entries = np.empty(1, dtype=np.uint8), np.empty((1, 2), dtype=np.uint64)
    form.split(data, 0, 0, 0)
    secret = secret_from(bytes(8 * SECRET_WORDS))
    flag_aborted(table, aborted_table((), 0, 0))
    for run in form.opened(data, table):
        form.walk(run, table, secret, 0, states, entries, 0)
    actions, horizons = np.empty(0, np.uint8), np.empty(0, np.int64)
    counts = np.zeros(len(verdict.Verdict), np.int64)
    policy = Policy(now_ms=0, tombstone_retention_ms=0)
    verdict.judge(table, states[:0], policy, 0, states, actions, horizons, counts)
    election.partition(entries, 0, 1, entries, np.empty(2, np.uint32))
    rows = np.ones((1, 2), np.uint64)
    election.drop_losers(rows, np.ones(1, np.uint32), states)
    ends = np.ones((1, 1), np.uint32)
    election.mark(
        states, losers_among([rows.ctypes.data], 2, ends, [0], *NO_KEYS, Strategy.OFFSET)[1][0]
    )
    form.rebuild(data, table, actions, horizons, states, data, np.empty((1, 5), np.int64))


def compile_kernels() -> None:
    """Compile all kernels, including the kernels that only compressed batches need."""
    load_kernels()
    form = KafkaFormat(1 << 20)
    records = [Record(offset, 0, b"%d" % offset, b"", ()) for offset in range(2)]
    data = np.frombuffer(encode_batch(records, codec=Codec.LZ4), np.uint8).copy()
    table = form.split(data, 0, len(data), 0).table
    actions, horizons = np.full(1, REBUILD, np.uint8), np.full(1, NO_HORIZON, np.int64)
    keep, out = np.array([1, 0], np.uint8), np.empty(form.rebuilt_size(table, 2), np.uint8)
    form.rebuild(data, table, actions, horizons, keep, out, np.empty((1, 5), np.int64))
