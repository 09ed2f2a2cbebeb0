"""Tests that ``explain`` of RocketMQ queues and Pulsar topics agrees with what ``compact`` does at
that time.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.pulsar.format.entry import (
    Metadata,
    PulsarMessage,
    encode_batch,
    encode_entry,
    encode_single,
)
from lastwrite.reports.explanation import (
    LogRegion,
    PartitionExplanation,
    Reason,
    RecordExplanation,
    RecordOutcome,
    Rule,
)
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.model import COMMIT
from tests.support.pulsar.topics import put_ledger, topic_folder
from tests.support.rocketmq.model import START_MS, ModelQueue, message, write_store

DAY = 86_400_000


def explained(path: Path, key: bytes | None = None, **arguments: Any) -> PartitionExplanation:
    arguments.setdefault("now_ms", START_MS)
    (found,) = lastwrite.explain(str(path), key=key, **arguments).partitions
    return found


def record(path: Path, key: bytes, place: int, **arguments: Any) -> RecordExplanation:
    """The explanation of the key's record at index ``place``."""
    found = explained(path, key, **arguments).records
    assert found is not None
    return found[place]


def reason(path: Path, rule: Rule, **arguments: Any) -> Reason:
    (found,) = [each for each in explained(path, **arguments).reasons if each.rule is rule]
    return found


def compact(path: Path, now_ms: int = START_MS, **arguments: Any) -> str:
    (done,) = lastwrite.compact(str(path), now_ms=now_ms, spark=INLINE, **arguments).partitions
    return str(done.status)


