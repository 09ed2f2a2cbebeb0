"""Tests of the streaming source, called as Spark calls it, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
pytest.importorskip("pyspark.sql.streaming.datasource", reason="limits came with PySpark 4.2")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows  # noqa: E402

import lastwrite  # noqa: E402
from lastwrite.decoding.options import DecodingConfig  # noqa: E402
from lastwrite.errors import CommitConflict, InvalidConfig, LogError, LogHeld  # noqa: E402
from lastwrite.kafka.format.names import PARTITION_METADATA  # noqa: E402
from lastwrite.kafka.format.text import encode_partition_metadata, topic_id_text  # noqa: E402
from lastwrite.model.log import TopicPartition  # noqa: E402
from lastwrite.rows.decoded import DecodedRows  # noqa: E402
from lastwrite.source import stream  # noqa: E402
from lastwrite.source.offsets import (  # noqa: E402
    UNDECIDED,
    decode_identities,
    decode_offsets,
    limited,
)  # noqa: E402
from lastwrite.source.options import parse  # noqa: E402
from tests.support.kafka.logs import encode_model, write_checkpoint, write_segment  # noqa: E402
from tests.support.kafka.model import ModelBatch, ModelRecord  # noqa: E402

ALL = ReadAllAvailable()


class Root:
    """A log directory that grows by segments with batches of five records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ends: dict[str, int] = {}

    def add(self, name: str, records: int) -> None:
        first = self.ends.get(name, 0)
        batches = []
        for base in range(first, first + records, 5):
            offsets = range(base, min(base + 5, first + records))
            rows = [ModelRecord(at, 1000 + at, b"k%d" % (at % 7), b"v%d" % at) for at in offsets]
            batches.append(
                encode_model(
                    ModelBatch(
                        base, offsets[-1], tuple(rows), 0, False, 1000 + base, 1000 + offsets[-1]
                    )
                )
            )
        write_segment(self.path / name, first, batches, 200)
        self.ends[name] = first + records
        for file in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
            write_checkpoint(self.path, file, self.ends)
        (self.path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":1}')


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "logs")


def columns(*names: str) -> DecodedRows:
    return DecodedRows(DecodingConfig(), names, None)


def asked(path: Path | str, **options: str) -> stream.StreamReader:
    found = parse({"path": str(path), "subscribe": "t", **options}, is_stream=True)
    return stream.StreamReader(found, columns("topic", "partition", "offset", "key", "value"))


def read(reader: stream.StreamReader, start: Any, end: Any) -> list[tuple[int, int]]:
    """Partition and offset of each record in a micro-batch."""
    rows = [
        (row["partition"], row["offset"])
        for piece in reader.partitions(start, end)
        for batch in reader.read(piece)
        for row in batch.to_pylist()
    ]
    return sorted(rows)


def shown(*ends: int) -> dict[str, dict[str, int]]:
    return {"t": {str(n): end for n, end in enumerate(ends)}}


def test_stream_from_the_earliest_offset_follows_the_log(root: Root) -> None:
    root.add("t-0", 40)
    reader = asked(root.path, startingOffsets="earliest")
    start = reader.initialOffset()
    assert start == shown(0)
    end = reader.latestOffset(start, ALL)
    assert end == shown(40) == reader.reportLatestOffset()
    assert read(reader, start, end) == [(0, at) for at in range(40)]
    assert reader.latestOffset(end, ALL) == end
    root.add("t-0", 30)
    root.add("t-1", 10)
    root.add("other-0", 10)
    later = reader.latestOffset(end, ALL)
    assert later == shown(70, 10)
    rows = [(0, at) for at in range(40, 70)] + [(1, at) for at in range(10)]
    assert read(reader, end, later) == rows
    # after a restart the offsets alone give the same rows
    again = asked(root.path, startingOffsets="earliest")
    assert read(again, end, later) == rows
    assert read(again, shown(13), shown(55, 10)) == [(0, at) for at in range(13, 55)] + [
        (1, at) for at in range(10)
    ]


