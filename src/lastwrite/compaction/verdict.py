"""What becomes of each record and each batch: one decision, from which all counts follow.

The smallest case: ``a@1``, ``a@2``. Election has marked ``a@1`` SHADOWED, so it goes. Then, in order:

- a control record is not compacted by key; it stays here;
- a record without a key cannot be kept as anybody's last write: it goes, where the policy says so;
- a shadowed record goes at once, tombstone or not;
- a tombstone that is its key's last write stays until its batch's *delete horizon*. The first round that
  keeps it stamps the horizon, now + retention, into the batch (the batch is rebuilt for it); a round at
  or after the horizon drops it. A horizon is never moved, and stays when the tombstone has left;
- a batch that loses all its records goes, save one: the batch that ends where the log's replicated
  part ends stays as an empty shell, so that the log's end can still be found.

Source: Kafka 4.4.0 cleaner; spec/kafka-cleanup.md sections 7, 8 and 20.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from numba import njit

from lastwrite.model.columns import (
    CONTROL,
    COPY,
    DROP,
    EMPTY,
    KEYLESS,
    NO_HORIZON,
    REBUILD,
    SHADOWED,
    TOMBSTONE,
    BatchTable,
    ByteArray,
    Int64Array,
)


class Verdict(IntEnum):
    """Why a record stays or goes; the first that holds decides."""

    KEEP = 0
    KEYLESS = 1  # no key to compact by
    SHADOWED = 2  # a later record has its key
    EXPIRED = 3  # a delete past its horizon

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How one system wants its records judged. Values differ between systems, code does not."""

    now_ms: int
    tombstone_retention_ms: int  # from the round that first keeps a tombstone
    keep_keyless: bool = False
    shell_offset: int = -1  # the batch whose next offset is this one stays, empty if need be

    def to_tuple(self) -> tuple[int, int, bool, int]:
        """The values in order, as units of work carry them."""
        return self.now_ms, self.tombstone_retention_ms, self.keep_keyless, self.shell_offset

    @classmethod
    def from_tuple(cls, values: tuple[int, int, bool, int]) -> Policy:
        return cls(now_ms=values[0], tombstone_retention_ms=values[1], keep_keyless=values[2], shell_offset=values[3])


def judge(
    table: BatchTable, states: ByteArray, policy: Policy, keep: ByteArray, actions: ByteArray,
    horizons: Int64Array, counts: Int64Array,
) -> int:  # fmt: skip
    """Judge the records of the batches in ``table``; ``states`` has a byte a record, in order.

    Fills ``keep`` (a record: 1 stays), ``actions`` and ``horizons`` (a batch: the horizon it shall carry,
    or NO_HORIZON), and adds to ``counts`` (records by Verdict). Returns the batches that change.
    """
    return int(
        _judge(
            table, states, policy.now_ms, policy.tombstone_retention_ms, policy.keep_keyless, policy.shell_offset,
            keep, actions, horizons, counts,
        )
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _judge(table, states, now_ms, retention_ms, keep_keyless, shell_offset, keep, actions, horizons, counts):
    changed = 0
    at = 0
    for b in range(len(table)):
        row = table[b]
        horizon = row.horizon
        due = horizon != NO_HORIZON and now_ms >= horizon
        kept = 0
        stamp = False
        for i in range(at, at + row.records):
            state = states[i]
            verdict = 0
            if not state & CONTROL:
                if state & KEYLESS:
                    if not keep_keyless:
                        verdict = 1
                elif state & SHADOWED:
                    verdict = 2
                elif state & TOMBSTONE:
                    if due:
                        verdict = 3
                    elif horizon == NO_HORIZON:
                        stamp = True
            counts[verdict] += 1
            keep[i] = verdict == 0
            kept += verdict == 0
        at += row.records
        horizons[b] = now_ms + retention_ms if stamp else horizon
        if kept == row.records and not stamp and kept > 0:
            action = COPY
        elif kept > 0:
            action = REBUILD
        elif row.next_offset == shell_offset:
            action = EMPTY if row.records > 0 else COPY
        else:
            action = DROP
        actions[b] = action
        changed += action != COPY
    return changed
