"""Tests of the commands on buckets of a real AutoMQ: fetching, refusals, damage and secrets."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import CorruptLog, InvalidConfig
from lastwrite.kafka.automq.names import object_key
from lastwrite.kafka.automq.source import AutomqOptions, open_source
from lastwrite.model.log import TopicPartition
from lastwrite.reports.fetching import LogsFetched
from lastwrite.spark.inline import INLINE
from tests.support.kafka.automq_stages import LEVELS, Stage, unpack_stage
from tests.support.kafka.metadata import text, write_records


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return unpack_stage("stage-v1", tmp_path_factory.mktemp("automq"))


@pytest.fixture
def stage(unpacked: Stage, tmp_path: Path) -> Stage:
    """A stage that the test may change."""
    shutil.copytree(unpacked.folder, tmp_path / "stage")
    return Stage(tmp_path / "stage")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A stage whose last records are only in write-ahead objects."""
    return unpack_stage("stage4", tmp_path_factory.mktemp("killed"))


def fetched(stage: Stage, to: Path, topic: str, **given: Any) -> LogsFetched:
    report = lastwrite.fetch(str(stage.bucket), str(to), topic=topic, **stage.source, **given)
    assert isinstance(report, LogsFetched)
    return report


def keys_and_values(rows: Any) -> Iterator[tuple[int, str | None, str | None]]:
    for row in rows:
        yield row["offset"], row["key"], row["value"]


# ---------------------------------------------------------------------- fetch


def test_fetch_stores_what_a_consumer_got(stage: Stage, tmp_path: Path) -> None:
    assert fetched(stage, tmp_path / "archive", "orders").exit_status == 0
    for number in (0, 1):
        for level in LEVELS:
            reading = lastwrite.read(
                str(tmp_path / "archive"), "orders", queue=number, isolation_level=level
            )
            expected = stage.expected("orders", number, level)
            assert [*keys_and_values(reading)] == [*keys_and_values(expected)]
            wanted = stage.partitions[f"orders-{number}"]
            assert reading.summary()["last_stable_offset"] == wanted[f"end_{LEVELS[1]}"]


def test_fetched_topic_has_the_settings_of_its_cluster(stage: Stage, tmp_path: Path) -> None:
    fetched(stage, tmp_path / "archive", "orders")
    settings = lastwrite.settings(str(tmp_path / "archive"), topic="orders")
    values = {each.name: each.value for topic in settings.topics for each in topic.settings}
    assert values["cleanup.policy"] == "compact"


def test_fetch_ends_at_the_last_uploaded_record(killed: Stage, tmp_path: Path) -> None:
    report = fetched(killed, tmp_path / "archive", "plain")
    ends = [(each.end_offset, each.objects) for each in report.partitions]
    assert [end for end, _ in ends] == [1100, 1164]
    assert [objects and objects.write_ahead_records for _, objects in ends] == [60, 60]


def test_include_active_adds_the_records_of_write_ahead_objects(
    killed: Stage, tmp_path: Path
) -> None:
    fetched(killed, tmp_path / "archive", "orders")
    report = fetched(killed, tmp_path / "archive", "orders", include_active=True)
    assert [each.first_offset for each in report.partitions] == [942, 0, 0]
    for number in (0, 1, 2):
        reading = lastwrite.read(str(tmp_path / "archive"), "orders", queue=number)
        expected = killed.expected("orders", number, LEVELS[0])
        assert [*keys_and_values(reading)] == [*keys_and_values(expected)]


# ---------------------------------------------------------------------- compact


def test_compaction_in_place_is_refused_with_the_reason(stage: Stage) -> None:
    before = {path: path.read_bytes() for path in stage.bucket.rglob("*") if path.is_file()}
    with pytest.raises(InvalidConfig, match="the controller owns its objects"):
        lastwrite.compact(str(stage.bucket), topic="orders", spark=INLINE, **stage.source)
    assert before == {p: p.read_bytes() for p in stage.bucket.rglob("*") if p.is_file()}


def test_compacted_copy_keeps_every_last_write(stage: Stage, tmp_path: Path) -> None:
    to, bucket = str(tmp_path / "to"), str(stage.bucket)
    lastwrite.compact(bucket, topic="orders", to=to, spark=INLINE, **stage.source)
    proof = lastwrite.verify(to, before=bucket, topic="orders", spark=INLINE, **stage.source)
    assert proof.exit_status == 0
    assert lastwrite.latest(to, "orders") == lastwrite.latest(bucket, "orders", **stage.source)


# ---------------------------------------------------------------------- refusals and damage


def test_missing_metadata_is_refused_with_its_place(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(stage.bucket), "--system", "automq"]) == 2
    words = capsys.readouterr().err
    for word in ("log.dirs", "metadata.log.dir", "__cluster_metadata-0", "/wal/"):
        assert word in words


def test_metadata_is_refused_for_other_systems(stage: Stage) -> None:
    with pytest.raises(InvalidConfig, match="only for --system automq"):
        lastwrite.read(str(stage.bucket), "orders", metadata=str(stage.metadata))


