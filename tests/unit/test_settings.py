"""Tests of settings by upstream's names: types, ranges, precedence and misspelt names."""

from __future__ import annotations

import pytest

from lastwrite.config.properties import decode_properties
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.policy import LONG_MAX


def test_defaults_equal_kafkas_except_for_the_policy() -> None:
    config = KafkaTopicConfig.from_names({})
    assert config == KafkaTopicConfig()
    assert config.cleanup_policy == ("compact",)
    assert config.to_names() == {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.5",
        "delete.retention.ms": "86400000",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": str(LONG_MAX),
        "segment.bytes": "1073741824",
        "segment.ms": "604800000",
        "segment.jitter.ms": "0",
        "segment.index.bytes": "10485760",
        "index.interval.bytes": "4096",
        "retention.ms": "604800000",
        "retention.bytes": "-1",
        "file.delete.delay.ms": "60000",
        "max.message.bytes": "1048588",
        "max.decompressed.message.bytes": "2147483639",
        "message.timestamp.type": "CreateTime",
        "compression.type": "producer",
        "producer.id.expiration.ms": "86400000",
        "compaction.strategy": "offset",
        "compaction.strategy.header": "",
        "max.keyless.ratio": "0.0",
        "hold.tombstones.for.groups": "",
        "hold.tombstones.max.ms": "604800000",
        "hold.tombstones.positions": "",
    }


@pytest.mark.parametrize(
    ("names", "field", "expected"),
    [
        ({"delete.retention.ms": "1000"}, "delete_retention_ms", 1000),
        ({"delete.retention.ms": 1000}, "delete_retention_ms", 1000),
        ({"delete.retention.ms": 1000.0}, "delete_retention_ms", 1000),
        ({"delete.retention.ms": " 7 "}, "delete_retention_ms", 7),
        ({"log.cleaner.delete.retention.ms": "5"}, "delete_retention_ms", 5),
        (
            {"log.cleaner.delete.retention.ms": "5", "delete.retention.ms": "6"},
            "delete_retention_ms",
            6,
        ),
        ({"log.retention.hours": "2"}, "retention_ms", 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "1"}, "retention_ms", 60_000),
        ({"log.retention.minutes": "1", "log.retention.ms": "3"}, "retention_ms", 3),
        ({"log.retention.hours": "-1"}, "retention_ms", -1),
        ({"retention.ms": "-5"}, "retention_ms", -1),
        ({"log.roll.hours": 1}, "segment_ms", 3_600_000),
        ({"segment.bytes": "14"}, "segment_bytes", 14),
        ({"segment.bytes": "2000000", "internal.segment.bytes": "300"}, "segment_bytes", 300),
        ({"min.cleanable.dirty.ratio": "0.01"}, "min_cleanable_dirty_ratio", 0.01),
        ({"log.cleaner.min.cleanable.ratio": 0}, "min_cleanable_dirty_ratio", 0),
        ({"cleanup.policy": "Compact, delete"}, "cleanup_policy", ("compact", "delete")),
        ({"cleanup.policy": "delete + compact"}, "cleanup_policy", ("delete", "compact")),
        ({"cleanup.policy": ["delete"]}, "cleanup_policy", ("delete",)),
        ({"cleanup.policy": ""}, "cleanup_policy", ()),
        (
            {"min.insync.replicas": "2", "listeners": "PLAINTEXT://:9092", "log.dirs": "/data"},
            "segment_bytes",
            2**30,
        ),
        ({"log.cleaner.threads": "3"}, "segment_bytes", 2**30),
    ],
)
def test_name_sets_its_field(names: dict[str, object], field: str, expected: object) -> None:
    assert getattr(KafkaTopicConfig.from_names(names), field) == expected


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ({"delete.retention.mss": 1}, "did you mean delete.retention.ms?"),
        ({"delete_retention_ms": 1}, "did you mean delete.retention.ms?"),
        ({"log.cleaner.thread": 1}, "did you mean log.cleaner.threads?"),
        ({"xyzzy": 1}, "there is no setting 'xyzzy'"),
        ({"delete.retention.ms": "soon"}, "delete.retention.ms must be a whole number, not 'soon'"),
        ({"delete.retention.ms": True}, "delete.retention.ms must be a whole number, not True"),
        ({"delete.retention.ms": 1.5}, "whole number"),
        ({"delete.retention.ms": None}, "whole number"),
        ({"delete.retention.ms": "1e999999999"}, "is 1e999999999, but must be at least 0"),
        (
            {"delete.retention.ms": "9223372036854775808"},
            "delete.retention.ms is 9223372036854775808, but must be at least 0 and at most "
            "9223372036854775807",
        ),
        ({"retention.ms": -(2**63) - 1}, "at least -9223372036854775808 and at most"),
        ({"min.cleanable.dirty.ratio": "1e400"}, "must be at least 0 and at most 1"),
        ({"delete.retention.ms": "-1"}, "delete.retention.ms is -1, but must be at least 0"),
        (
            {"min.cleanable.dirty.ratio": "1.1"},
            "dirty.ratio is 1.1, but must be at least 0 and at most 1",
        ),
        ({"min.cleanable.dirty.ratio": "nan"}, "a number"),
        (
            {"log.cleaner.min.cleanable.ratio": "x"},
            "log.cleaner.min.cleanable.ratio must be a number",
        ),
        ({"segment.bytes": 13}, "at least 14"),
        ({"segment.bytes": 2**31}, "at most 2147483647"),
        (
            {"cleanup.policy": "compress"},
            "cleanup.policy must be one of compact, delete, not 'compress'",
        ),
        ({"cleanup.policy": "compact+"}, "cleanup.policy must be one of compact, delete, not ''"),
        ({"cleanup.policy": 3}, "list separated by commas"),
        ({"message.timestamp.type": "now"}, "must be one of CreateTime, LogAppendTime"),
        ({"max.compaction.lag.ms": 0}, "at least 1"),
        (
            {"min.compaction.lag.ms": 9, "max.compaction.lag.ms": 8},
            "exceeds max.compaction.lag.ms (8)",
        ),
        # A value is checked even if another name takes precedence.
        (
            {"log.retention.hours": "x", "log.retention.ms": "3"},
            "log.retention.hours must be a whole number",
        ),
    ],
)
def test_typing_error_is_reported_with_a_suggestion(
    names: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidConfig) as caught:
        KafkaTopicConfig.from_names(names)
    assert sentence in str(caught.value)


