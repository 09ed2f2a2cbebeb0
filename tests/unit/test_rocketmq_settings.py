"""Tests of RocketMQ's settings: names, defaults and errors."""

from __future__ import annotations

import pytest

from lastwrite.errors import InvalidConfig
from lastwrite.rocketmq.rules.settings import RocketmqConfig


def test_empty_settings_give_the_defaults() -> None:
    config = RocketmqConfig.from_names({})
    assert (config.min_cleanable_dirty_ratio, config.delete_retention_ms) == (0.5, 86_400_000)
    assert (config.keyless_messages, config.unclean, config.compacts) == ("drop", False, True)


def test_settings_are_parsed_from_text_and_values() -> None:
    config = RocketmqConfig.from_names(
        {
            "delete.retention.ms": "0",
            "min.cleanable.dirty.ratio": 0.25,
            "keyless.messages": " Keep ",
            "unclean": "true",
            "compactionMappedFileSize": "5060",
            "brokerName": "a",
            "max.compaction.lag.ms": 7,
        }
    )
    assert config == RocketmqConfig(
        delete_retention_ms=0,
        min_cleanable_dirty_ratio=0.25,
        keyless_messages="keep",
        unclean=True,
        max_compaction_lag_ms=7,
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("compactionMapedFileSize", "1", "did you mean compactionMappedFileSize"),
        ("zzz", "1", "use one of the settings"),
        ("delete.retention.ms", "-1", "at least 0"),
        ("delete.retention.ms", "soon", "whole number"),
        ("keyless.messages", "maybe", "one of drop, keep"),
        ("unclean", "yes", "true or false"),
        ("min.cleanable.dirty.ratio", "2", "at most 1"),
    ],
)
def test_unknown_or_invalid_setting_is_refused(name: str, value: object, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        RocketmqConfig.from_names({name: value})


def test_min_lag_above_max_lag_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"more than max\.compaction\.lag\.ms"):
        RocketmqConfig.from_names({"min.compaction.lag.ms": 8, "max.compaction.lag.ms": 7})
