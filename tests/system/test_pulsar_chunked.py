"""Tests that the chunks of a message stay and are removed together, round after round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import lastwrite
from lastwrite.pulsar.format.entry import PulsarMessage, decode_entry, encode_entry, encode_single
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.topics import put_ledger, read_compacted, topic_folder


def chunk(uuid: str, number: int, count: int = 3, key: bytes | None = b"k") -> bytes:
    meta, payload = encode_single(PulsarMessage(key=key, value=b"a third of it", publish_time=1))
    return encode_entry(
        replace(
            meta, uuid=uuid, num_chunks_from_msg=count, chunk_id=number, total_chunk_msg_size=39
        ),
        payload,
    )


def single(key: bytes, value: bytes) -> bytes:
    return encode_entry(*encode_single(PulsarMessage(key=key, value=value, publish_time=1)))


def after(folder: Path, ledger: int, entries: list[bytes], like_broker: bool = False) -> list[str]:
    """What remains after a round over one more ledger: chunks as uuid and number, others by key."""
    put_ledger(folder, ledger, entries)
    report = lastwrite.compact(str(folder), spark=INLINE, like_broker=like_broker)
    assert [each.status for each in report.partitions] == [Status.CLEANED]
    left = [decode_entry(body, *place).metadata for place, body in read_compacted(folder)]
    return [
        f"{each.uuid}/{each.chunk_id}" if each.uuid else (each.partition_key or b"").decode()
        for each in left
    ]


def test_chunks_stay_and_are_removed_together(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path)
    first = [chunk("one", n) for n in range(3)]
    # Message "two" lacks its last chunk, and "none" has no key to compact by.
    begun = [chunk("two", 0), single(b"j", b"v"), chunk("two", 1), chunk("none", 0, key=None)]
    assert after(folder, 10, first + begun) == ["one/0", "one/1", "one/2", "two/0", "j", "two/1"]
    assert after(folder, 11, [chunk("two", 2)]) == ["two/0", "j", "two/1", "two/2"]
    # The producer sent only the first chunk. The last complete message of the key is the earlier
    # one.
    assert after(folder, 12, [chunk("lost", 0)]) == ["two/0", "j", "two/1", "two/2", "lost/0"]
    assert after(folder, 13, [single(b"j", b"w")]) == ["two/0", "two/1", "two/2", "lost/0", "j"]
    assert after(folder, 14, [single(b"k", b"")]) == ["j"]


def test_like_broker_round_keeps_only_the_last_chunk(tmp_path: Path) -> None:
    entries = [chunk("one", n) for n in range(3)]
    assert after(topic_folder(tmp_path), 10, entries, like_broker=True) == ["one/2"]