# ---------------------------------------------------------------------- RocketMQ


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A queue with offsets 0 to 9 in a closed and an active file. Keys a and b alternate, and b is
    deleted at 3.
    """
    queue = ModelQueue(46 * 30, 46 * 6)
    for offset in range(10):
        body = b"" if offset == 3 else b"body"
        queue.append(message(offset, "ab"[offset % 2] if offset != 5 else "c", body, START_MS))
    root = tmp_path / "store"
    root.mkdir()
    write_store(root, [queue])
    return root


def test_explain_describes_a_rocketmq_queue(store: Path) -> None:
    found = explained(store)
    assert found.is_due
    assert found.summary.startswith("due: a round now cleans queue offsets 0 to 4; ")
    assert found.in_words is not None and found.in_words.end == "queue offset 10"
    active = reason(store, Rule.ACTIVE_SEGMENT)
    assert active.from_offset == 5 and "are in the active file" in active.message
    first, second, third, *_ = explained(store, b"a").records or ()
    assert first.message == "queue offset 4 is a later write of the key, within the range"
    assert (first.fate, second.fate, third.fate) == (
        RecordOutcome.NEXT_ROUND,
        RecordOutcome.NEXT_ROUND,
        RecordOutcome.LATER,
    )
    assert third.message.startswith("queue offset 8 is a later write of the key, but is above")
    assert third.change is not None and "active segment (from queue offset 5)" in third.change
    assert record(store, b"c", 0).message == "the record is the last write of its key"


def test_tombstone_expires_relative_to_its_store_time(store: Path) -> None:
    found = record(store, b"b", 1)
    assert (found.value_bytes, found.fate) == (None, RecordOutcome.LATER)
    found = record(store, b"b", 1, now_ms=START_MS + DAY)
    assert found.fate is RecordOutcome.NEXT_ROUND
    assert (
        f"it was stored at time {START_MS}, and delete.retention.ms ({DAY}) expired 0 ms ago"
        in (found.message)
    )
    assert compact(store, START_MS + DAY - 1) == "cleaned"
    found = record(store, b"b", 0)
    assert "queue offset 9 is a later write" in found.message
    assert (
        found.change is not None
        and f"after time {START_MS + DAY}, its delete horizon" in found.change
    )


def test_last_message_of_a_queue_is_kept(tmp_path: Path) -> None:
    queue = ModelQueue(46 * 30, 46 * 6)
    queue.append(message(0, "a", b"", START_MS))
    write_store(tmp_path, [queue])
    found = record(tmp_path, b"a", 0, now_ms=START_MS + DAY, include_active=True)
    assert found.fate is RecordOutcome.LATER and "it is the queue's last message" in found.message
    assert compact(tmp_path, START_MS + DAY, include_active=True) == "unchanged"
    assert record(tmp_path, b"a", 0).part is LogRegion.ACTIVE


def test_explain_reports_a_killed_broker(store: Path) -> None:
    (store / "abort").write_bytes(b"4711")
    found = explained(store)
    assert [each.rule for each in found.reasons][0] is Rule.HELD
    assert "was killed" in found.summary and found.waiting is None
    assert explained(store, config={"unclean": True}).waiting is not None


# ---------------------------------------------------------------------- Pulsar


def single(key: str, value: bytes, **changes: Any) -> bytes:
    meta, payload = encode_single(
        PulsarMessage(key=key.encode(), value=value, publish_time=START_MS)
    )
    return encode_entry(replace(meta, **changes), payload)


def batch(*messages: tuple[str, bytes]) -> bytes:
    made = [PulsarMessage(index=n, key=k.encode(), value=v) for n, (k, v) in enumerate(messages)]
    return encode_entry(*encode_batch(made))


def marker(kind: int, transaction: int) -> bytes:
    meta = Metadata(
        producer_name="pulsar.marker",
        sequence_id=0,
        publish_time=START_MS,
        marker_type=kind,
        txnid_least_bits=transaction,
        txnid_most_bits=0,
    )
    return encode_entry(meta, b"")


def test_explain_describes_a_pulsar_topic(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [single("a", b"1"), batch(("a", b"2"), ("b", b""), ("a", b"3"))])
    found = explained(folder, b"a")
    assert found.summary.startswith("due: a round now cleans 10:0 to 10:1; ")
    assert [each.message_id for each in found.records or ()] == [
        "10:0:-1",
        "10:1:-1:0",
        "10:1:-1:2",
    ]
    first, *_, last = found.records or ()
    assert first.message == "10:1, index 2 is a later write of the key, within the range"
    assert (last.fate, last.message) == (
        RecordOutcome.STAYS,
        "the record is the last write of its key",
    )
    deleted = record(folder, b"b", 0)
    assert (deleted.fate, deleted.value_bytes) == (RecordOutcome.NEXT_ROUND, None)
    assert "a compacted ledger contains no tombstones" in deleted.message
    assert compact(folder) == "cleaned"
    found = explained(folder, b"b")
    assert (found.summary, found.records) == ("clean", [])
    assert [each.rule for each in found.reasons] == [Rule.CLEAN]
    assert [each.message_id for each in explained(folder, b"a").records or ()] == ["10:1:-1:2"]


def test_explain_names_an_open_transaction(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    inside: dict[str, Any] = {"txnid_least_bits": 7, "txnid_most_bits": 0}
    put_ledger(folder, 10, [single("a", b"1"), single("a", b"2", **inside), single("a", b"3")])
    found = reason(folder, Rule.TRANSACTION)
    assert found.message == "an open transaction begins at 10:1"
    first, second, third = explained(folder, b"a").records or ()
    assert first.message.startswith("10:2 is a later write of the key, but is above")
    assert first.change is not None and "open transaction (from 10:1)" in first.change
    assert second.message == "the message was published in a transaction that is still open"
    assert third.message == "the record is the last write of its key"
    assert compact(folder) == "cleaned"
    assert compact(folder) == "skipped"
    put_ledger(folder, 11, [marker(COMMIT, 7)])
    fates = [each.fate for each in explained(folder, b"a").records or ()]
    assert fates == [RecordOutcome.NEXT_ROUND, RecordOutcome.NEXT_ROUND, RecordOutcome.STAYS]
    assert compact(folder) == "cleaned"


def test_explain_states_the_distance_to_the_threshold(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = topic_folder(tmp_path)
    put_ledger(folder, 10, [single("a", b"1")])
    found = reason(folder, Rule.THRESHOLD, config={"compactionThreshold": "1M"})
    assert "compactionThreshold is 1048576" in found.message
    assert found.change.endswith("more bytes; lastwrite compact does not wait for it")
    assert explained(folder, config={"compactionThreshold": "1M"}).is_due
    assert run(["explain", str(folder), "--key", "a"]) == 0
    said = capfd.readouterr().out
    assert "dirty from 10:0, cleanable up to 10:1, end 10:1:" in said and "@10:0:-1  " in said
