"""Properties of ``verify`` with an earlier state of a Pulsar topic.

Correct rounds pass, and every change is reported.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.pulsar.format.compacted import encode_record, ledger_custom_metadata
from lastwrite.pulsar.format.entry import decode_entry, encode_entry
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.manifest import read_manifest, replace_manifest
from lastwrite.reports.verification import VerifyReport
from lastwrite.spark.inline import INLINE
from tests.support.kafka.logs import SCRATCH
from tests.support.pulsar.model import START_MS, Author
from tests.support.pulsar.topics import put_ledger, read_compacted, topic_folder

EVENT_TIME = "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"


@contextmanager
def topic(seed: int, ledgers: int = 2) -> Iterator[tuple[Path, Author]]:
    with tempfile.TemporaryDirectory(prefix="lastwrite-topic-", dir=SCRATCH) as root:
        folder, author = topic_folder(Path(root) / "now"), Author(seed)
        for n in range(ledgers):
            write(folder, author, 10 + n)
        yield folder, author


def write(folder: Path, author: Author, ledger: int) -> None:
    entries = author.entries(25)
    put_ledger(folder, ledger, entries, 2000 + max(map(len, entries)))


def copied(folder: Path) -> Path:
    """Copy the topic's current state to another archive."""
    archive = folder.parents[3].with_name("before")
    shutil.rmtree(archive, ignore_errors=True)
    shutil.copytree(folder.parents[3], archive)
    return archive.joinpath(*folder.parts[-4:])


def compact(
    folder: Path, by_event_time: bool = False, retain: bool = False, like_broker: bool = False
) -> None:
    config: dict[str, object] = {"topicCompactionRetainNullKey": retain}
    if by_event_time:
        config["compactionServiceFactoryClassName"] = EVENT_TIME
    lastwrite.compact(
        str(folder), config=config, now_ms=START_MS, spark=INLINE, like_broker=like_broker
    )


def verified(folder: Path, before: Path) -> VerifyReport:
    report = lastwrite.verify(str(folder), before=str(before))
    report.to_dict()
    return report