def test_micro_batch_respects_its_maximum(root: Root) -> None:
    root.add("t-0", 90)
    root.add("t-1", 10)
    reader = asked(root.path, startingOffsets="earliest", maxOffsetsPerTrigger="20")
    assert reader.getDefaultReadLimit() == ReadMaxRows(20)
    start, seen = reader.initialOffset(), []
    while (end := reader.latestOffset(start, ReadMaxRows(20))) != start:
        rows = read(reader, start, end)
        assert len(rows) <= 21
        seen += rows
        start = end
    assert sorted(seen) == [(0, at) for at in range(90)] + [(1, at) for at in range(10)]
    assert reader.latestOffset(shown(0, 0), ALL) == shown(90, 10)


def test_partition_shares_equal_sparks() -> None:
    a, b, c = (TopicPartition("t", n) for n in range(3))
    end = {a: 1000, b: 1, c: 50}
    assert limited({a: 0, b: 0, c: 50}, end, {}, 10) == {a: 9, b: 1, c: 50}
    assert limited({}, end, {a: 990, b: 0, c: 50}, 5) == {a: 994, b: 1, c: 50}


def test_batch_below_the_minimum_waits(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stream.time, "monotonic", lambda: now[0])
    root.add("t-0", 10)
    reader = asked(
        root.path, startingOffsets="earliest", minOffsetsPerTrigger="20", maxTriggerDelay="30s"
    )
    limit = reader.getDefaultReadLimit()
    first = reader.latestOffset(shown(0), limit)
    assert first == shown(10)  # no wait for the first micro-batch, as in Spark's Kafka source
    root.add("t-0", 15)
    assert reader.latestOffset(first, limit) == first
    now[0] += 31
    assert reader.latestOffset(first, limit) == shown(25)
    root.add("t-0", 15)
    assert reader.latestOffset(shown(25), limit) == shown(25)
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(shown(25), limit) == shown(40)


def test_available_now_fixes_its_end_once(root: Root) -> None:
    root.add("t-0", 40)
    reader = asked(root.path, startingOffsets="earliest")
    reader.prepareForTriggerAvailableNow()
    root.add("t-0", 40)
    assert reader.latestOffset(shown(0), ReadMaxRows(5)) == shown(40)
    assert reader.latestOffset(shown(40), ALL) == shown(40)


def test_latest_start_is_decided_before_the_first_row(root: Root) -> None:
    root.add("t-0", 40)
    reader = asked(root.path)
    start = reader.initialOffset()
    assert start == UNDECIDED
    end = reader.latestOffset(start, ALL)
    assert end == shown(40)
    assert reader.partitions(start, end) == []
    root.add("t-0", 5)
    assert read(reader, end, reader.latestOffset(end, ALL)) == [(0, at) for at in range(40, 45)]
    some = asked(root.path, startingOffsets='{"t":{"0":-1}}')
    assert some.initialOffset() == UNDECIDED
    assert some.latestOffset(UNDECIDED, ALL) == shown(45)
    given = asked(root.path, startingOffsets='{"t":{"0":7}}')
    assert given.initialOffset() == shown(7)
    by_time = asked(root.path, startingTimestamp="1011")
    assert by_time.initialOffset() == shown(11)


@pytest.mark.parametrize(
    ("start", "end", "words"),
    [
        (shown(3), shown(40), "read from offset 3 to 40, but the log contains offsets 5 to 40"),
        (shown(5), shown(41), "from offset 5 to 41"),
        (shown(20), shown(10), "from offset 20 to 10"),
        (shown(10, 5), shown(40), "t-1 no longer exists"),
        ({}, shown(40), "t-0 is new, but starts at offset 5 instead of 0"),
    ],
)
def test_deleted_offsets_are_data_loss(root: Root, start: Any, end: Any, words: str) -> None:
    root.add("t-0", 40)
    write_checkpoint(root.path, "log-start-offset-checkpoint", {"t-0": 5})
    with pytest.raises(CommitConflict, match=words):
        asked(root.path).partitions(start, end)
    with pytest.warns(UserWarning, match=words):
        asked(root.path, failOnDataLoss="false").partitions(start, end)


