"""The states of transactional ids, from the partitions of ``__transaction_state`` in a log root.

A root may contain only some partitions of that topic, and therefore only some ids. Records above
the high watermark are left out.

Source: Kafka 4.4 ``TransactionStateManager``, ``TransactionLogKey.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import takewhile
from typing import Any, TypeAlias

from lastwrite.errors import CorruptLog, NotALog
from lastwrite.kafka.cluster.internal_topics import TRANSACTIONS_TOPIC, decode_internal_record
from lastwrite.kafka.store import log_dir
from lastwrite.kafka.store.appended import batches_of
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.model.log import Segment

# The fields of the newest ``TransactionLogValue`` of each transactional id.
TransactionStates: TypeAlias = Mapping[str, Mapping[str, Any]]


def transactions_in(root: str) -> dict[str, Mapping[str, Any]]:
    """The state of each transactional id in a log root. Empty without ``__transaction_state``.

    Raises:
        CorruptLog: a record cannot be read.
        LogError: a partition cannot be read.
    """
    found: dict[str, Mapping[str, Any]] = {}
    try:
        folders = find_partitions(root, TRANSACTIONS_TOPIC)
    except NotALog:
        return found
    for folder in folders:
        log = log_dir.read_partition(folder)
        for problem in log.problems:
            if not problem.is_note:
                raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)
        found |= _states(log.segments, log.high_watermark)
    return found


@lru_cache(maxsize=256)
def _states(segments: tuple[Segment, ...], end: int) -> TransactionStates:
    found: dict[str, Mapping[str, Any]] = {}
    for batch in takewhile(lambda each: each.header.base_offset < end, batches_of(segments)):
        for record in () if batch.attributes.control else batch.records:
            decoded = decode_internal_record(TRANSACTIONS_TOPIC, record.key, record.value)
            if decoded.key is None or (record.value is not None and decoded.value is None):
                raise CorruptLog(
                    f"the record at offset {record.offset} of {TRANSACTIONS_TOPIC} cannot be "
                    f"decoded: {decoded.problem}"
                )
            name = decoded.key["transactionalId"]
            if decoded.value is None:
                found.pop(name, None)
            else:
                found[name] = decoded.value
    return found
