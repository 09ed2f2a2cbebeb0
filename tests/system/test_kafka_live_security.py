"""Tests of ``fetch`` and ``restore`` with authentication: TLS and SASL against a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

import lastwrite
from lastwrite.errors import LogError
from lastwrite.kafka.jobs import produce_restore
from lastwrite.kafka.restored import LogsGiven
from lastwrite.reports.fetching import LogsFetched
from tests.conformance.test_kafka_archive import Archive
from tests.support.certificates import certificates
from tests.support.jars import free_ports
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import Sent, consume, create_topic, produce
from tests.support.kafka.groups import committed

pytest.importorskip("kio")
pytestmark = [pytest.mark.broker]

USER, PASSWORD = "al=i,ce", 's3cr"et=,é'  # characters that SCRAM and a jaas.config must quote
TLS, SASL, BOTH = free_ports(3)
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required "
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def broker(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keys / "broker.both"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(keys / "client.pem"),
        "listener.name.tls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "connections.max.reauth.ms": "3000",
    }
    for name in ("sasl", "both"):
        for mechanism, login in {
            "plain": f'{PLAIN} username="a" password="b" user_bob="pw";',
            "scram-sha-256": SCRAM,
            "scram-sha-512": SCRAM,
        }.items():
            settings[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = login
    listeners = {
        "TLS": ("SSL", TLS, TLS),
        "SASL": ("SASL_PLAINTEXT", SASL, SASL),
        "BOTH": ("SASL_SSL", BOTH, BOTH),
    }
    try:
        folder = tmp_path_factory.mktemp("safe") / "data"
        made = Broker(kafka_home(), folder, settings, listeners=listeners)
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made:
        create_topic(made, "safe", {})
        produce(made, "safe", [Sent(b"%d" % n, bytes(1000), 1) for n in range(100)])
        admin = AdminClient({"bootstrap.servers": made.address})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            told = UserScramCredentialUpsertion(
                USER, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode()
            )
            for done in admin.alter_user_scram_credentials([told]).values():
                done.result(30)
        yield made


def fetched(port: int, to: Path, config: dict[str, Any]) -> LogsFetched:
    found = lastwrite.fetch([f"kafka://127.0.0.1:{port}"], str(to), topic="safe", config=config)
    assert isinstance(found, LogsFetched)
    return found


def check(broker: Broker, to: Path) -> None:
    files = sorted((broker.data / "safe-0").glob("*.log"))
    assert b"".join(Archive(to, "safe-0").batches()) == b"".join(p.read_bytes() for p in files)


def tls(keys: Path, name: str = "client", ca: str = "broker") -> dict[str, str]:
    return {
        "security.protocol": "SSL",
        "ssl.ca.location": str(keys / f"{ca}.pem"),
        "ssl.certificate.location": str(keys / f"{name}.pem"),
        "ssl.key.location": str(keys / f"{name}.key"),
    }


def sasl(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def test_client_certificate_is_accepted(broker: Broker, keys: Path, tmp_path: Path) -> None:
    assert fetched(TLS, tmp_path, tls(keys)).exit_status == 0
    check(broker, tmp_path)


@pytest.mark.parametrize(
    "mechanism, user, password",
    [
        ("PLAIN", "bob", "pw"),
        ("SCRAM-SHA-256", USER, PASSWORD),
        ("SCRAM-SHA-512", USER, PASSWORD),
    ],
)
def test_sasl_mechanisms_are_accepted(
    broker: Broker, keys: Path, tmp_path: Path, mechanism: str, user: str, password: str
) -> None:
    assert fetched(SASL, tmp_path / "a", sasl(mechanism, user, password)).exit_status == 0
    check(broker, tmp_path / "a")
    login = f'x.Module required username="{quoted(user)}" password="{quoted(password)}";'
    config = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": login,
        "ssl.truststore.location": str(keys / "broker.pem"),
    }
    assert fetched(BOTH, tmp_path / "b", config).exit_status == 0
    check(broker, tmp_path / "b")


@pytest.mark.parametrize("way", ["tls", "sasl", "both"])
def test_restore_authenticates_with_tls_and_sasl(
    broker: Broker, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Restores records and a group's offset by certificate, by SASL, and by SASL within TLS.

    With SASL the broker requires reauthentication during the restore.
    """
    logins: dict[str, tuple[int, dict[str, str]]] = {
        "tls": (TLS, tls(keys)),
        "sasl": (SASL, sasl("SCRAM-SHA-256", USER, PASSWORD)),
        "both": (
            BOTH,
            sasl("SCRAM-SHA-512", USER, PASSWORD)
            | {"security.protocol": "SASL_SSL", "ssl.ca.location": str(keys / "broker.pem")},
        ),
    }
    port, config = logins[way]
    address, group = f"kafka://127.0.0.1:{port}", f"reader-{way}"
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
    consumer.commit(offsets=[TopicPartition("safe", 0, 70)], asynchronous=False)
    consumer.close()
    assert fetched(port, tmp_path, config).exit_status == 0
    if way == "sasl":
        write = produce_restore.PartitionRestore._write
        monkeypatch.setattr(produce_restore, "_WINDOW_BATCHES", 5)

        def slowly(
            self: produce_restore.PartitionRestore, given: produce_restore.RestoreProgress
        ) -> None:
            time.sleep(1)
            write(self, given)

        monkeypatch.setattr(produce_restore.PartitionRestore, "_write", slowly)
    report = lastwrite.restore(str(tmp_path), to=address, name=f"back-{way}", config=config)
    assert isinstance(report, LogsGiven) and report.exit_status == 0, report
    found = consume(broker, f"back-{way}")
    assert [each.key for each in found] == [b"%d" % n for n in range(100)]
    assert committed(broker, group, [f"back-{way}"]) == {f"back-{way}": found[70].offset}
    wrong = {"security.protocol": "PLAINTEXT"} if way == "tls" else {"sasl.password": "guess"}
    with pytest.raises(LogError) as caught:
        lastwrite.restore(str(tmp_path), to=address, name="never", config=config | wrong)
    assert "guess" not in str(caught.value)


