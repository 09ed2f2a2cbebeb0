"""Tests of finding a live cluster by a broker's own settings."""

from __future__ import annotations

import pytest

from lastwrite.errors import InvalidConfig
from lastwrite.pulsar.rules.live_settings import LiveConfig, Login, TlsFiles, rules_of

STORE = {"metadataStoreUrl": "zk:h:2181"}


def test_metadata_store_is_the_only_required_setting() -> None:
    found = LiveConfig.from_names(STORE)
    assert (found.metadata_store, found.ledgers, found.brokers) == ("zk:h:2181", "/ledgers", "")
    assert (found.login, found.mark_deletes_a_second, found.quorums, found.goes_on) == (
        Login(),
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
def test_ledgers_may_have_another_path(uri: str, path: str) -> None:
    assert LiveConfig.from_names({**STORE, "bookkeeperMetadataServiceUri": uri}).ledgers == path


def test_quorums_are_given_completely_or_not_at_all() -> None:
    names = (
        "managedLedgerDefaultEnsembleSize",
        "managedLedgerDefaultWriteQuorum",
        "managedLedgerDefaultAckQuorum",
    )
    given = dict(zip(names, ("3", "2", 2), strict=True))
    assert LiveConfig.from_names({**STORE, **given}).quorums == (3, 2, 2)
    for name in names:
        with pytest.raises(InvalidConfig, match="only some of the quorum settings"):
            LiveConfig.from_names({**STORE, **{each: 1 for each in given if each != name}})


PLUGIN, PARAMETERS = "brokerClientAuthenticationPlugin", "brokerClientAuthenticationParameters"
AUTH = "org.apache.pulsar.client.impl.auth."


def live(**names: str) -> LiveConfig:
    return LiveConfig.from_names({**STORE, **names})


@pytest.mark.parametrize(
    ("text", "token", "file"),
    [
        ("token:a.b-c_=", "a.b-c_=", ""),
        ("abc", "abc", ""),
        ('{"token": "abc"}', "abc", ""),
        ("file:///etc/a%20token", "", "/etc/a token"),
        ("file:/etc/token", "", "/etc/token"),
    ],
)
def test_token_is_accepted_in_each_form(text: str, token: str, file: str) -> None:
    expected = Login(method="token", token=token, token_file=file)
    assert live(authParams=text).login == expected
    given = {PLUGIN: f"{AUTH}AuthenticationToken", PARAMETERS: text}
    assert live(**given).login == expected
    assert token == "" or token not in repr(expected)


def test_invalid_token_is_not_shown() -> None:
    for text in ("token:", "token:sec ret", "token:secret\nX: y", '{"tok": "secret"}', "{secret"):
        with pytest.raises(InvalidConfig, match="authParams has no valid token") as caught:
            live(authParams=text)
        assert "secret" not in str(caught.value)


def test_other_authentication_plugins_are_refused() -> None:
    for name in (PLUGIN, "authPlugin"):
        with pytest.raises(InvalidConfig, match=f"{name} is '{AUTH}AuthenticationSasl'"):
            live(**{name: f"{AUTH}AuthenticationSasl"})


def test_broker_token_takes_precedence_over_a_client_token() -> None:
    assert live(authParams="token:client").login.token == "client"
    assert live(authParams="token:client", **{PARAMETERS: "token:broker"}).login.token == "broker"
    assert live(**{PARAMETERS: ""}).login == Login()


def test_client_certificate_comes_from_the_plugin_or_the_files() -> None:
    plugin = {"authPlugin": f"{AUTH}AuthenticationTls"}
    told = "tlsCertFile:/c.pem,tlsKeyFile:/k.pem"
    for parameters in (told, '{"tlsCertFile": "/c.pem", "tlsKeyFile": "/k.pem"}', ""):
        files = {"tlsCertificateFilePath": "/c.pem", "tlsKeyFilePath": "/k.pem"}
        found = live(**plugin, authParams=parameters, **({} if parameters else files))
        assert (found.login, found.tls.certificate, found.tls.key) == (
            Login(method="tls"),
            "/c.pem",
            "/k.pem",
        )


def test_client_certificate_takes_precedence_over_the_brokers() -> None:
    files = {"tlsCertificateFilePath": "/server.pem", "tlsKeyFilePath": "/server.key"}
    assert live(**files).tls.certificate == "/server.pem"
    found = live(**files, brokerServicePort="6650", tlsTrustCertsFilePath="/ca.pem").tls
    assert (found.certificate, found.key, found.trusted) == ("", "", "/ca.pem")
    ours = {"brokerClientCertificateFilePath": "/c.pem", "brokerClientKeyFilePath": "/k.pem"}
    found = live(**files, **ours, brokerClientTrustCertsFilePath="/c.ca").tls
    assert (found.certificate, found.key, found.trusted) == ("/c.pem", "/k.pem", "/c.ca")


def test_tls_follows_the_url_and_its_settings() -> None:
    assert not live(brokerServiceUrl="pulsar://h:6650").uses_tls
    assert live(brokerServiceUrl="pulsar+ssl://h:6651").uses_tls
    assert live(brokerClientTlsEnabled="true").uses_tls and live(useTls="TRUE").uses_tls
    found = live(tlsEnableHostnameVerification="true", tlsAllowInsecureConnection="true").tls
    assert found.verifies_host and found.is_insecure
    with pytest.raises(InvalidConfig, match="cannot read Java key stores"):
        live(useKeyStoreTls="true")


def test_bookies_use_tls_as_the_broker_does() -> None:
    files = {"bookkeeperTLSTrustCertsFilePath": "/ca.pem"}
    assert live(**files).bookies_tls is None
    on = {**files, "bookkeeperTLSClientAuthentication": "true"}
    assert live(**on).bookies_tls == TlsFiles(trusted="/ca.pem")
    with pytest.raises(InvalidConfig, match="is not PEM"):
        live(**on, bookkeeperTLSKeyFileType="JKS")


def test_settings_that_no_broker_has_are_not_passed_to_rounds() -> None:
    given = {
        **STORE,
        "brokerServiceUrl": "pulsar://h:6650",
        "unclean": True,
        "metadataStoreAuth": "digest:me:secret",
        "topicCompactionRetainNullKey": "true",
    }
    assert given.keys() - rules_of(given).keys() == {"unclean", "metadataStoreAuth"}
    assert LiveConfig.from_names(given).goes_on