@pytest.mark.spark
def test_range_may_have_fewer_records_after_a_cleaner(root: Root, tmp_path: Path) -> None:
    """As with Spark's Kafka source, the offset range has fewer records, and there is no error."""
    root.add("t-0", 40)
    root.add("t-0", 10)
    archive = str(tmp_path / "archive")
    lastwrite.fetch([str(root.path)], archive, topic="t", include_active=True)
    reader = asked(archive, startingOffsets="earliest")
    whole = read(reader, shown(0), shown(50))
    assert len(whole) == 50
    pieces = reader.partitions(shown(0), shown(50))
    lastwrite.compact(archive, config={"min.cleanable.dirty.ratio": 0}, topic="t")
    # planned before the round and read after it: replaced objects are kept for a while
    assert sum(batch.num_rows for piece in pieces for batch in reader.read(piece)) == 50
    fewer = read(asked(archive), shown(0), shown(50))
    assert 7 <= len(fewer) < 50
    assert set(fewer) < set(whole)
    assert reader.latestOffset(shown(0), ALL) == shown(50)
    root.add("t-0", 20)
    lastwrite.fetch([str(root.path)], archive, topic="t", include_active=True)
    assert read(reader, shown(50), reader.latestOffset(shown(50), ALL)) == [
        (0, at) for at in range(50, 70)
    ]


def test_read_covers_only_the_requested_range(root: Root) -> None:
    root.add("t-0", 1000)
    (piece,) = asked(root.path).partitions(shown(500), shown(505))
    assert 0 < piece.unit.piece.bytes < 2000
    pieces = asked(root.path, maxRecordsPerPartition="10").partitions(shown(503), shown(525))
    assert [each.unit.span for each in pieces] == [(503, 513), (513, 523), (523, 525)]
    more = asked(root.path, minPartitions="4").partitions(shown(0), shown(1000))
    assert len(more) >= 4