@settings(max_examples=settings().max_examples // 2)
@given(st.integers(0, 1 << 30), st.booleans(), st.booleans(), st.booleans())
def test_every_correct_round_is_verified(
    seed: int, by_event_time: bool, retain: bool, like_broker: bool
) -> None:
    with topic(seed) as (folder, author):
        for ledger in (20, 30):
            before = copied(folder)
            compact(folder, by_event_time, retain, like_broker)
            report = verified(folder, before)
            assert report.violations == [] and report.exit_status == 0
            write(folder, author, ledger)


# ---------------------------------------------------------------------- faults


def rewrite(
    folder: Path, change: Callable[[list[tuple[Position, bytes]]], list[tuple[Position, bytes]]]
) -> None:
    """Replace the records of the compacted ledger, with a matching manifest and index."""
    manifest = read_manifest(str(folder))
    assert manifest is not None
    records = change(read_compacted(folder))
    entries = [encode_record(place, -1, body) for place, body in records]
    path = put_ledger(
        folder, 99, entries, custom=ledger_custom_metadata(manifest.topic, manifest.to)
    )
    messages = sum(
        len(decode_entry(body, 0, 0).metadata.compacted_batch_indexes) or 1 for _, body in records
    )
    replace_manifest(
        str(folder),
        replace(
            manifest,
            ledger=99,
            object=path.name,
            entries=len(entries),
            size_bytes=sum(map(len, entries)),
            messages=messages,
            from_=records[0][0],
            to=records[-1][0],
        ),
    )


def singles(records: list[tuple[Position, bytes]]) -> list[int]:
    """The positions of entries that count as one message with a key."""
    found = [decode_entry(body, 0, 0) for _, body in records]
    return [
        n
        for n, entry in enumerate(found)
        if not entry.is_readable_batch
        and entry.metadata.partition_key is not None
        and not entry.metadata.num_chunks_from_msg
    ]


def test_missing_message_is_found(tmp_path: Path) -> None:
    with topic(7) as (folder, _):
        before = copied(folder)
        compact(folder)

        def without_one(records: list[tuple[Position, bytes]]) -> list[tuple[Position, bytes]]:
            n = random.Random(1).choice(singles(records))
            return records[:n] + records[n + 1 :]

        rewrite(folder, without_one)
        report = verified(folder, before)
        assert report.exit_status == 5
        assert [
            (found.promise, found.message.partition(": ")[2]) for found in report.violations
        ] == [("lost", "the last write of its key is missing")]


def test_changed_message_is_found() -> None:
    with topic(7) as (folder, _):
        before = copied(folder)
        compact(folder)

        def with_another_value(
            records: list[tuple[Position, bytes]],
        ) -> list[tuple[Position, bytes]]:
            n = singles(records)[0]
            place, body = records[n]
            records[n] = place, encode_entry(decode_entry(body, 0, 0).metadata_bytes, b"another")
            return records

        rewrite(folder, with_another_value)
        assert {found.promise for found in verified(folder, before).violations} == {"changed"}


def test_unknown_message_is_found() -> None:
    with topic(7) as (folder, _):
        before = copied(folder)
        compact(folder)
        at = read_manifest(str(folder)).horizon.ledger  # type: ignore[union-attr]

        def with_one_of_an_old_place(
            records: list[tuple[Position, bytes]],
        ) -> list[tuple[Position, bytes]]:
            [body] = [body for _, body in records if not decode_entry(body, 0, 0).is_batch][:1]
            return [(Position(at - 5, 0), body), *records]

        rewrite(folder, with_one_of_an_old_place)
        assert "unknown" in {found.promise for found in verified(folder, before).violations}


def test_compaction_in_another_order_is_found() -> None:
    """Event time keeps other messages than publishing order."""
    with topic(11, ledgers=4) as (folder, _):
        before = copied(folder)
        compact(folder, by_event_time=True)
        assert verified(folder, before).exit_status == 0
        manifest = read_manifest(str(folder))
        assert manifest is not None
        replace_manifest(str(folder), replace(manifest, order="publishing"))
        assert {"lost", "superseded"} <= {
            found.promise for found in verified(folder, before).violations
        }


def test_missing_keyless_message_is_found_if_it_must_stay() -> None:
    with topic(11, ledgers=4) as (folder, _):
        before = copied(folder)
        compact(folder, retain=False)
        manifest = read_manifest(str(folder))
        assert manifest is not None
        replace_manifest(str(folder), replace(manifest, retain_null_key=True))
        found = verified(folder, before).violations
        assert {each.promise for each in found} == {"lost"} and any(
            "retains messages without a key" in each.message for each in found
        )


def test_missing_backlog_ledger_is_found() -> None:
    with topic(7) as (folder, author):
        compact(folder)
        write(folder, author, 20)
        before = copied(folder)
        for path in folder.glob("*-ledger-20*"):
            path.unlink()
        report = verified(folder, before)
        assert [(found.promise, found.message) for found in report.violations] == [
            ("backlog", "raw ledger 20 is beyond the horizon, but it is missing")
        ]


def test_damage_of_the_earlier_state_ends_the_comparison() -> None:
    with topic(7) as (folder, _):
        before = copied(folder)
        compact(folder)
        path = next(path for path in before.iterdir() if path.name.endswith("-ledger-10"))
        content = bytearray(path.read_bytes())
        content[170] ^= 1
        path.write_bytes(content)
        report = verified(folder, before)
        assert report.exit_status == 3 and path.name in str(report.partitions[0].reason)


def test_missing_topic_is_found(tmp_path: Path) -> None:
    with topic(7) as (folder, _):
        before = copied(folder)
        put_ledger(
            topic_folder(before.parents[3], "persistent://public/default/u"),
            5,
            Author(1).entries(3),
        )
        report = lastwrite.verify(str(folder.parents[3]), before=str(before.parents[3]))
        assert [found.promise for found in report.violations] == [
            "partition"
        ] and report.exit_status == 5


def test_comparison_beyond_the_memory_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lastwrite.pulsar.look.proof._MESSAGE_BYTES", 1 << 40)
    with topic(7) as (folder, _):
        before = copied(folder)
        compact(folder)
        report = verified(folder, before)
        assert report.exit_status == 1 and "raise --memory" in str(report.partitions[0].reason)
