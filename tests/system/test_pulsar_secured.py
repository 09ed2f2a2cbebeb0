"""Tests of live topics with authentication: ``client.conf``, tokens, TLS, certificates, and
ZooKeeper with access lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from kazoo.client import KazooClient

import lastwrite
from lastwrite.config.properties import decode_properties
from lastwrite.errors import LogError
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.network.cluster import ClusterAccess, PulsarCluster
from lastwrite.pulsar.network.identity import PulsarCredentials
from lastwrite.pulsar.network.tls import TlsSocket
from lastwrite.pulsar.rules.live_settings import LiveConfig
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.broker import Unavailable, pulsar_home
from tests.support.pulsar.secured import OURS, PLUGIN, SUPER, Keys, SecuredBroker

pytestmark = [pytest.mark.broker, pytest.mark.slow]

TOPIC = "persistent://public/default/safe"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    try:
        return Keys(tmp_path_factory.mktemp("secured") / "keys")
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def broker(keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    try:
        made = SecuredBroker(pulsar_home(), tmp_path_factory.mktemp("secured") / "data", keys)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        client = client_of(made)
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for n in range(30):
            producer.send(b"%d" % n, partition_key=f"k{n % 5}")
        client.close()
        made.close_the_store()
        yield made


def client_of(broker: SecuredBroker) -> pulsar.Client:
    return pulsar.Client(
        broker.service_url,
        authentication=pulsar.AuthenticationToken(broker.keys.token("admin")),
        tls_trust_certs_file_path=broker.keys.path("ca.pem"),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def client_conf(broker: SecuredBroker, **other: str) -> dict[str, object]:
    """A ``client.conf`` as Pulsar's own tools read it, and the settings that only we need."""
    text = f"""
# as the release has it, filled in
webServiceUrl={broker.admin_url}/
brokerServiceUrl={broker.service_url}/
authPlugin={PLUGIN}AuthenticationToken
authParams=file://{broker.keys.path("token")}
tlsAllowInsecureConnection=false
tlsEnableHostnameVerification=true
tlsTrustCertsFilePath={broker.keys.path("ca.pem")}
useKeyStoreTls=false
tlsKeyStoreType=JKS
tlsKeyStorePath=
"""
    return {
        **decode_properties(text),
        "metadataStoreUrl": f"zk:{broker.metadata_store}",
        "metadataStoreAuth": f"file://{broker.keys.path('zookeeper')}",
        "bookkeeperTLSClientAuthentication": "true",
        "bookkeeperTLSTrustCertsFilePath": broker.keys.path("ca.pem"),
        "bookkeeperTLSCertificateFilePath": broker.keys.path("admin.pem"),
        "bookkeeperTLSKeyFilePath": broker.keys.path("admin.key"),
        **other,
    }


def compact(config: dict[str, object]) -> dict[str, object]:
    report = lastwrite.compact(TOPIC, config=config, spark=INLINE)
    (found,) = report.to_dict()["partitions"]
    assert found["status"] != Status.FAILED, found
    return dict(found)


def test_topic_is_fetched_and_compacted_with_a_client_conf(
    broker: SecuredBroker, tmp_path: Path
) -> None:
    config = client_conf(broker)
    assert lastwrite.fetch([TOPIC], str(tmp_path), config=config).exit_status == 0
    expected = {f"k{n % 5}": b"%d" % n for n in range(30)}
    assert lastwrite.latest(str(tmp_path), "public/default/safe") == expected
    found = compact(config)
    assert found["status"] == Status.CLEANED
    client = client_of(broker)
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
    seen = {}
    while reader.has_message_available():
        message = reader.read_next(10_000)
        seen[message.partition_key()] = message.data()
    client.close()
    assert seen == expected
    # The access list of our nodes admits only the broker, like that of the nodes around them.
    store = KazooClient(broker.metadata_store, auth_data=[("digest", SUPER)])
    store.start(30)
    number = f"{found['published']['ledger']:010d}"  # type: ignore[index]
    made, _ = store.get_acls(f"/ledgers/{number[:2]}/{number[2:6]}/L{number[6:]}")
    around, _ = store.get_acls("/ledgers")
    store.stop()
    store.close()
    assert made == around and {each.id.scheme for each in made} == {"sasl", "digest"}