def test_fetch_reauthenticates(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetch takes longer than the broker's session lifetime."""
    from lastwrite.kafka.network import live_log
    from lastwrite.kafka.store.archive_writer import KafkaArchiveWriter

    real, taken = KafkaArchiveWriter.append, 0

    def append(self: KafkaArchiveWriter, data: Any, table: Any) -> None:
        nonlocal taken
        taken += 1
        time.sleep(1)
        real(self, data, table)

    monkeypatch.setattr(KafkaArchiveWriter, "append", append)
    monkeypatch.setattr(live_log, "_FETCH_BYTES", 20_000)
    found = fetched(SASL, tmp_path, sasl("SCRAM-SHA-256", USER, PASSWORD))
    assert found.exit_status == 0 and taken >= 4
    check(broker, tmp_path)


def test_wrong_credentials_are_refused_without_showing_them(
    broker: Broker, keys: Path, tmp_path: Path
) -> None:
    wrong = {
        "the broker refused user": (SASL, sasl("SCRAM-SHA-256", USER, "guess")),
        "the broker refused user bob": (SASL, sasl("PLAIN", "bob", "guess")),
        "certificate is not trusted": (TLS, tls(keys, ca="stranger")),
        "TLS handshake failed|closed|reset": (TLS, tls(keys, name="stranger")),
        "requires TLS": (TLS, {}),
        "the TLS handshake failed: ": (int(broker.address.rpartition(":")[2]), tls(keys)),
        "needs a user": (SASL, {"security.protocol": "SASL_PLAINTEXT"}),
        "must be one of PLAIN": (SASL, sasl("GSSAPI", "a", "guess")),
        "cannot be read": (TLS, tls(keys, ca="missing")),
        "has no username": (SASL, {"sasl.jaas.config": "guess"}),
        "closed|reset": (SASL, {}),
    }
    for words, (port, config) in wrong.items():
        with pytest.raises(LogError, match=words) as caught:
            fetched(port, tmp_path, config)
        assert "guess" not in str(caught.value)
    assert not list(tmp_path.iterdir())
