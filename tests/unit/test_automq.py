"""AutoMQ's formats, the replay of its metadata log, and what is refused."""

from __future__ import annotations

import base64
import json
import random
import shutil
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

import lastwrite
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, UnsupportedFormat
from lastwrite.kafka.automq.bucket_objects import ObjectVanished
from lastwrite.kafka.automq.cluster_image import ClusterImage, read_cluster_image
from lastwrite.kafka.automq.names import WalKey, decode_wal_key, object_key, wal_prefix
from lastwrite.kafka.automq.payloads import strip_run
from lastwrite.kafka.automq.source import AutomqOptions, AutomqSource, open_source
from lastwrite.kafka.automq.wal_objects import decode_wal_object
from lastwrite.kafka.format.batch import iter_batches
from lastwrite.model.log import ProblemKind, TopicPartition
from tests.support.kafka.automq import (
    NODE_EPOCH,
    WAL_STEP,
    Cluster,
    StreamRecord,
    encode_composite,
    encode_wal,
    record,
)
from tests.support.kafka.metadata import text, write_records

T = TopicPartition("t", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster(tmp_path)
    made.topic("t")
    return made


def opened(cluster: Cluster) -> AutomqSource:
    cluster.write_metadata()
    return open_source(AutomqOptions(address=str(cluster.bucket), metadata=str(cluster.metadata)))


def image_of(folder: Path, *values: bytes) -> ClusterImage:
    path = write_records(folder, f"{0:020d}.log", 0, *values)
    return read_cluster_image(str(path.parent))


def stream(id: int, start: int = 0, *, version: int = 0, tags: bytes = b"") -> bytes:
    return record(501, version, struct.pack(">qqiqb", id, 1, 0, start, 1) + tags)


# ---------------------------------------------------------------------- names


def test_keys_of_objects_spread_by_reversed_digits() -> None:
    assert object_key("_kafka_c", 80) == "05000000/_kafka_c/80"
    assert object_key("_kafka_c", 0x123456789) == "987654321/_kafka_c/4886718345"


def test_keys_of_write_ahead_objects() -> None:
    prefix = wal_prefix("_kafka_c", 1)
    assert prefix == "C4CA4238A0B923820DCC509A6F75849B/_kafka_c/1"
    assert decode_wal_key(f"{prefix}/7/wal/0-67108864") == WalKey(1, 7, 0, 67108864)
    assert decode_wal_key(f"{prefix}_object/7/wal/5") == WalKey(1, 7, 5, None)
    assert decode_wal_key(f"{prefix}/7/wal/x") is None
    assert decode_wal_key("05000000/_kafka_c/80") is None


# ---------------------------------------------------------------------- replay


def test_end_of_a_stream_is_the_greatest_that_was_stated(tmp_path: Path) -> None:
    ends = b"\1" + struct.pack(">qq", 3, 90)
    image = image_of(
        tmp_path,
        record(515, 0, bytes([len(ends) + 1]) + ends),  # a snapshot may have it first
        stream(3, 10),
        record(503, 0, struct.pack(">qqiqqi", 3, 1, 0, 0, 70, 5)),
    )
    assert (image.streams[3].start_offset, image.streams[3].end_offset) == (10, 90)
    assert image.nodes == {5}


def test_tags_stay_when_a_stream_is_trimmed(tmp_path: Path) -> None:
    tags = b"\2" + text("topic") + text("x") + b"\0"
    trimmed = stream(3, 7, version=1, tags=b"\1")
    image = image_of(tmp_path, stream(3, version=1, tags=tags), trimmed)
    assert image.streams[3].tags == {"topic": "x"}
    assert image.streams[3].start_offset == 7


def test_removed_stream_takes_its_objects(tmp_path: Path) -> None:
    own = record(505, 1, struct.pack(">qqqq", 3, 0, 9, 1))
    image = image_of(tmp_path, stream(3), own, record(502, 0, struct.pack(">q", 3)), own)
    assert not image.streams


@pytest.mark.parametrize(("last", "streams"), [(24, {3, 4}), (25, {3}), (None, {3})])
def test_transaction_counts_when_it_has_ended(
    tmp_path: Path, last: int | None, streams: set[int]
) -> None:
    end = [] if last is None else [record(last, 0, b"")]
    image = image_of(tmp_path, stream(3), record(23, 0, b""), stream(4), *end)
    assert image.streams.keys() == streams


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (record(12, 0, text("automq.version") + b"\0\x08"), "automq.version 8, and Lastwrite"),
        (record(501, 2, b""), "S3StreamRecord has version 2"),
        (record(518, 1, b""), "NodeWALUncommittedOffsetsRecord has version 1"),
        (b"\2\0\0", "frame version 2"),
        (record(509, 1, struct.pack(">qqbiq", 7, 9, 2, 2, 0)), "object 7 has type 2"),
        (record(515, 0, b"\2\2"), "end offsets of streams have the magic 0x2"),
    ],
)
def test_unknown_version_is_refused_by_name(tmp_path: Path, value: bytes, words: str) -> None:
    with pytest.raises(UnsupportedFormat, match=words):
        image_of(tmp_path, value)


