"""Tests of reading Pulsar's broker.conf, and of its errors."""

from __future__ import annotations

import pytest

from lastwrite.errors import InvalidConfig
from lastwrite.pulsar.rules.settings import PulsarConfig

EVENT_TIME = "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"


def test_empty_settings_give_the_defaults() -> None:
    config = PulsarConfig.from_names({})
    assert (config.retain_null_key, config.by_event_time, config.compaction_threshold_bytes) == (
        False,
        False,
        0,
    )
    assert (config.ensemble_size, config.write_quorum, config.ack_quorum) == (2, 2, 2)


def test_broker_conf_is_read() -> None:
    config = PulsarConfig.from_names(
        {
            "topicCompactionRetainNullKey": " True ",
            "compactionServiceFactoryClassName": EVENT_TIME,
            "brokerServiceCompactionThresholdInBytes": "100",
            "clusterName": "a",
            "bookkeeper_tlsProvider": "x",
            "s3ManagedLedgerOffloadBucket": "b",
            "compactionWriteMaxBytesPerSecond": "1000",
            "defaultRetentionTimeInMinutes": "-1",
        }
    )
    assert config == PulsarConfig(
        retain_null_key=True,
        service_factory=EVENT_TIME,
        compaction_threshold_bytes=100,
        retention_time_minutes=-1,
    )
    assert config.by_event_time


def test_topic_setting_takes_precedence_over_the_brokers() -> None:
    names = {"brokerServiceCompactionThresholdInBytes": 5, "compactionThreshold": "10M"}
    assert PulsarConfig.from_names(names).compaction_threshold_bytes == 10 << 20


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("topicCompactionRetainNulKey", "true", "did you mean topicCompactionRetainNullKey"),
        ("zzz", "1", "use one of the settings"),
        ("topicCompactionRetainNullKey", "yes", "true or false"),
        ("compactionThreshold", "-1", "at least 0"),
        ("compactionThreshold", "10X", "whole number"),
        ("compactionServiceFactoryClassName", "com.acme.Own", "is not supported"),
        ("managedLedgerDefaultAckQuorum", "3", "contradict each other"),
    ],
)
def test_unknown_or_invalid_setting_is_refused(name: str, value: object, said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        PulsarConfig.from_names({name: value})