def test_every_form_of_credentials_is_accepted(broker: SecuredBroker, tmp_path: Path) -> None:
    pair = [broker.keys.path("admin.pem"), broker.keys.path("admin.key")]
    told = {"tlsCertFile": pair[0], "tlsKeyFile": pair[1]}
    by_certificate = {"authPlugin": f"{PLUGIN}AuthenticationTls"}
    ways = [
        {"authParams": f"token:{broker.keys.token('admin')}"},
        {"authParams": json.dumps({"token": broker.keys.token("admin")})},
        {**by_certificate, "authParams": f"tlsCertFile:{pair[0]},tlsKeyFile:{pair[1]}"},
        {**by_certificate, "authParams": json.dumps(told)},
        {
            **by_certificate,
            "authParams": "",
            "tlsCertificateFilePath": pair[0],
            "tlsKeyFilePath": pair[1],
        },
        {"metadataStoreAuth": f"digest:{OURS}"},
        # brokers from the metadata store, which has their listeners
        {"brokerServiceUrl": "", "webServiceUrl": "", "useTls": "true"},
        {"brokerServiceUrl": "", "webServiceUrl": ""},
    ]
    for n, way in enumerate(ways):
        to = tmp_path / str(n)
        found = lastwrite.fetch([TOPIC], str(to), config=client_conf(broker, **way))
        assert found.exit_status == 0, way


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"authParams": "token:{stranger}"}, "not authorized|authoriz|denied|permission"),
        ({"authParams": "token:{bad}"}, "(?i)authenticat"),
        ({"authPlugin": "", "authParams": ""}, "(?i)authenticat|requires authentication"),
        ({"tlsTrustCertsFilePath": "{keys}/stranger.pem"}, "certificate is not trusted"),
        ({"brokerServiceUrl": "pulsar://{address}"}, "closed|reset|frame length"),
        ({"metadataStoreAuth": ""}, "refuses access"),
        ({"metadataStoreAuth": "digest:lastwrite:no"}, "refuses access"),
        (
            {"bookkeeperTLSTrustCertsFilePath": "{keys}/stranger.pem"},
            "bookie's certificate is not trusted",
        ),
        ({"bookkeeperTLSCertificateFilePath": "", "bookkeeperTLSKeyFilePath": ""}, "bookie"),
    ],
)
def test_refused_access_is_explained_without_secrets(
    broker: SecuredBroker, tmp_path: Path, change: dict[str, str], said: str
) -> None:
    secret = broker.keys.token("admin")
    places = {
        "stranger": broker.keys.token("stranger"),
        "bad": secret[:-6] + "AAAAAA",
        "keys": broker.keys.path(""),
        "address": broker.address,
    }
    changed = {name: text.format(**places) for name, text in change.items()}
    with pytest.raises(LogError) as caught:
        lastwrite.fetch([TOPIC], str(tmp_path), config=client_conf(broker, **changed))
    text = f"{caught.value!r} {caught.value} {caught.value.remedy}"
    assert re.search(said, text), text
    for hidden in (secret, places["bad"], places["stranger"], OURS, "lastwrite:no"):
        assert hidden not in text and hidden.rpartition(".")[2] not in text


def test_bookie_entries_are_read_over_tls(broker: SecuredBroker) -> None:
    config = LiveConfig.from_names(client_conf(broker))
    secret = broker.keys.token("admin")
    assert secret not in repr(config) and "let me in" not in repr(config)
    access = ClusterAccess(
        metadata_store=config.metadata_store,
        identity=PulsarCredentials(config.login, config.tls, True),
        bookies_tls=config.bookies_tls,
        store_auth=config.store_auth,
    )
    assert "let me in" not in repr(access)
    with PulsarCluster(access) as cluster:
        found = cluster.store.managed_ledger(TopicName.parse(TOPIC))
        assert found is not None
        ledger = cluster.store.ledger(found[1].ledgers[0].ledger)
        assert ledger is not None
        entries = list(cluster.bookies.read(ledger, 0, 29))
        assert [entry for entry, _ in entries] == list(range(30))
        (link,) = cluster.bookies._links.values()
        assert isinstance(link._socket, TlsSocket)