def test_snapshot_without_its_footer_is_refused(cluster: Cluster) -> None:
    cluster.write_metadata()
    name = "00000000000000000003-0000000001.checkpoint"
    (cluster.metadata / name).write_bytes((cluster.metadata / f"{0:020d}.log").read_bytes())
    with pytest.raises(CorruptLog, match="does not end with its footer") as found:
        read_cluster_image(str(cluster.metadata))
    assert found.value.path == str(cluster.metadata / name)


def test_record_of_an_unknown_type_is_skipped(tmp_path: Path) -> None:
    assert image_of(tmp_path, record(600, 9, b"what"), stream(3)).streams.keys() == {3}


# ---------------------------------------------------------------------- resolving


def test_partition_that_no_broker_opened_is_empty(cluster: Cluster) -> None:
    cluster.write_ahead()
    key = f"{cluster.namespace}/{cluster.parts['t', 0].topic_id}/0"
    cluster.add(record(517, 0, b"\2" + text(key)))
    log = opened(cluster).resolve(T)
    assert (log.segments, log.end_offset, log.problems) == ((), 0, ())


def test_other_cluster_is_refused(cluster: Cluster) -> None:
    (cluster.metadata.parent / "meta.properties").write_text("cluster.id=another\n")
    with pytest.raises(InvalidConfig, match="another cluster than another"):
        opened(cluster)