def objects_of(stage: Stage, name: TopicPartition) -> list[Path]:
    """The data objects of a partition, in the order of offsets."""
    source = open_source(AutomqOptions(address=str(stage.bucket), metadata=str(stage.metadata)))
    runs = [run for segment in source.resolve(name).segments for run in segment.runs]
    return [stage.bucket / key for key in dict.fromkeys(run.key for run in runs)]


def test_lost_object_is_named_and_the_other_partitions_are_fetched(
    stage: Stage, tmp_path: Path
) -> None:
    lost = objects_of(stage, TopicPartition("many", 3))[0]
    lost.unlink()
    report = fetched(stage, tmp_path / "archive", "*")
    assert report.exit_status == 3
    broken = [each for each in report.partitions if each.reason is not None]
    assert TopicPartition("many", 3) in {TopicPartition(e.topic, e.partition) for e in broken}
    assert len(broken) < len(report.partitions)
    for each in broken:
        assert each.is_damaged
        assert lost.name in (each.reason or "")


def test_records_around_a_lost_object_are_read(killed: Stage, tmp_path: Path) -> None:
    shutil.copytree(killed.folder, tmp_path / "copy")
    stage = Stage(tmp_path / "copy")
    lost = objects_of(stage, TopicPartition("plain", 1))[1]
    lost.unlink()
    reading = lastwrite.read(str(stage.bucket), "plain", queue=1, **stage.source)
    rows = []
    with pytest.raises(CorruptLog, match=lost.name):
        for row in reading:
            rows.append(row)
    found = [*keys_and_values(rows)]
    expected = [*keys_and_values(stage.expected("plain", 1, LEVELS[0]))]
    assert 0 < len(found) < len(expected)
    assert found == [each for each in expected if each in found]
    assert found[-1] == expected[-1]


def test_damaged_block_is_named_with_its_object(stage: Stage) -> None:
    (path, *_) = objects_of(stage, TopicPartition("orders", 0))
    content = bytearray(path.read_bytes())
    source = open_source(AutomqOptions(address=str(stage.bucket), metadata=str(stage.metadata)))
    found = source.resolve(TopicPartition("orders", 0))
    at = next(run.position for s in found.segments for run in s.runs if run.key in str(path))
    content[at + 14] ^= 0xFF  # the stream id of the first record
    path.write_bytes(content)
    with pytest.raises(CorruptLog, match=path.name):
        [*lastwrite.read(str(stage.bucket), "orders", queue=0, **stage.source)]


def test_prepared_objects_are_not_read(stage: Stage) -> None:
    source = open_source(AutomqOptions(address=str(stage.bucket), metadata=str(stage.metadata)))
    (stage.bucket / object_key(source.namespace, 1 << 30)).parent.mkdir(parents=True)
    (stage.bucket / object_key(source.namespace, 1 << 30)).write_bytes(b"not an object")
    reading = lastwrite.read(str(stage.bucket), "orders", queue=0, **stage.source)
    expected = stage.expected("orders", 0, LEVELS[0])
    assert [*keys_and_values(reading)] == [*keys_and_values(expected)]


# ---------------------------------------------------------------------- secrets

SECRET = "AKIA-not-for-anybody"


def node_settings(node: int, wal_path: str) -> bytes:
    """A KVRecord of version 1: a node's settings."""
    value = json.dumps({"i": node, "w": wal_path}).encode()
    sized = bytes([(len(value) + 1) & 0x7F | 0x80, (len(value) + 1) >> 7]) + value
    pair = text(f"__automq_node/{node}") + sized + text("") + b"\0"
    return b"\1\x84\4\1\2" + pair + b"\0"


@pytest.mark.parametrize(
    "command",
    [
        ["dump", "META"],
        ["dump", "META", "--decode"],
        ["dump", "META", "--json"],
        ["dump", "META", "-f", "%k %s\n"],
        ["inspect", "BUCKET", "--json"],
        ["fetch", "BUCKET", "--to", "ARCHIVE", "--json"],
        ["settings", "BUCKET", "--topic", "orders"],
        ["dump", "BUCKET", "--topic", "orders", "--json"],
    ],
    ids=" ".join,
)
def test_no_command_shows_the_access_keys_of_a_node(
    stage: Stage, tmp_path: Path, command: list[str], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    last = max(int(path.stem[:20]) for path in stage.metadata.glob("*.log"))
    secret = f"0@s3://data?accessKey={SECRET}&secretKey={SECRET}&pathStyle=true"
    write_records(stage.folder, f"{last + 10**6:020d}.log", last + 10**6, node_settings(7, secret))
    places = {"META": stage.metadata, "BUCKET": stage.bucket, "ARCHIVE": tmp_path / "archive"}
    arguments = [str(places.get(each, each)) for each in command]
    if "BUCKET" in command:
        arguments += ["--system", "automq", "--metadata", str(stage.metadata)]
    assert run(arguments) == 0
    shown = capfdbinary.readouterr()
    copies = [p.read_bytes() for p in (tmp_path / "archive").rglob("*") if p.is_file()]
    for output in (shown.out, shown.err, *copies):
        assert SECRET.encode() not in output
        for shift in range(3):
            part = base64.b64encode(b" " * shift + SECRET.encode())[4:-4]
            assert part not in output
