"""Tests of settings as a broker 4.4.0 describes them. ``test_serve_tools`` compares them with a
broker.
"""

from __future__ import annotations

from lastwrite.kafka.rules.described_settings import (
    BrokerSettings,
    ConfigSource,
    DescribedSetting,
    SettingType,
    Synonym,
    is_broker_setting,
)
from lastwrite.kafka.rules.setting_tables import BROKER_SETTINGS, TOPIC_SETTINGS
from lastwrite.kafka.rules.settings import is_setting

_TOPIC, _BROKER, _BROKERS = ConfigSource.TOPIC, ConfigSource.BROKER, ConfigSource.BROKERS
_FILE, _DEFAULT = ConfigSource.FILE, ConfigSource.DEFAULT


def _one(settings: list[DescribedSetting], name: str) -> DescribedSetting:
    (found,) = (each for each in settings if each.name == name)
    return found


def test_each_setting_of_a_broker_is_accepted_in_its_properties_file() -> None:
    assert len(BROKER_SETTINGS) == 351
    assert [name for name in BROKER_SETTINGS if not is_setting(name)] == []
    assert is_broker_setting("listener.name.client.ssl.keystore.location")
    assert not is_broker_setting("storage.endpoint")


def test_synonyms_are_ordered_by_source_then_by_unit() -> None:
    broker = BrokerSettings(
        {"log.retention.ms": "1000"},
        {"log.retention.ms": "2000", "log.cleaner.threads": "3"},
        {"log.retention.minutes": "5", "log.cleaner.threads": " 04"},
    )
    age = _one(broker.describe_topic({"retention.ms": "7"}), "retention.ms")
    assert (age.value, age.source) == ("7", _TOPIC)
    assert age.synonyms == (
        Synonym("retention.ms", "7", _TOPIC),
        Synonym("log.retention.ms", "1000", _BROKER),
        Synonym("log.retention.ms", "2000", _BROKERS),
        Synonym("log.retention.minutes", "5", _FILE),
        Synonym("log.retention.hours", "168", _DEFAULT),
    )
    threads = _one(broker.describe(), "log.cleaner.threads")
    assert (threads.value, threads.source, threads.is_dynamic) == ("3", _BROKERS, True)
    file_alone = BrokerSettings(file={"log.cleaner.threads": " 04"}).describe()
    assert _one(file_alone, "log.cleaner.threads").value == "4"


def test_coarser_unit_gives_the_value_but_is_not_a_synonym() -> None:
    """A broker drops the synonyms that precede the first one with the setting's own name."""
    topic = BrokerSettings(file={"log.roll.hours": "2"}).describe_topic({})
    assert _one(topic, "segment.ms") == DescribedSetting(
        "segment.ms", "7200000", SettingType.LONG, True, ()
    )
    age = _one(
        BrokerSettings(file={"log.retention.minutes": "-3"}).describe_topic({}), "retention.ms"
    )
    assert (age.value, age.source) == ("-1", _DEFAULT)


def test_secrets_and_unknown_settings_have_no_value() -> None:
    name = "listener.name.client.ssl.keystore.password"
    broker = BrokerSettings(
        {name: "hunter2", "plugin.password": "hunter2"}, None, {name: "hunter2"}
    )
    for each in (name, "plugin.password"):
        found = _one(broker.describe(), each)
        assert found.value is None and found.is_sensitive and not found.is_dynamic
        assert {synonym.value for synonym in found.synonyms} == {None}
    assert "hunter2" not in repr(broker.describe())


def test_listener_setting_has_the_general_setting_as_a_synonym() -> None:
    name = "listener.name.client.scram-sha-256.sasl.login.class"
    broker = BrokerSettings({name: "A"}, None, {"sasl.login.class": "B"})
    assert _one(broker.describe(), name).synonyms == (
        Synonym(name, "A", _BROKER),
        Synonym("sasl.login.class", "B", _FILE),
    )


def test_dynamic_defaults_are_described_without_other_sources() -> None:
    broker = BrokerSettings({"log.cleaner.threads": "2"}, {"log.cleaner.threads": "3"})
    (found,) = broker.describe_defaults()
    assert found.value == "3"
    assert found.synonyms == (Synonym("log.cleaner.threads", "3", _BROKERS),)


def test_internal_settings_are_listed_if_a_topic_sets_them() -> None:
    broker = BrokerSettings()
    assert {each.name for each in broker.describe_topic({})} == TOPIC_SETTINGS.keys()
    found = broker.describe_topic({"internal.segment.bytes": "1500"})
    assert _one(found, "internal.segment.bytes").value == "1500"


def test_group_settings_default_to_the_brokers() -> None:
    broker = BrokerSettings(file={"group.consumer.session.timeout.ms": "50000"})
    found = broker.describe_group({"share.auto.offset.reset": "earliest"})
    session = _one(found, "consumer.session.timeout.ms")
    assert (session.value, session.source) == ("50000", _FILE)
    assert _one(found, "share.auto.offset.reset").synonyms == (
        Synonym("share.auto.offset.reset", "earliest", ConfigSource.GROUP),
        Synonym("share.auto.offset.reset", "latest", _DEFAULT),
    )
