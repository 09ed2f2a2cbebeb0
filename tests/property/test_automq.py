"""Properties of random AutoMQ clusters: all records are read, and damaged objects are reported."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.kafka.automq.bucket_objects import ObjectVanished, SecondLook
from lastwrite.kafka.automq.partition import AutomqPartition
from lastwrite.kafka.automq.payloads import strip_run
from lastwrite.kafka.automq.source import AutomqOptions, AutomqSource, open_source
from lastwrite.kafka.format.batch import decode_batch_header
from lastwrite.model.log import TopicPartition
from tests.support.kafka.automq import Cluster
from tests.support.kafka.logs import SCRATCH

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 4), st.integers(0, 2)),
        st.tuples(st.just("upload")),
        st.tuples(st.just("write ahead")),
        st.tuples(st.just("split"), st.integers(0, 9)),
        st.tuples(st.just("compose"), st.integers(0, 9)),
        st.tuples(st.just("trim"), st.integers(0, 2), st.integers(0, 99)),
    ),
    max_size=40,
)
HARMS = st.lists(
    st.tuples(
        st.sampled_from(["cut", "lose", "double", "exchange", "flip"]),
        st.integers(0, 99),
        st.integers(0, 99),
    ),
    min_size=1,
    max_size=3,
)


@contextmanager
def cluster_of(steps: list[tuple[object, ...]]) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="lastwrite-automq-", dir=SCRATCH))
    try:
        cluster = Cluster(folder, segment_records=7)
        cluster.topic("t", 2)
        cluster.topic("u", 1)
        for step in steps:
            take(cluster, *step)
        cluster.write_ahead()
        cluster.write_metadata()
        yield cluster
    finally:
        shutil.rmtree(folder)


def take(cluster: Cluster, kind: object, *numbers: int) -> None:
    names = sorted(cluster.parts)
    if kind == "append":
        which, count, hole = numbers
        name, number = names[which]
        end = cluster.parts[name, number].end
        values = [b"%c%d" % (97 + n % 5, n) for n in range(end, end + count)]
        cluster.append(name, number, *values, hole=hole)
    elif kind == "upload":
        cluster.upload()
    elif kind == "write ahead":
        cluster.write_ahead()
    elif kind == "split":
        if cluster.sets:
            cluster.split(cluster.sets[numbers[0] % len(cluster.sets)])
    elif kind == "compose":
        streams = sorted(set(cluster.streams_of.values()))
        if streams:
            cluster.compose(streams[numbers[0] % len(streams)])
    elif kind == "trim":
        name, number = names[numbers[0]]
        part = cluster.parts[name, number]
        cluster.delete_records(name, number, max(part.start, part.end * numbers[1] // 100))


def options(cluster: Cluster) -> AutomqOptions:
    return AutomqOptions(address=str(cluster.bucket), metadata=str(cluster.metadata))


def read(source: AutomqSource, log: AutomqPartition) -> tuple[list[tuple[int, bytes]], list[str]]:
    """The readable batches of a partition, and the messages about the others."""
    batches: list[tuple[int, bytes]] = []
    problems = [each.message for each in log.problems]
    for segment in log.segments:
        for run in segment.runs:
            try:
                data = bytes(strip_run(source.fetch(run), run))
            except LogError as error:
                problems.append(error.located(source.run_path(run)).problem)
                continue
            at = 0
            while at < len(data):
                try:
                    header = decode_batch_header(memoryview(data), at)
                except LogError as error:  # of a batch, which Kafka's readers check
                    problems.append(error.problem)
                    break
                batches.append((header.base_offset, data[at : at + header.size_bytes]))
                at += header.size_bytes
    return batches, problems


def expected(cluster: Cluster, name: TopicPartition) -> list[tuple[int, bytes]]:
    """The model's batches from the log's first segment on."""
    part = cluster.parts[name.topic, name.partition]
    first = int(str(part.segments[0]["bo"]))
    return [(base, data) for base, end, data in part.batches if end > first]


@given(STEPS)
def test_everything_that_was_appended_is_read(steps: list[tuple[object, ...]]) -> None:
    with cluster_of(steps) as cluster:
        source = open_source(options(cluster))
        assert not source.problems
        for name in source.partitions():
            log = source.resolve(name)
            batches, problems = read(source, log)
            assert not problems
            assert batches == expected(cluster, name)
            part = cluster.parts[name.topic, name.partition]
            assert (log.log_start, log.end_offset) == (part.start, part.end)
        assert "SECRET" not in repr(source.image)


@given(STEPS, HARMS)
def test_no_record_is_lost_in_silence(
    steps: list[tuple[object, ...]], harms: list[tuple[str, int, int]]
) -> None:
    """If objects are damaged, every record is read correctly or reported as missing."""
    with cluster_of(steps) as cluster:
        last = cluster.wal_paths()[-1:]
        for kind, one, other in harms:
            harm(cluster, kind, one, other)
        # nothing shows that the end of a write-ahead log is missing
        is_end_lost = not all(path.exists() for path in last)
        source, refused = open_and_resolve(cluster)
        for name in source.partitions():
            if name in refused:
                continue
            log = source.resolve(name)
            batches, problems = read(source, log)
            part = cluster.parts[name.topic, name.partition]
            # Nothing but Kafka's batches has a checksum in data objects.
            is_flipped = any(kind == "flip" for kind, _, _ in harms)
            assert log.log_start == part.start or is_end_lost or log.problems or is_flipped
            every = {base: data for base, _, data in part.batches}
            ends = {base: end for base, end, _ in part.batches}
            found = {base: data for base, data in batches if every.get(base) == data}
            assert is_flipped or list(found.items()) == batches
            assert list(found) == sorted(found)
            gone = dict(expected(cluster, name)).keys() - found.keys()
            stated = [
                range(int(first), int(last) + 1)
                for message in problems
                for first, last in re.findall(r"offsets (\d+) to (\d+)", message)
            ]
            for base in gone:
                if ends[base] <= log.log_start:
                    continue
                is_named = any(base in each for each in stated)
                is_after_end = ends[base] > log.end_offset and (is_end_lost or bool(log.problems))
                assert is_named or is_after_end or is_flipped


def open_and_resolve(cluster: Cluster) -> tuple[AutomqSource, set[TopicPartition]]:
    """A source that knows which objects are lost, and the partitions that it refuses."""
    lost: frozenset[str] = frozenset()
    while True:
        source = open_source(options(cluster), lost)
        refused = set()
        for name in source.partitions():
            try:
                source.resolve(name)
            except ObjectVanished as error:
                assert not error.keys & lost
                lost |= error.keys
                break
            except (CorruptLog, SecondLook, UnsupportedFormat):
                refused.add(name)
        else:
            return source, refused


def harm(cluster: Cluster, kind: str, one: int, other: int) -> None:
    paths = [*cluster.object_paths(), *cluster.wal_paths()]
    if not paths:
        return
    path, second = paths[one % len(paths)], paths[other % len(paths)]
    data = path.read_bytes()
    if kind == "cut":
        path.write_bytes(data[: len(data) * other // 100])
    elif kind == "lose":
        path.unlink()
    elif kind == "double":
        second.write_bytes(data)
    elif kind == "exchange":
        path.write_bytes(second.read_bytes())
        second.write_bytes(data)
    elif kind == "flip" and data:
        at = len(data) * other // 100
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
