"""Tests of reading AutoMQ's buckets, against what a consumer of the writing broker got."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lastwrite.errors import CorruptLog
from lastwrite.kafka.automq.bucket_objects import ObjectVanished, SecondLook
from lastwrite.kafka.automq.cluster_image import read_cluster_image
from lastwrite.kafka.automq.names import object_key
from lastwrite.kafka.automq.partition import AutomqPartition
from lastwrite.kafka.automq.payloads import strip_run
from lastwrite.kafka.automq.source import AutomqOptions, AutomqSource, WalNeeded, open_source
from lastwrite.kafka.cluster.metadata_log import cluster_configs
from lastwrite.kafka.format.batch import ControlType, decode_control_record, iter_batches
from lastwrite.kafka.format.batch_layout import Batch
from lastwrite.kafka.producers.snapshot import decode_snapshot
from lastwrite.model.log import TopicPartition
from tests.support.kafka.automq_stages import LEVELS, STAGES, Stage, unpack_stage


@pytest.fixture(scope="module", params=STAGES)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return unpack_stage(request.param, tmp_path_factory.mktemp("automq"))


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return unpack_stage("stage4", tmp_path_factory.mktemp("automq"))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return unpack_stage("stage3-live", tmp_path_factory.mktemp("automq"))


@pytest.fixture
def bucket(live: Stage, tmp_path: Path) -> Path:
    shutil.copytree(live.bucket, tmp_path / "bucket")
    return tmp_path / "bucket"


def opened(stage: Stage, bucket: Path | None = None, **options: Any) -> AutomqSource:
    lost = options.pop("lost", frozenset())
    return open_source(
        AutomqOptions(address=str(bucket or stage.bucket), metadata=str(stage.metadata), **options),
        lost,
    )


def batches_of(source: AutomqSource, log: AutomqPartition) -> Iterator[Batch]:
    """All batches of a partition by the slow decoder, which checks every CRC."""
    for segment in log.segments:
        data = b"".join(bytes(strip_run(source.fetch(run), run)) for run in segment.runs)
        for _, batch in iter_batches(data):
            assert batch.header.base_offset >= segment.base_offset
            yield batch


def consumed(batches: Sequence[Batch], log_start: int, level: str) -> list[dict[str, Any]]:
    """The records that a consumer gets from these batches at an isolation level."""
    open_from: dict[int, int] = {}
    aborted: set[int] = set()  # base offsets of batches
    data: dict[int, list[int]] = {}
    for batch in batches:
        producer = batch.header.producer_id
        if batch.attributes.control:
            marker = decode_control_record(batch.records[0])
            if marker.type is ControlType.ABORT:
                aborted.update(data.get(producer, ()))
            if marker.type in (ControlType.ABORT, ControlType.COMMIT):
                open_from.pop(producer, None)
                data.pop(producer, None)
        elif batch.attributes.transactional:
            open_from.setdefault(producer, batch.header.base_offset)
            data.setdefault(producer, []).append(batch.header.base_offset)
    stable = min(open_from.values(), default=None)
    found = []
    for batch in batches:
        if batch.attributes.control:
            continue
        for record in batch.records:
            if record.offset < log_start:
                continue
            if level == "read_committed" and (
                batch.header.base_offset in aborted
                or (stable is not None and record.offset >= stable)
            ):
                continue
            is_appended = batch.attributes.append_time
            found.append(
                {
                    "offset": record.offset,
                    "timestamp": (
                        batch.header.max_timestamp_ms if is_appended else record.timestamp_ms
                    ),
                    "timestamp_type": "append" if is_appended else "create",
                    "key": encoded(record.key),
                    "value": encoded(record.value),
                    "headers": [[name.decode(), encoded(value)] for name, value in record.headers],
                    "leader_epoch": batch.header.partition_leader_epoch,
                }
            )
    return found


def encoded(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def test_every_partition_equals_what_a_consumer_got(stage: Stage) -> None:
    source = opened(stage)
    assert not source.problems
    for topic, number in stage.names():
        log = source.resolve(TopicPartition(topic, number))
        expected = stage.partitions[str(log.name)]
        assert not log.problems
        assert log.log_start == expected["beginning"]
        assert log.end_offset == expected["end_read_uncommitted"]
        batches = list(batches_of(source, log))
        for level in LEVELS:
            assert consumed(batches, log.log_start, level) == stage.expected(topic, number, level)
    assert source.unknown_streams() == 0


def test_own_topics_of_the_cluster_are_read(stage: Stage) -> None:
    source = opened(stage)
    own = [name for name in source.partitions() if name.topic.startswith("__")]
    assert own
    for name in own:
        log = source.resolve(name)
        ends = [batch.header.next_offset for batch in batches_of(source, log)]
        assert ends[-1:] in ([], [log.end_offset])


def test_side_values_are_those_of_a_log_directory(stage: Stage) -> None:
    source = opened(stage)
    for name in source.partitions():
        log = source.resolve(name)
        epochs = [each.epoch for each in log.leader_epochs]
        assert epochs == sorted(set(epochs))
        bases = [segment.base_offset for segment in log.segments]
        for offset, content in log.producer_snapshots:
            decode_snapshot(content)
            assert offset in (*bases, log.end_offset) or offset <= log.end_offset
        for before, after in zip(log.segments, log.segments[1:], strict=False):
            assert before.end_offset <= after.base_offset
        assert [segment.is_open for segment in log.segments][:-1] == [False] * (len(bases) - 1)
        markers = {
            batch.header.base_offset
            for batch in batches_of(source, log)
            if batch.attributes.control
            and decode_control_record(batch.records[0]).type is ControlType.ABORT
        }
        assert {entry.last_offset for entry in log.aborted} <= markers


def test_topic_settings_are_read_by_the_reader_of_kafka(stage: Stage) -> None:
    found = cluster_configs(str(stage.metadata))
    assert found is not None
    assert found.topics["orders"]["cleanup.policy"] == "compact"


def test_access_keys_in_the_metadata_log_are_not_kept(stage: Stage) -> None:
    log = b"".join(path.read_bytes() for path in stage.metadata.iterdir())
    if b"__automq_node/" in log:
        assert b"endpoint=http" in log  # a node's access keys would follow here
    image = read_cluster_image(str(stage.metadata))
    assert "endpoint" not in repr(image)
    assert "__automq_node" not in repr(image)


class TestWriteAhead:
    def test_log_ends_with_the_last_upload_without_write_ahead_objects(self, killed: Stage) -> None:
        source = opened(killed, reads_wal=False)
        log = source.resolve(TopicPartition("plain", 0))
        assert (log.end_offset, log.wal_records) == (1100, 0)
        both = opened(killed).resolve(TopicPartition("plain", 0))
        assert (both.committed_end, both.end_offset, both.wal_records) == (1100, 1160, 60)

    @pytest.mark.parametrize("number", [1, 2])
    def test_older_cleaning_is_refused_without_write_ahead_objects(
        self, killed: Stage, number: int
    ) -> None:
        name = TopicPartition("orders", number)
        with pytest.raises(WalNeeded, match=f"orders-{number}.*cleaned or deleted"):
            opened(killed, reads_wal=False).resolve(name)

    def test_older_cleaning_needs_a_second_look_if_no_object_has_the_newer(
        self, killed: Stage, tmp_path: Path
    ) -> None:
        shutil.copytree(killed.bucket, tmp_path / "bucket")
        shutil.rmtree(next((tmp_path / "bucket").glob("C4CA*")))
        with pytest.raises(SecondLook, match="orders-1"):
            opened(killed, tmp_path / "bucket").resolve(TopicPartition("orders", 1))

    def test_torn_object_is_named_and_the_rest_is_read(self, killed: Stage, tmp_path: Path) -> None:
        shutil.copytree(killed.bucket, tmp_path / "bucket")
        torn = max((tmp_path / "bucket").rglob("36440113152-*"))
        torn.write_bytes(torn.read_bytes()[:-10])
        source = opened(killed, tmp_path / "bucket")
        (problem,) = source.problems
        assert problem.path == str(torn)
        assert "inside a record of stream" in problem.message
        whole = opened(killed)
        for topic, number in killed.names():
            log = source.resolve(TopicPartition(topic, number))
            full = whole.resolve(TopicPartition(topic, number))
            if log.end_offset != full.end_offset:
                assert problem in log.problems

    def test_missing_object_is_named(self, killed: Stage, tmp_path: Path) -> None:
        shutil.copytree(killed.bucket, tmp_path / "bucket")
        next((tmp_path / "bucket").rglob("36574330880-*")).unlink()
        source = opened(killed, tmp_path / "bucket")
        (problem,) = source.problems
        assert "has no object from offset 36574330880 to 36641439744" in problem.message


class TestDamage:
    @pytest.mark.parametrize(("object_id", "topic"), [(89, "orders"), (96, "plain"), (33, "plain")])
    def test_missing_object_vanishes_first_and_is_damage_when_lost(
        self, live: Stage, bucket: Path, object_id: int, topic: str
    ) -> None:
        (namespace,) = read_cluster_image(str(live.metadata)).namespaces
        key = object_key(namespace, object_id)
        (bucket / key).unlink()
        with pytest.raises(ObjectVanished) as vanished:
            opened(live, bucket).resolve(TopicPartition(topic, 0))
        assert vanished.value.keys == {key}
        source = opened(live, bucket, lost=vanished.value.keys)
        try:
            log = source.resolve(TopicPartition(topic, 0))
        except CorruptLog as error:
            assert "META stream" in str(error)  # noqa: PT017
            assert key in str(error)  # noqa: PT017
        else:
            assert any(key in each.message and "offsets" in each.message for each in log.problems)

    def test_cut_footer_is_named_with_stream_and_offsets(self, live: Stage, bucket: Path) -> None:
        path = next(bucket.rglob("80"))
        path.write_bytes(path.read_bytes()[:-48])
        source = opened(live, bucket)
        hurt = [name for name in source.partitions() if source.resolve(name).problems]
        assert len(hurt) == 1
        log = source.resolve(hurt[0])
        for problem in log.problems:
            assert problem.path == str(path)
            assert re.search(
                rf"stream [0-9]+ .*offsets [0-9]+ to [0-9]+ of {hurt[0]} are missing",
                problem.message,
            )
        whole = opened(live).resolve(hurt[0])
        assert log.end_offset == whole.end_offset
        kept = [batch.header for batch in batches_of(source, log)]
        every = [batch.header for batch in batches_of(opened(live), whole)]
        assert kept == [header for header in every if header in kept]
        assert len(kept) < len(every)

    def test_composite_with_a_missing_part_is_named(self, live: Stage, bucket: Path) -> None:
        path = next(bucket.rglob("34"))
        path.unlink()
        with pytest.raises(ObjectVanished) as vanished:
            opened(live, bucket).resolve(TopicPartition("plain", 1))
        source = opened(live, bucket, lost=vanished.value.keys)
        log = source.resolve(TopicPartition("plain", 1))
        assert log.problems
        assert all(str(path) in each.message for each in log.problems)
        assert any(True for _ in batches_of(source, log))