def test_objects_in_two_buckets_are_refused(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a")
    cluster.upload()
    cluster.add(record(509, 1, struct.pack(">qqbiq", 99, 60, 2, 3 << 2, 0)))
    with pytest.raises(UnsupportedFormat, match=r"data buckets \[0, 3\]"):
        opened(cluster)


def test_link_to_another_bucket_is_refused(cluster: Cluster) -> None:
    for value in (b"a", b"b"):
        cluster.append("t", 0, value)
        cluster.split(cluster.upload() or 0)
    made = cluster.compose(cluster.parts["t", 0].streams["log"])
    assert made is not None
    data = bytearray(cluster.object_path(made).read_bytes())
    data[5 + 12 + 1] = 3  # the bucket of the first link
    cluster.object_path(made).write_bytes(data)
    with pytest.raises(UnsupportedFormat, match="links to data bucket 3"):
        opened(cluster).resolve(T)


def test_object_that_is_not_committed_does_not_count(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a")
    cluster.upload()
    cluster.append("t", 0, b"b")
    cluster.write_ahead()
    stray = StreamRecord(cluster.parts["t", 0].streams["log"], 1, 5, b"never committed")
    cluster.put_object(77, [stray])
    cluster.add(record(509, 1, struct.pack(">qqbiq", 77, 0, 1, 0, 0)))
    cluster.add(record(507, 1, struct.pack(">iqqq", 1, 77, 77, 0)))
    log = opened(cluster).resolve(T)
    assert (log.end_offset, log.committed_end, log.wal_records, log.problems) == (2, 1, 1, ())


def test_streams_of_deleted_topics_are_counted(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a")
    cluster.pending.append(StreamRecord(55, 0, 1, b"of a deleted topic"))
    cluster.upload()
    source = opened(cluster)
    assert not source.resolve(T).problems
    assert source.unknown_streams() == 1


def test_overlapping_objects_are_reported_and_read_once(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a", b"b")
    first = cluster.upload() or 0
    stream_id = cluster.parts["t", 0].streams["log"]
    copied = [each for each in cluster.stored[first] if each.stream == stream_id]
    data = cluster.put_object(88, copied)
    cluster.add(record(509, 1, struct.pack(">qqbiq", 88, len(data), 2, 0, 0)))
    cluster.add(record(505, 1, struct.pack(">qqqq", stream_id, 0, 2, 88)))
    source = opened(cluster)
    log = source.resolve(T)
    (problem,) = log.problems
    assert "stream offsets 0 to 1 in two live objects" in problem.message
    assert len(log.segments[0].runs) == 1


def test_damaged_block_is_named_with_object_stream_and_offsets(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a", b"b")
    object_id = cluster.upload() or 0
    source = opened(cluster)
    (run,) = source.resolve(T).segments[0].runs
    path = cluster.object_path(object_id)
    data = bytearray(path.read_bytes())
    data[run.position + 10 + 17 + 7] ^= 1  # the record's base offset
    path.write_bytes(data)
    words = "does not continue .* stream 1 from stream offset 0, offsets 0 to 1"
    with pytest.raises(CorruptLog, match=words) as found:
        strip_run(source.fetch(run), run)
    assert found.value.at == run.position + 10


def test_object_that_vanishes_after_the_look_is_no_damage(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a")
    object_id = cluster.upload() or 0
    source = opened(cluster)
    (run,) = source.resolve(T).segments[0].runs
    cluster.object_path(object_id).unlink()
    with pytest.raises(ObjectVanished) as vanished:
        source.fetch(run)
    assert vanished.value.keys == {run.key}


# ---------------------------------------------------------------------- the write-ahead log


def wal_bodies(records: Sequence[StreamRecord]) -> list[bytes]:
    return [each.encode() for each in records]


def put_wal(cluster: Cluster, epoch: int, start: int, data: bytes, end: int | None) -> None:
    folder = cluster.wal_folder.parent.parent / str(epoch) / "wal"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / (f"{start}" if end is None else f"{start}-{end}")).write_bytes(data)


def test_records_of_several_epochs_are_read_in_order(cluster: Cluster) -> None:
    for value in (b"a", b"b"):
        cluster.append("t", 0, value)
    first, second = cluster.pending[:-1], cluster.pending[-1:]
    old = encode_wal(0, -1, wal_bodies(first))
    put_wal(cluster, NODE_EPOCH, 0, old, WAL_STEP)
    new = encode_wal(WAL_STEP, -1, wal_bodies(second), NODE_EPOCH + 1)
    put_wal(cluster, NODE_EPOCH + 1, WAL_STEP, new, 2 * WAL_STEP)
    log = opened(cluster).resolve(T)
    assert (log.end_offset, log.problems) == (2, ())
    # What reaches into the next epoch was written after the node was fenced.
    put_wal(cluster, NODE_EPOCH, WAL_STEP, b"fenced", 2 * WAL_STEP)
    assert opened(cluster).resolve(T).end_offset == 2


def test_write_ahead_object_of_version_0_is_read(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a")
    new = encode_wal(0, -1, wal_bodies(cluster.pending))
    # the position of a record is counted from the end of the header, so the records are the same
    old = struct.pack(">Iqqqiq", 0x12345678, 0, len(new) - 48, 0, 1, NODE_EPOCH) + new[48:]
    put_wal(cluster, NODE_EPOCH, 0, old, None)
    log = opened(cluster).resolve(T)
    assert (log.end_offset, log.problems) == (1, ())


def test_trimmed_records_are_not_read(cluster: Cluster) -> None:
    records = [StreamRecord(9, 0, 1, b"old"), StreamRecord(9, 1, 1, b"new")]
    found = decode_wal_object(encode_wal(0, 24 + 33 + 3, wal_bodies(records)), WAL_STEP)
    assert found.records["offset"].tolist() == [0, 24 + 33 + 3]
    assert found.trim_offset == 60
    assert found.torn_at is None


def test_missing_first_object_of_the_write_ahead_log_is_named(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a")
    cluster.upload()
    for value in (b"b", b"c"):
        cluster.append("t", 0, value)
        cluster.write_ahead()
    marker, lost, _ = cluster.wal_paths()
    marker.unlink()  # a node deletes it, because no record is left in it
    assert not opened(cluster).problems
    lost.unlink()
    source = opened(cluster)
    (problem,) = source.problems
    assert "has no object from offset" in problem.message
    log = source.resolve(T)
    assert log.end_offset == 1
    assert any(
        "from stream offset 2 on do not continue it" in each.message for each in log.problems
    )


def test_link_records_refuse_their_partition_only(cluster: Cluster) -> None:
    cluster.topic("u")
    cluster.append("u", 0, b"a")
    cluster.pending.append(StreamRecord(cluster.parts["t", 0].streams["log"], 0, -1, b"\0"))
    cluster.write_ahead()
    source = opened(cluster)
    assert source.resolve(TopicPartition("u", 0)).end_offset == 1
    with pytest.raises(UnsupportedFormat, match="link records"):
        source.resolve(T)


def test_missing_write_ahead_log_is_a_note(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a")
    cluster.upload()
    shutil.rmtree(cluster.wal_folder)
    log = opened(cluster).resolve(T)
    assert {each.kind for each in log.problems} == {ProblemKind.OPEN}
    assert log.end_offset == 1


# ---------------------------------------------------------------------- a running cluster


def run_cluster(cluster: Cluster, acknowledged: list[int], stop: Event) -> None:
    """Append, upload and compact until ``stop`` is set. Deletes replaced objects at once."""
    rng = random.Random(5)
    while not stop.is_set():
        cluster.append("t", 0, *(b"%d" % rng.randrange(9) for _ in range(rng.randrange(1, 4))))
        cluster.write_ahead()
        acknowledged.append(len(cluster.parts["t", 0].batches))
        if rng.random() < 0.3:
            cluster.upload()
        if rng.random() < 0.3 and cluster.sets:
            cluster.split(rng.choice(cluster.sets))
        if rng.random() < 0.1:
            cluster.compose(cluster.parts["t", 0].streams["log"])
        stop.wait(rng.choice([0.001, 0.02]))


def test_running_cluster_is_read_in_a_state_that_existed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, segment_records=10_000, is_running=True)
    cluster.topic("t")
    cluster.write_ahead()
    cluster.write_metadata()
    stop, acknowledged = Event(), [0]
    options = AutomqOptions(address=str(cluster.bucket), metadata=str(cluster.metadata))
    vanished = whole = 0
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_cluster, cluster, acknowledged, stop)
        try:
            for _ in range(100):
                if whole >= 5 and vanished:
                    break
                least = acknowledged[-1]
                try:
                    source = open_source(options)
                    log = source.resolve(T)
                    data = b"".join(
                        bytes(strip_run(source.fetch(run), run)) for run in log.segments[0].runs
                    )
                except ObjectVanished:
                    vanished += 1
                    continue
                assert not log.problems
                batches = [each for _, _, each in cluster.parts["t", 0].batches]
                found = len([*iter_batches(data)])
                assert data == b"".join(batches[:found])
                assert found >= least
                whole += 1
        finally:
            stop.set()
            running.result()
    assert whole >= 5
    assert vanished


# ---------------------------------------------------------------------- secrets


def test_access_keys_are_neither_kept_nor_printed(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.write_metadata()
    log = (cluster.metadata / f"{0:020d}.log").read_bytes()
    assert b"SECRET" in log
    image = read_cluster_image(str(cluster.metadata))
    assert "SECRET" not in repr(image)
    for row in lastwrite.dump(str(cluster.metadata), decode=True):
        assert "SECRET" not in json.dumps(row)
        if row["value"] is not None:
            assert b"SECRET" not in base64.b64decode(row["value"])


def test_damaged_record_with_access_keys_is_not_quoted(tmp_path: Path) -> None:
    pair = text("__automq_node/1") + text("accessKey=SECRET")
    with pytest.raises(LogError) as error:
        image_of(tmp_path, record(516, 0, b"\3" + pair + b"\0"))
    assert "SECRET" not in str(error.value)


def test_composite_with_wrong_links_is_named(cluster: Cluster) -> None:
    for value in (b"a", b"b"):
        cluster.append("t", 0, value)
        cluster.split(cluster.upload() or 0)
    made = cluster.compose(cluster.parts["t", 0].streams["log"])
    assert made is not None
    cluster.object_path(made).write_bytes(encode_composite([]))
    log = opened(cluster).resolve(T)
    (problem,) = log.problems
    assert "offsets 0 to 1 of t-0 are missing" in problem.message


# ---------------------------------------------------------------------- several nodes


def test_stream_that_moved_continues_in_the_log_of_its_old_node(cluster: Cluster) -> None:
    """With fast reassignment, the old node has still to upload what the stream's range states."""
    cluster.append("t", 0, b"a")
    cluster.upload()
    cluster.append("t", 0, b"b")
    cluster.write_ahead()
    log = cluster.parts["t", 0].streams["log"]
    cluster.add(record(503, 0, struct.pack(">qqiqqi", log, 1, 0, 0, 2, 1)))
    cluster.add(record(503, 0, struct.pack(">qqiqqi", log, 2, 1, 2, 2, 2)))
    owed = struct.pack(">i", 1) + b"\2" + struct.pack(">qqq", log, 1, 2) + b"\0"
    cluster.add(record(518, 0, owed))
    found = opened(cluster).resolve(T)
    assert (found.end_offset, found.committed_end) == (2, 1)
    assert {each.kind for each in found.problems} <= {ProblemKind.OPEN}  # node 2 has no log
    options = AutomqOptions(
        address=str(cluster.bucket), metadata=str(cluster.metadata), reads_wal=False
    )
    found = open_source(options).resolve(T)
    assert (found.end_offset, found.problems) == (1, ())


def test_offsets_that_no_node_owes_are_missing(cluster: Cluster) -> None:
    cluster.append("t", 0, b"a")
    cluster.upload()
    log = cluster.parts["t", 0].streams["log"]
    cluster.add(record(503, 0, struct.pack(">qqiqqi", log, 1, 0, 0, 9, 1)))
    (problem,) = opened(cluster).resolve(T).problems
    assert f"stream {log} has the stream offsets 1 to 8 in no object" in problem.message
    assert "offsets 1 to 8 of t-0 are missing" in problem.message
