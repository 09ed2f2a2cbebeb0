"""The options of ``format("lastwrite")``: what the Kafka source takes, and what it refuses."""

from __future__ import annotations

import pytest

from lastwrite.decoding.options import COMMAND_NAMES, SPARK_NAMES, DecodingConfig, in_words_of
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.look.read import Isolation
from lastwrite.model.log import TopicPartition
from lastwrite.source.options import EARLIEST, LATEST, Bound, parse

A0 = TopicPartition("a", 0)


def test_a_job_of_the_kafka_source_moves_by_a_path() -> None:
    options = parse(
        {
            "path": "/data",
            "subscribe": "a, b",
            "startingoffsets": "earliest",
            "endingOffsets": '{"a":{"0":7}}',
            "kafka.bootstrap.servers": "host:9092",
            "kafka.isolation.level": "read_committed",
            "kafkaConsumer.pollTimeoutMs": "500",
            "groupIdPrefix": "x",
            "includeHeaders": "TRUE",
        }
    )
    assert options.topics == ("a", "b")
    assert (options.start, options.end) == (Bound(EARLIEST), Bound(each={A0: 7}))
    assert options.isolation is Isolation.COMMITTED
    assert options.has_headers
    assert options.fails_on_data_loss
    assert options.wants(TopicPartition("b", 3))
    assert not options.wants(TopicPartition("c", 0))


def test_what_is_wanted_by_pattern_and_by_partition() -> None:
    by_pattern = parse({"path": "/d", "subscribePattern": "a.*"})
    assert by_pattern.wants(TopicPartition("ab", 1))
    assert by_pattern.wants(TopicPartition("ba", 1))  # found anywhere, as Kafka's consumer does
    assert not by_pattern.wants(TopicPartition("bc", 1))
    by_partition = parse({"path": "/d", "assign": '{"a":[0,2]}'})
    assert by_partition.wants(A0)
    assert not by_partition.wants(TopicPartition("a", 1))
    assert parse({"path": "/d"}).wants(TopicPartition("any", 0))


def test_timestamps_come_before_offsets() -> None:
    options = parse({"path": "/d", "startingTimestamp": "5", "startingOffsets": '{"a":{"0":1}}'})
    assert options.start == Bound(5, is_time=True)
    options = parse(
        {"path": "/d", "endingOffsetsByTimestamp": '{"a":{"0":9}}', "endingOffsets": "latest"}
    )
    assert options.end == Bound(each={A0: 9}, is_time=True)
    assert parse({"path": "/d"}).end == Bound(LATEST)


def test_where_a_bucket_is_comes_by_its_declared_name() -> None:
    options = parse(
        {"path": "s3://b/x", "storage.pathstyle": "false", "storage.endpoint": "http://h"}
    )
    assert options.stores == {"storage.pathStyle": "false", "storage.endpoint": "http://h"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"a":{"0":-1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"a":{"0":-2}}'},
        {"endingOffsets": '{"a":{"0":-3}}'},
        {"startingOffsets": "[1]"},
        {"startingOffsets": '{"a":{"zero":1}}'},
        {"startingTimestamp": "soon"},
        {"startingOffsetsByTimestampStrategy": "maybe"},
        {"subscribe": "a", "assign": '{"a":[0]}'},
        {"assign": '{"a":0}'},
        {"subscribePattern": "("},
        {"failOnDataLoss": "perhaps"},
        {"minPartitions": "0"},
        {"kafka.isolation.level": "serializable"},
        {"maxRecordsPerPartitions": "1"},
        {"paths": '["/e"]'},
    ],
    ids=str,
)
def test_what_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        parse({"path": "/d", **wrong})


@pytest.mark.parametrize("paths", ["[]", "/e", "[1]"])
def test_paths_are_a_list(paths: str) -> None:
    assert parse({"paths": '["/d", "/e"]'}).paths == ("/d", "/e")
    with pytest.raises(InvalidConfig):
        parse({"paths": paths})
    with pytest.raises(InvalidConfig):
        parse({})


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (SPARK_NAMES, "valueFormat avro needs a schema: give valueSchema"),
        (COMMAND_NAMES, "--value-format avro needs a schema: give --value-schema"),
    ],
)
def test_an_error_names_options_as_its_reader_knows_them(names: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig) as told:
        DecodingConfig.of({"value_format": "avro"})
    error = in_words_of(told.value, names)
    assert f"{error.problem}: {error.remedy}" == said


def test_the_source_speaks_of_its_own_options() -> None:
    with pytest.raises(InvalidConfig, match="onBad"):
        parse({"path": "/d", "subscribe": "a", "onBad": "aside"})
