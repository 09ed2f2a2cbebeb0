"""Properties of the precedence of a topic setting's sources."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.kafka.rules.settings import (
    KafkaTopicConfig,
    field_names,
    is_topic_setting,
    names_of,
    topic_name,
)
from lastwrite.kafka.rules.topic_settings import TopicMetadata, resolve
from lastwrite.reports.settings import Override

# Each source has its own value for a field, so that the result shows its source.
_OTHERS = ("cleanup_policy", "compaction_strategy", "hold_tombstones_for_groups")
FIELDS = [name for name in field_names() if name not in _OTHERS]
SOURCES = [
    "topic-config",
    "topic (metadata)",
    "broker (metadata)",
    "broker default (metadata)",
    "config",
]
LIMITS = ("retention_ms", "retention_bytes")


def value_of(field_name: str, place: int) -> object:
    """A valid value of the field, different for each source."""
    default = getattr(KafkaTopicConfig(), field_name)
    if field_name == "message_timestamp_type":
        return ["CreateTime", "LogAppendTime"][place % 2]
    if field_name == "compression_type":
        return ["producer", "gzip", "snappy", "lz4", "zstd"][place]
    if isinstance(default, float):
        return place / 8
    return f"h{place}" if isinstance(default, str) else 1000 + place


@given(st.data())
def test_first_source_that_has_the_setting_wins(data: st.DataObject) -> None:
    field_name = data.draw(st.sampled_from(FIELDS))
    is_known = data.draw(st.booleans())
    said = data.draw(st.sets(st.sampled_from(SOURCES)))
    names = [name for name in names_of(field_name) if not name.endswith((".minutes", ".hours"))]
    of_topics = [name for name in names if is_topic_setting(name)]
    if data.draw(st.booleans()) and len(names) > len(of_topics):
        of_config = data.draw(st.sampled_from([name for name in names if name not in of_topics]))
    else:
        of_config = of_topics[0]
    layers: dict[str, dict[str, object]] = {
        source: {}
        if source not in said
        else {of_config if source == "config" else name: value_of(field_name, place)}
        for place, (source, name) in enumerate(
            (source, of_topics[0] if place < 2 else names[-1])
            for place, source in enumerate(SOURCES)
        )
    }
    known = (
        TopicMetadata(
            topic=layers[SOURCES[1]], broker=layers[SOURCES[2]], brokers=layers[SOURCES[3]]
        )
        if is_known
        else None
    )
    overrides = [
        Override(data.draw(st.sampled_from(["t", "*"])), name, v)
        for name, v in layers[SOURCES[0]].items()
    ]
    found = resolve("t", overrides, known, {"cleanup.policy": "compact", **layers["config"]})

    heard = [
        source
        for source in SOURCES
        if source in said and (is_known or source in ("topic-config", "config"))
    ]
    if not is_known and field_name in LIMITS and not is_topic_setting(of_config):
        heard = [source for source in heard if source != "config"]
    assert found.source_of(field_name) == (heard[0] if heard else "default")
    expected = (
        value_of(field_name, SOURCES.index(heard[0]))
        if heard
        else getattr(KafkaTopicConfig(), field_name)
    )
    assert getattr(found.config, field_name) == expected
    assert [word.source for word in found.candidates[field_name]] == [*heard, "default"]
    others = [name for name in FIELDS if name != field_name]
    assert all(getattr(found.config, name) == getattr(KafkaTopicConfig(), name) for name in others)


@given(st.data())
def test_topic_is_compacted_only_if_a_source_states_it(data: st.DataObject) -> None:
    policies = st.sampled_from(["compact", "delete", "compact,delete"])
    own = data.draw(st.none() | st.dictionaries(st.just("cleanup.policy"), policies))
    config = data.draw(
        st.dictionaries(
            st.sampled_from(["cleanup.policy", "log.cleanup.policy", "log.dirs"]), policies
        )
    )
    is_named = data.draw(st.booleans())
    found = resolve("t", (), None if own is None else TopicMetadata(topic=own), config, is_named)
    if own is None:
        word = config.get("cleanup.policy", "compact" if is_named else None)
    else:
        word = own.get("cleanup.policy", config.get("log.cleanup.policy", "delete"))
    assert found.is_policy_known is (word is not None)
    if word is not None:
        assert ",".join(found.config.cleanup_policy) == word
    if found.of_retention.deletes and (
        found.of_retention.retention_ms,
        found.of_retention.retention_bytes,
    ) != (-1, -1):
        assert found.is_policy_stated
    assert topic_name("cleanup_policy") == "cleanup.policy"