def test_names_round_trip() -> None:
    config = KafkaTopicConfig(
        cleanup_policy=("compact", "delete"), segment_bytes=300, min_cleanable_dirty_ratio=0.25
    )
    assert KafkaTopicConfig.from_names(config.to_names()) == config


def test_fields_are_validated_without_names() -> None:
    with pytest.raises(InvalidConfig, match=r"segment.bytes is 3"):
        KafkaTopicConfig(segment_bytes=3)


def test_properties_text_is_decoded() -> None:
    text = (
        "# a comment\n"
        "  ! another\n"
        "\n"
        "a=1\n"
        "b : two words \r\n"
        "c three\n"
        "d=x\\\n"
        "    y,\\\r\n"
        "    # not a comment\n"
        "e\\ f\\=\\u0041=\\t\\q\\\\\n"
        "empty\n"
        "also.empty=\n"
        "a=last\n"
        "tail=no newline\\"
    )
    assert decode_properties(text) == {
        "a": "last",
        "b": "two words ",
        "c": "three",
        "d": "xy,# not a comment",
        "e f=A": "\tq\\",
        "empty": "",
        "also.empty": "",
        "tail": "no newline",
    }
    assert decode_properties("") == {}


def test_broken_escape_in_properties_names_its_line() -> None:
    with pytest.raises(InvalidConfig, match="line 2 "):
        decode_properties("a=1\nb=\\u12g4\n")
