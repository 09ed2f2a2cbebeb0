"""Tests of appending new records to an archive without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastwrite
from lastwrite.archive.partition_store import partition_store_at
from lastwrite.encoding.compression import Codec
from lastwrite.errors import CommitConflict, InvalidConfig
from lastwrite.kafka.format.partitioner import murmur2, partition_of
from lastwrite.kafka.jobs import append as jobs
from lastwrite.kafka.jobs.append import AppendedPart, AppendJob, Stager
from lastwrite.kafka.store.log_dir import read_partition
from lastwrite.kafka.store.partitions import find_partitions
from lastwrite.model.log import TopicPartition
from lastwrite.model.stores import StoreSettings
from lastwrite.reports.fetching import HoldReason

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"


def begun(
    archive: Path, partitions: int = 1, name: str = "", codec: Codec = Codec.ZSTD
) -> AppendJob:
    return AppendJob(
        archive=str(archive),
        codec=codec,
        new_partitions=partitions,
        stores=StoreSettings(),
        name=name,
    )


def staged(append: AppendJob, records: range, topic: str = "t") -> list[AppendedPart]:
    stager = Stager(append)
    for n in records:
        key = None if n % 5 == 4 else b"k%d" % (n % 50)
        stager.add(topic, None, 1000 + n, key, b"v%d" % n, ((b"h", None),) if n % 2 else ())
    return stager.finish()


def rows(archive: Path, topic: str = "t") -> list[tuple[int, int, int, str | None]]:
    """Partition, offset, timestamp and key of each record that a consumer gets."""
    found = []
    for folder in find_partitions(str(archive), topic):
        number = int(folder.rsplit("/", 1)[1])
        for row in lastwrite.read(str(archive), topic, queue=number):
            found.append((number, row["offset"], row["timestamp"], row["key"]))
    return found


def test_hashes_equal_kafkas() -> None:
    """Source: Kafka's ``UtilsTest.testMurmur2``."""
    for text, expected in {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }.items():
        assert murmur2(text) == expected
    assert {partition_of(b"%d" % n, 3) for n in range(20)} == {0, 1, 2}


@pytest.mark.parametrize("codec", list(Codec))
def test_commit_leaves_only_objects_that_the_manifest_names(tmp_path: Path, codec: Codec) -> None:
    first = begun(tmp_path, codec=codec)
    parts = staged(first, range(400)) + staged(first, range(400, 500))
    assert jobs.commit(first, parts) == {TopicPartition("t", 0): 500}
    second = begun(tmp_path, codec=codec)
    jobs.commit(second, staged(second, range(500, 510)))
    assert [(each[1], each[2]) for each in rows(tmp_path)] == [(n, 1000 + n) for n in range(510)]
    (folder,) = find_partitions(str(tmp_path), "t")
    log = read_partition(folder)
    assert [segment.base_offset for segment in log.segments] == [0, 500]
    assert log.end_offset == 510
    if codec is Codec.ZSTD:
        assert lastwrite.verify(str(tmp_path)).partitions[0].reason is None
    names = {each.key for each in partition_store_at(folder).store.list("")}
    seen = partition_store_at(folder).read()
    assert seen is not None
    kept = {each.key for each in seen.manifest.objects}
    assert names == kept | {"manifest.json"}


def test_key_hash_chooses_the_partition_and_a_new_topic_gets_all_partitions(tmp_path: Path) -> None:
    first = begun(tmp_path, 4)
    jobs.commit(first, staged(first, range(8)))
    later = begun(tmp_path, 9)  # the number is ignored because the topic exists
    jobs.commit(later, staged(later, range(8, 1000)))
    assert len(find_partitions(str(tmp_path), "t")) == 4
    found = rows(tmp_path)
    assert len(found) == 1000
    where: dict[str, set[int]] = {}
    for number, _, _, key in found:
        if key is not None:
            where.setdefault(key, set()).add(number)
    assert all(len(numbers) == 1 for numbers in where.values())
    ids = {log.topic_id for log in jobs._partitions_of(str(tmp_path), "t").values()}
    assert len(ids) == 1 and None not in ids
    with pytest.raises(InvalidConfig, match="topic t has no partition 4; its last partition is 3"):
        Stager(later).add("t", 4, 0, b"k", b"v")


def test_repeated_append_resumes_after_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, done = jobs._append_once, []

    def failing(
        append: AppendJob, name: TopicPartition, parts: list[AppendedPart], number: int
    ) -> int:
        if len(done) == 2:
            raise CommitConflict("the driver died")
        done.append(name)
        return real(append, name, parts, number)

    first = begun(tmp_path, 4, "job")
    parts = staged(first, range(400))
    monkeypatch.setattr(jobs, "_append_once", failing)
    with pytest.raises(CommitConflict):
        jobs.commit(first, parts, 7)
    monkeypatch.setattr(jobs, "_append_once", real)
    assert 0 < len(rows(tmp_path)) < 400
    again = begun(tmp_path, 4, "job")
    assert len(jobs.commit(again, staged(again, range(400)), 7)) == 2
    assert sorted(each[2] for each in rows(tmp_path)) == [1000 + n for n in range(400)]
    once_more = begun(tmp_path, 4, "job")
    assert jobs.commit(once_more, staged(once_more, range(400)), 7) == {}
    after = begun(tmp_path, 4, "job")
    jobs.commit(after, staged(after, range(400, 450)), 8)
    assert len(rows(tmp_path)) == 450


def test_concurrent_appends_both_commit(tmp_path: Path) -> None:
    one, two = begun(tmp_path), begun(tmp_path)
    parts = staged(one, range(100)), staged(two, range(100, 200))
    jobs.commit(two, parts[1])
    jobs.commit(one, parts[0])
    assert sorted(each[2] for each in rows(tmp_path)) == [1000 + n for n in range(200)]
    assert [each[1] for each in rows(tmp_path)] == list(range(200))


def test_append_refuses_a_topic_that_a_cluster_wrote(tmp_path: Path) -> None:
    lastwrite.fetch([str(CORPUS)], str(tmp_path), topic="client-zstd", include_active=True)
    with pytest.raises(InvalidConfig, match="the archive fetched it from a cluster"):
        staged(begun(tmp_path), range(5), "client-zstd")
    ours = begun(tmp_path)
    jobs.commit(ours, staged(ours, range(5), "client-lz4"))
    found = lastwrite.fetch([str(CORPUS)], str(tmp_path), topic="client-lz4", include_active=True)
    assert found.partitions[0].held is HoldReason.ANOTHER
    assert "fetch the log into another archive" in str(found.partitions[0].reason)
    assert len(rows(tmp_path, "client-lz4")) == 5


def test_cleared_append_leaves_no_files(tmp_path: Path) -> None:
    append = begun(tmp_path, 2)
    staged(append, range(100))
    jobs.clear(append)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
