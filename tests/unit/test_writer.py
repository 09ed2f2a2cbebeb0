"""Tests of writing a partition as a broker lays it out."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.encoding.compression import Codec
from lastwrite.errors import CommitConflict, InvalidConfig, LogError
from lastwrite.kafka.format.batch import iter_batches
from lastwrite.kafka.format.batch_layout import Batch, Record
from lastwrite.model.log import TopicPartition
from lastwrite.storage import files
from tests.support.files import contents
from tests.support.kafka.logs import plain_index

T0 = TopicPartition("t", 0)
EMPTY_SNAPSHOT = 10


def batches_of(segment: Path) -> list[Batch]:
    return [batch for _, batch in iter_batches(memoryview(segment.read_bytes()))]


def names(folder: Path, ending: str = "") -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.endswith(ending))


def write(root: Path, count: int, *, roll: bool = False, **settings: object) -> Path:
    with TopicWriter(str(root), T0, **settings) as writer:  # type: ignore[arg-type]
        for n in range(count):
            value = None if n % 7 == 3 else b"v%d" % n
            writer.append(
                b"k%d" % (n % 10), value, 1000 + n * 37 % 500, [(b"h", b"x"), (b"h", None)]
            )
        if roll:
            writer.roll()
    return root / "t-0"


@pytest.mark.parametrize("codec", list(Codec))
def test_written_records_are_read_back(tmp_path: Path, codec: Codec) -> None:
    folder = write(tmp_path, 200, segment_bytes=2000, batch_bytes=500, codec=codec)
    batches = [batch for name in names(folder, ".log") for batch in batches_of(folder / name)]
    records = [record for batch in batches for record in batch.records]
    assert records == [
        Record(
            n,
            1000 + n * 37 % 500,
            b"k%d" % (n % 10),
            None if n % 7 == 3 else b"v%d" % n,
            ((b"h", b"x"), (b"h", None)),
        )
        for n in range(200)
    ]


def test_null_and_empty_are_distinct(tmp_path: Path) -> None:
    with TopicWriter(str(tmp_path), T0) as writer:
        offsets = [writer.append(None, b"", 1), writer.append(b"", None, 2)]
    (batch,) = batches_of(tmp_path / "t-0" / f"{0:020}.log")
    assert offsets == [0, 1]
    assert [(record.key, record.value) for record in batch.records] == [(None, b""), (b"", None)]


@pytest.mark.parametrize("interval", [0, 300, 4096])
def test_segments_roll_before_they_overflow_and_are_indexed_by_batch(
    tmp_path: Path, interval: int
) -> None:
    folder = write(
        tmp_path, 300, segment_bytes=1500, batch_bytes=200, index_interval_bytes=interval
    )
    logs = names(folder, ".log")
    assert len(logs) > 3
    end = 0
    for name in logs:
        batches = batches_of(folder / name)
        base = int(name[:20])
        assert base == end == batches[0].header.base_offset
        end = batches[-1].header.last_offset + 1
        size = (folder / name).stat().st_size
        assert size <= 1500
        if end < 300:  # the next batch would have exceeded the segment size
            assert size + batches_of(folder / f"{end:020}.log")[0].header.size_bytes > 1500
        offsets, times = plain_index(base, [batch.header for batch in batches], interval)
        assert (folder / name).with_suffix(".index").read_bytes() == offsets
        assert (folder / name).with_suffix(".timeindex").read_bytes() == times
    assert end == 300


def test_batch_ends_by_size_or_by_flush(tmp_path: Path) -> None:
    with TopicWriter(str(tmp_path), T0, batch_bytes=100) as writer:
        writer.append(b"a", b"x", 1)
        writer.flush_batch()
        writer.flush_batch()
        writer.append(b"large", b"y" * 1000, 2)
        writer.append(b"b", b"x", 3)
        writer.append(b"c", b"x", 4)
    batches = batches_of(tmp_path / "t-0" / f"{0:020}.log")
    assert [len(batch.records) for batch in batches] == [1, 1, 2]
    assert [batch.header.partition_leader_epoch for batch in batches] == [0, 0, 0]


def test_side_files_equal_those_of_a_clean_shutdown(tmp_path: Path) -> None:
    folder = write(tmp_path, 60, segment_bytes=1500, batch_bytes=500)
    bases = [int(name[:20]) for name in names(folder, ".log")]
    assert [int(name[:20]) for name in names(folder, ".snapshot")] == [*bases[1:], 60]
    assert all(
        (folder / name).stat().st_size == EMPTY_SNAPSHOT for name in names(folder, ".snapshot")
    )
    assert (folder / "leader-epoch-checkpoint").read_bytes() == b"0\n1\n0 0\n"
    assert (folder / "partition.metadata").read_bytes().startswith(b"version: 0\ntopic_id: ")
    assert (tmp_path / "replication-offset-checkpoint").read_bytes() == b"0\n1\nt 0 60\n"
    assert (tmp_path / "recovery-point-offset-checkpoint").read_bytes() == b"0\n1\nt 0 60\n"
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "cleaner-offset-checkpoint").exists()


def test_rolled_log_ends_in_an_empty_segment(tmp_path: Path) -> None:
    folder = write(tmp_path, 60, roll=True)
    assert names(folder, ".log") == [f"{0:020}.log", f"{60:020}.log"]
    assert (folder / f"{60:020}.log").stat().st_size == 0
    assert names(folder, "index") == [f"{0:020}.index", f"{0:020}.timeindex"]
    assert names(folder, ".snapshot") == [f"{60:020}.snapshot"]


def test_rolling_an_empty_segment_changes_nothing(tmp_path: Path) -> None:
    with TopicWriter(str(tmp_path), T0) as writer:
        writer.roll()
        writer.append(b"k", b"v", 1)
        writer.roll()
        writer.roll()
        assert writer.segment_count == 2
    assert len(names(tmp_path / "t-0", ".log")) == 2


def test_empty_topic_is_one_empty_segment(tmp_path: Path) -> None:
    folder = write(tmp_path, 0)
    assert names(folder) == [f"{0:020}.log", "partition.metadata"]
    assert (tmp_path / "replication-offset-checkpoint").read_bytes() == b"0\n1\nt 0 0\n"


def test_topics_share_the_checkpoints_of_their_root(tmp_path: Path) -> None:
    write(tmp_path, 5)
    with TopicWriter(str(tmp_path), TopicPartition("other", 3)) as writer:
        writer.append(b"k", b"v", 1)
    assert (tmp_path / "replication-offset-checkpoint").read_bytes() == b"0\n2\nt 0 5\nother 3 1\n"


def test_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = (
        write(tmp_path / name, 100, segment_bytes=1500, batch_bytes=300) for name in ("one", "two")
    )
    assert contents(one) == contents(two)


def test_existing_partition_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 5)
    with pytest.raises(CommitConflict, match="t-0: the partition's folder already exists"):
        TopicWriter(str(tmp_path), T0)


def test_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(InvalidConfig, match="does not fit into segments of 100"),
        TopicWriter(str(tmp_path), T0, segment_bytes=100) as writer,
    ):
        writer.append(b"k", b"v" * 100, 1)
        writer.flush_batch()


def test_error_leaves_no_sign_of_a_clean_shutdown(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TopicWriter(str(tmp_path), T0) as writer:
        writer.append(b"k", b"v", 1)
        raise RuntimeError
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert not (tmp_path / "replication-offset-checkpoint").exists()


def test_full_disk_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TopicWriter(str(tmp_path), T0)
    writer.append(b"k", b"v", 1)
    monkeypatch.setattr(files, "faults", files.FaultPoints(point=1, error=errno.ENOSPC))
    with pytest.raises(LogError, match="the disk is full — free some space"):
        writer.close()
