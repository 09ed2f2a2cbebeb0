"""Where a live cluster is, by a broker's own settings."""

from __future__ import annotations

import pytest

from lastwrite.errors import InvalidConfig
from lastwrite.pulsar.rules.live_settings import LiveConfig, rules_of

STORE = {"metadataStoreUrl": "zk:h:2181"}


def test_a_store_is_enough() -> None:
    found = LiveConfig.from_names(STORE)
    assert (found.metadata_store, found.ledgers, found.brokers) == ("zk:h:2181", "/ledgers", "")
    assert (found.token, found.mark_deletes_a_second, found.quorums, found.goes_on) == (
        None,
        1.0,
        None,
        False,
    )
    assert LiveConfig.from_names({"zookeeperServers": "a:1,b:2"}).metadata_store == "a:1,b:2"
    with pytest.raises(InvalidConfig, match="metadata store"):
        LiveConfig.from_names({"metadataStoreUrl": ""})


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("", "/ledgers"),
        ("zk+hierarchical://h:2181/ledgers", "/ledgers"),
        ("zk://h:2181;i:2181/other/ledgers/", "/other/ledgers"),
        ("metadata-store:zk:h:2181/bk", "/bk"),
        ("zk:h:2181", "/ledgers"),
    ],
)
def test_the_ledgers_may_lie_elsewhere(uri: str, path: str) -> None:
    assert LiveConfig.from_names({**STORE, "bookkeeperMetadataServiceUri": uri}).ledgers == path


def test_all_quorums_or_none() -> None:
    names = (
        "managedLedgerDefaultEnsembleSize",
        "managedLedgerDefaultWriteQuorum",
        "managedLedgerDefaultAckQuorum",
    )
    given = dict(zip(names, ("3", "2", 2), strict=True))
    assert LiveConfig.from_names({**STORE, **given}).quorums == (3, 2, 2)
    for name in names:
        with pytest.raises(InvalidConfig, match="a part of the quorums"):
            LiveConfig.from_names({**STORE, **{each: 1 for each in given if each != name}})


def test_tokens_are_spoken_and_nothing_else() -> None:
    plugin, parameters = "brokerClientAuthenticationPlugin", "brokerClientAuthenticationParameters"
    ours = "org.apache.pulsar.client.impl.auth.AuthenticationToken"
    assert LiveConfig.from_names({**STORE, plugin: ours, parameters: "token:abc"}).token == "abc"
    assert LiveConfig.from_names({**STORE, parameters: ""}).token is None
    with pytest.raises(InvalidConfig, match="AuthenticationTls"):
        LiveConfig.from_names(
            {**STORE, plugin: "org.apache.pulsar.client.impl.auth.AuthenticationTls"}
        )
    with pytest.raises(InvalidConfig, match="names a file"):
        LiveConfig.from_names({**STORE, plugin: ours, parameters: "file:///token"})


def test_a_clients_names_for_a_token_stand_behind_a_brokers() -> None:
    given = {**STORE, "authParams": "token:client"}
    assert LiveConfig.from_names(given).token == "client"
    given["brokerClientAuthenticationParameters"] = "token:broker"
    assert LiveConfig.from_names(given).token == "broker"
    with pytest.raises(InvalidConfig, match="authPlugin is 'x'"):
        LiveConfig.from_names({**STORE, "authPlugin": "x"})


def test_what_no_broker_knows_is_kept_from_the_rules() -> None:
    given = {
        **STORE,
        "brokerServiceUrl": "pulsar://h:6650",
        "unclean": True,
        "topicCompactionRetainNullKey": "true",
    }
    assert given.keys() - rules_of(given).keys() == {"unclean"}
    assert LiveConfig.from_names(given).goes_on
