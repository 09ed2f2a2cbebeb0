"""Tests of the options of ``format("lastwrite")``: the Kafka source's options, and refused ones."""

from __future__ import annotations

import traceback

import pytest

from lastwrite.decoding.options import COMMAND_NAMES, SPARK_NAMES, DecodingConfig, with_option_names
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.look.read import Isolation
from lastwrite.model.log import TopicPartition
from lastwrite.source.options import EARLIEST, LATEST, Bound, parse

A0 = TopicPartition("a", 0)


def test_options_of_a_kafka_source_job_are_accepted_with_a_path() -> None:
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


def test_pattern_and_partition_select_topics() -> None:
    by_pattern = parse({"path": "/d", "subscribePattern": "a.*"})
    assert by_pattern.wants(TopicPartition("ab", 1))
    # the pattern may match anywhere in the name, as in Kafka's consumer
    assert by_pattern.wants(TopicPartition("ba", 1))
    assert not by_pattern.wants(TopicPartition("bc", 1))
    by_partition = parse({"path": "/d", "assign": '{"a":[0,2]}'})
    assert by_partition.wants(A0)
    assert not by_partition.wants(TopicPartition("a", 1))
    assert parse({"path": "/d"}).wants(TopicPartition("any", 0))


def test_timestamps_take_precedence_over_offsets() -> None:
    options = parse({"path": "/d", "startingTimestamp": "5", "startingOffsets": '{"a":{"0":1}}'})
    assert options.start == Bound(5, is_time=True)
    options = parse(
        {"path": "/d", "endingOffsetsByTimestamp": '{"a":{"0":9}}', "endingOffsets": "latest"}
    )
    assert options.end == Bound(each={A0: 9}, is_time=True)
    assert parse({"path": "/d"}).end == Bound(LATEST)


def test_storage_option_is_accepted_in_any_case() -> None:
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
def test_invalid_options_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidConfig):
        parse({"path": "/d", **wrong})


@pytest.mark.parametrize("paths", ["[]", "/e", "[1]"])
def test_paths_option_is_a_json_list(paths: str) -> None:
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
def test_error_names_options_in_the_callers_spelling(names: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig) as told:
        DecodingConfig.of({"value_format": "avro"})
    error = with_option_names(told.value, names)
    assert f"{error.problem}: {error.remedy}" == said


def test_error_names_the_sources_own_options() -> None:
    with pytest.raises(InvalidConfig, match="onBad"):
        parse({"path": "/d", "subscribe": "a", "onBad": "aside"})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"kafka.auto.offset.reset": "latest"}, "'auto.offset.reset' is not supported"),
        ({"kafka.key.deserializer": "x"}, "'key.deserializer' is not supported as keys are"),
        ({"Kafka.Value.Deserializer": "x"}, "'value.deserializer' is not supported as values are"),
        ({"kafka.enable.auto.commit": "true"}, "'enable.auto.commit' is not supported"),
        ({"kafka.interceptor.classes": "x"}, "'interceptor.classes' is not supported"),
        ({"subscribe": " "}, "No topics to subscribe to .* 'subscribe' is ' '"),
        ({"subscribe": " , "}, "No topics to subscribe to .* 'subscribe' is ' , '"),
        ({"subscribePattern": ""}, "Pattern to subscribe is empty .* 'subscribePattern' is ''"),
        ({"assign": "[0]"}, "No topicpartitions to assign .* 'assign' is"),
        (
            {"startingOffsets": '{"a":{"0":9}}', "endingOffsets": '{"a":{"0":8}}'},
            "start offset 9 is greater than end offset 8 for topic a partition 0",
        ),
        (
            {"startingTimestamp": "9", "endingTimestamp": "8"},
            "start timestamp 9 is greater than end timestamp 8",
        ),
        (
            {"startingTimestamp": "9", "endingOffsetsByTimestamp": '{"a":{"0":8}}'},
            "start timestamp 9 is greater than end timestamp 8 for topic a partition 0",
        ),
    ],
    ids=str,
)
def test_kafka_source_errors_have_its_wording(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        parse({"path": "/d", **wrong})


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("endingOffsets", "offset"),
        ("endingOffsetsByTimestamp", "offset"),
        ("endingTimestamp", "timestamp"),
    ],
)
def test_stream_refuses_an_end(name: str, what: str) -> None:
    with pytest.raises(InvalidConfig, match=f"ending {what} not valid in streaming queries"):
        parse({"path": "/d", name: "1"}, is_stream=True)


def test_blank_topics_and_equal_bounds_are_accepted() -> None:
    assert parse({"path": "/d", "subscribe": "a, ,b,"}).topics == ("a", "b")
    same = {"startingOffsets": '{"a":{"0":9}}', "endingOffsets": '{"a":{"0":9}}'}
    assert parse({"path": "/d", **same}).start == Bound(each={A0: 9})


def test_error_shows_no_frames_of_the_package() -> None:
    reader = pytest.importorskip("lastwrite.source.reader", reason="it needs PySpark")
    source = reader.DefaultSource({"path": "/nowhere", "subscribe": " "})
    with pytest.raises(InvalidConfig) as told:
        source.schema()
    shown = traceback.format_exception(told.value)
    # only the outermost function of the source is shown
    assert sum("lastwrite/source/" in line for line in shown) == 1
    assert len("".join(shown).splitlines()) <= 12
