"""Tests of the precedence of a topic's settings: only the rules, without files."""

from __future__ import annotations

import pytest

from lastwrite.errors import InvalidConfig
from lastwrite.kafka.rules.topic_settings import (
    TopicMetadata,
    check_overrides,
    decode_overrides,
    decode_overrides_file,
    overrides_of,
    resolve,
)
from lastwrite.reports.settings import Override

COMPACT, DELETE = {"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}
NOTHING = TopicMetadata(topic={})


def overriding(*lines: str) -> tuple[Override, ...]:
    return decode_overrides(lines)


@pytest.mark.parametrize(
    ("lines", "known", "config", "is_named", "policy", "source"),
    [
        # Topics without metadata: a default, a policy by name, or nothing.
        ((), None, {}, False, None, "unknown"),
        ((), None, {}, True, "compact", "named"),
        ((), None, COMPACT, False, "compact", "config"),
        ((), None, DELETE, True, "delete", "config"),
        # A broker-level setting does not apply to a topic that may have its own policy.
        ((), None, {"log.cleanup.policy": "compact"}, False, None, "unknown"),
        ((), None, {"log.cleanup.policy": "compact", "log.dirs": "/data"}, False, None, "unknown"),
        ((), None, {"log.cleanup.policy": "delete"}, True, "compact", "named"),
        # Topics with metadata: the topic's setting, then the brokers', then Kafka's default.
        # Settings for unknown topics do not apply.
        ((), TopicMetadata(topic=DELETE), COMPACT, True, "delete", "topic (metadata)"),
        ((), TopicMetadata(topic=COMPACT), DELETE, False, "compact", "topic (metadata)"),
        ((), NOTHING, COMPACT, True, "delete", "default"),
        ((), NOTHING, {"log.cleanup.policy": "compact"}, False, "compact", "config"),
        (
            (),
            TopicMetadata(topic={}, brokers={"log.cleanup.policy": "compact"}),
            {"log.cleanup.policy": "delete"},
            False,
            "compact",
            "broker default (metadata)",
        ),
        (
            (),
            TopicMetadata(
                topic={},
                broker={"log.cleanup.policy": "delete"},
                brokers={"log.cleanup.policy": "compact"},
            ),
            {},
            False,
            "delete",
            "broker (metadata)",
        ),
        (
            (),
            TopicMetadata(topic=DELETE, brokers={"log.cleanup.policy": "compact"}),
            {},
            False,
            "delete",
            "topic (metadata)",
        ),
        # An override has precedence over everything.
        (
            ("t:cleanup.policy=compact",),
            TopicMetadata(topic=DELETE),
            DELETE,
            False,
            "compact",
            "topic-config",
        ),
        (("other:cleanup.policy=compact",), None, {}, False, None, "unknown"),
        (
            ("*:cleanup.policy=delete", "t:cleanup.policy=compact"),
            None,
            {},
            False,
            "compact",
            "topic-config",
        ),
        (
            ("t:cleanup.policy=compact", "*:cleanup.policy=delete"),
            None,
            {},
            False,
            "compact",
            "topic-config",
        ),
    ],
)
def test_cleanup_policy_comes_from_the_expected_source(
    lines: tuple[str, ...],
    known: TopicMetadata | None,
    config: dict[str, object],
    is_named: bool,
    policy: str | None,
    source: str,
) -> None:
    found = resolve("t", overriding(*lines), known, config, is_named)
    listed = {setting.name: setting for setting in found.listed}["cleanup.policy"]
    assert (listed.value, listed.source) == (policy, source)
    assert found.is_policy_known is (policy is not None)
    if policy is not None:
        assert ",".join(found.config.cleanup_policy) == policy


def test_other_settings_fall_back_one_by_one() -> None:
    known = TopicMetadata(
        topic={"retention.ms": "1"},
        broker={"log.retention.bytes": "7"},
        brokers={"log.retention.bytes": "8", "log.cleaner.min.cleanable.ratio": "0.25"},
    )
    config = {
        "retention.ms": 5,
        "segment.bytes": 2000,
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": 3,
    }
    found = resolve("t", overriding("t*:delete.retention.ms=9"), known, config)
    made = found.config
    assert (made.retention_ms, made.retention_bytes, made.segment_bytes) == (1, 7, 2000)
    assert (made.min_cleanable_dirty_ratio, made.delete_retention_ms) == (0.25, 9)
    assert made.min_compaction_lag_ms == 0 and found.source_of("min_compaction_lag_ms") == "default"
    said = {setting.name: setting for setting in found.listed}
    assert said["retention.ms"].to_dict() == {
        "value": "1",
        "source": "topic (metadata)",
        "synonyms": [
            {"name": "retention.ms", "value": "1", "source": "topic (metadata)"},
            {"name": "retention.ms", "value": "5", "source": "config"},
            {"name": "log.retention.ms", "value": "604800000", "source": "default"},
        ],
    }
    assert [word.source for word in said["retention.bytes"].said] == [
        "broker (metadata)",
        "broker default (metadata)",
        "default",
    ]


def test_overruled_settings_are_reported() -> None:
    known = TopicMetadata(topic={"retention.ms": "1", **DELETE, "segment.bytes": "2000"})
    config = {**COMPACT, "retention.ms": "5", "segment.bytes": 2000, "log.retention.hours": 1}
    told = {each.name: each for each in resolve("clicks", (), known, config).outvoted}
    assert told.keys() == {"cleanup.policy", "retention.ms"}
    assert (
        told["cleanup.policy"].remedy
        == "to override it, give --topic-config clicks:cleanup.policy=compact"
    )
    assert "clicks" in told["cleanup.policy"].message and "delete" in told["cleanup.policy"].message
    assert not resolve(
        "clicks", overriding("*:cleanup.policy=delete"), TopicMetadata(topic={}), COMPACT
    ).outvoted
    assert not resolve("clicks", (), None, COMPACT).outvoted
    [silent] = resolve("clicks", (), NOTHING, COMPACT).outvoted
    assert (silent.value, silent.source) == ("delete", "default")


def test_retention_uses_only_known_settings() -> None:
    stated = {"retention.ms": 1, "retention.bytes": 2}

    def limits(known: TopicMetadata | None, config: dict[str, object]) -> tuple[int, int]:
        found = resolve("t", (), known, config).of_retention
        return found.retention_ms, found.retention_bytes

    assert limits(TopicMetadata(topic={**DELETE, **stated}), {}) == (1, 2)
    assert limits(TopicMetadata(topic=stated), {}) == (-1, -1), "nobody states the policy"
    assert limits(TopicMetadata(topic=stated), {"log.cleanup.policy": "delete"}) == (1, 2)
    assert limits(TopicMetadata(topic=DELETE), {}) == (-1, -1), "nobody states the age"
    assert limits(TopicMetadata(topic=DELETE), {"log.retention.hours": 1}) == (3_600_000, -1)
    assert limits(NOTHING, {"log.dirs": "/data"}) == (604_800_000, -1), (
        "a broker's whole file: the rest are defaults"
    )
    assert limits(None, {**DELETE, "log.retention.hours": 1, "log.dirs": "/data"}) == (-1, -1)
    assert limits(None, {**DELETE, **stated}) == (1, 2)


def test_most_specific_then_latest_override_wins() -> None:
    lines = overriding(
        "orders:a=1", "*:a=2", "orders-*:b=3", "o*:b=4", "orders:a=5", "orders:c=x:y=z"
    )
    assert overrides_of("orders", lines) == {"a": "5", "c": "x:y=z", "b": "4"}
    assert overrides_of("orders-eu", lines) == {"a": "2", "b": "4"}
    assert overrides_of("Orders", lines) == {"a": "2"}


def test_overrides_file_is_decoded() -> None:
    text = "# of the archive\n\n  orders:cleanup.policy=compact,delete \n\t# more\nlog-*:retention.ms=5\n"
    assert decode_overrides_file(text) == (
        Override("orders", "cleanup.policy", "compact,delete"),
        Override("log-*", "retention.ms", "5"),
    )
    with pytest.raises(
        InvalidConfig,
        match="line 2, 'cleanup.policy=compact' does not have the form TOPIC:NAME=VALUE",
    ):
        decode_overrides_file("\ncleanup.policy=compact\n")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("t:no.such=1", "there is no setting"),
        ("t:cleanup.policy=compress", "must be one of compact, delete"),
        ("t:log.cleanup.policy=compact", "a setting of brokers"),
        ("t:log.dirs=/x", "a setting of brokers"),
        ("t:retention.ms=soon", "a whole number"),
        ("t", "TOPIC:NAME=VALUE"),
        (":a=b", "TOPIC:NAME=VALUE"),
    ],
)
def test_wrong_override_is_refused(line: str, message: str) -> None:
    with pytest.raises(InvalidConfig, match=message):
        check_overrides(overriding(line))