def test_locked_log_is_retried(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    root.add("t-0", 10)
    reader = asked(root.path, startingOffsets="earliest")
    now, held = [0.5], [True]
    monkeypatch.setattr(stream.time, "monotonic", lambda: now[0])

    def listed(options: Any) -> Any:
        if held[0]:
            raise LogHeld("a broker is starting on this log")
        return real(options)

    real = stream.listed
    monkeypatch.setattr(stream, "listed", listed)
    assert reader.latestOffset(shown(0), ALL) == shown(0)
    held[0] = False
    assert reader.latestOffset(shown(0), ALL) == shown(10)
    held[0] = True
    assert reader.latestOffset(shown(10), ALL) == shown(10)
    now[0] += 600
    with pytest.raises(LogHeld):
        reader.latestOffset(shown(10), ALL)


def test_stream_options_are_parsed_or_refused(tmp_path: Path) -> None:
    for name, value in {
        "endingOffsets": "latest",
        "view": "compacted",
        "maxTriggerDelay": "soon",
        "maxOffsetsPerTrigger": "0",
    }.items():
        with pytest.raises(InvalidConfig):
            parse({"path": str(tmp_path), name: value}, is_stream=True)
    assert parse({"path": "p", "maxTriggerDelay": "2m"}, is_stream=True).max_delay_s == 120
    assert parse({"path": "p", "maxTriggerDelay": "1500"}, is_stream=True).max_delay_s == 1.5
    with pytest.raises(InvalidConfig):
        stream.OldStreamReader(parse({"path": "p", "maxOffsetsPerTrigger": "5"}), columns("key"))
    with pytest.raises(LogError):
        decode_offsets({"t": {"x": 1}})


def test_vanished_topic_is_an_error(root: Root) -> None:
    root.add("t-0", 10)
    root.add("u-0", 10)
    reader = asked(root.path)
    shutil.rmtree(root.path / "t-0")
    with pytest.raises(LogError, match="no topic 't'"):
        reader.latestOffset(shown(10), ALL)


class RecreatedTopic:
    """Topic ``t``: a stream has read 40 records, then it is deleted and recreated with
    55 records.
    """

    def __init__(self, root: Root, make_path: Callable[[], Path]) -> None:
        self.root, self._make_path = root, make_path
        self._create("first", 40)
        self.reader = self.open()
        start = self.reader.initialOffset()
        self.checkpoint = self.reader.latestOffset(start, ALL)
        assert read(self.reader, start, self.checkpoint) == [(0, at) for at in range(40)]
        shutil.rmtree(root.path)
        root.ends = {}
        self._create("second", 55)

    @property
    def ids(self) -> dict[str, Any]:
        """The topic ids in the checkpoint."""
        return {name: ids for name, ids in self.checkpoint.items() if name != "t"}

    def _create(self, id_: str, records: int) -> None:
        self.root.add("t-0", records)
        topic_id = topic_id_text(id_.ljust(16).encode())
        metadata = self.root.path / "t-0" / PARTITION_METADATA
        metadata.write_bytes(encode_partition_metadata(topic_id))
        self.path = self._make_path()

    def open(self, **options: str) -> stream.StreamReader:
        return asked(self.path, startingOffsets="earliest", **options)


@pytest.fixture(params=["a log directory", "an archive"])
def recreated(request: pytest.FixtureRequest, root: Root, tmp_path: Path) -> RecreatedTopic:
    def make_archive() -> Path:
        archive = tmp_path / "archive"
        shutil.rmtree(archive, ignore_errors=True)
        lastwrite.fetch([str(root.path)], str(archive), topic="t", include_active=True)
        return archive

    in_place = request.param == "a log directory"
    return RecreatedTopic(root, (lambda: root.path) if in_place else make_archive)


def test_recreated_topic_is_data_loss(recreated: RecreatedTopic) -> None:
    start = recreated.checkpoint
    reader = recreated.open()
    end = reader.latestOffset(start, ALL)
    with pytest.raises(CommitConflict, match="deleted and created again.*new checkpoint"):
        reader.partitions(start, end)
    # both remedies return all records of the new topic
    everything = [(0, at) for at in range(55)]
    fresh = recreated.open()
    begin = fresh.initialOffset()
    assert read(fresh, begin, fresh.latestOffset(begin, ALL)) == everything
    lenient = recreated.open(failOnDataLoss="false")
    with pytest.warns(UserWarning, match="deleted and created again"):
        assert read(lenient, start, lenient.latestOffset(start, ALL)) == everything
    assert read(lenient, end, lenient.latestOffset(end, ALL)) == []


def test_recreated_topic_is_read_completely_in_small_batches(recreated: RecreatedTopic) -> None:
    reader = recreated.open(failOnDataLoss="false", maxOffsetsPerTrigger="20")
    start, seen = recreated.checkpoint, []
    with pytest.warns(UserWarning, match="deleted and created again"):
        while (end := reader.latestOffset(start, ReadMaxRows(20))) != start:
            seen += read(reader, start, end)
            start = end
    assert seen == [(0, at) for at in range(55)]


def test_planned_batch_of_a_recreated_topic_is_data_loss(recreated: RecreatedTopic) -> None:
    """The batch's offsets were planned before the topic was deleted."""
    first, planned = shown(10) | recreated.ids, recreated.checkpoint
    with pytest.raises(CommitConflict, match="deleted and created again"):
        recreated.open().partitions(first, planned)
    reader = recreated.open(failOnDataLoss="false")
    with pytest.warns(UserWarning, match="deleted and created again"):
        assert read(reader, first, planned) == []
        later = reader.latestOffset(planned, ALL)
        assert read(reader, planned, later) == [(0, at) for at in range(55)]


def test_checkpoint_without_topic_ids_is_accepted(recreated: RecreatedTopic) -> None:
    reader = recreated.open()
    end = reader.latestOffset(shown(40), ALL)
    assert decode_identities(end) != {}
    assert read(reader, shown(40), end) == [(0, at) for at in range(40, 55)]
    assert reader.latestOffset(shown(55), ALL) == shown(55)
