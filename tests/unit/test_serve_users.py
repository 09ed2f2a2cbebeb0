"""Tests of the users file: its contents, secrets, and the verification of passwords."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.network import access, scram
from lastwrite.kafka.rules.live_settings import KafkaClientConfig
from lastwrite.server.acls import AclEntry, AclTable, Operation, ResourceType
from lastwrite.server.listener_security import ReloadingFile, name_of
from lastwrite.server.sasl import AuthenticationFailed, PlainExchange, ScramExchange, start_sasl
from lastwrite.server.users import (
    ScramKeys,
    SlowHash,
    User,
    Users,
    decode_users,
    encode_users,
    read_users,
)

NAME, PASSWORD = "al=i,ce", "s3cr\u00e9t"


@pytest.fixture(scope="module")
def users() -> Users:
    rules = (
        AclEntry(f"User:{NAME}", Operation.READ, ResourceType.TOPIC, "orders"),
        AclEntry("User:*", Operation.DESCRIBE, ResourceType.GROUP, "a-", True, False, "10.0.0.1"),
    )
    return Users({NAME: User.of(PASSWORD)}, rules)


def test_users_file_round_trips_without_the_password(users: Users) -> None:
    text = encode_users(users)
    assert decode_users(text) == users
    assert PASSWORD not in text and PASSWORD not in repr(users) and "hash=" not in repr(users)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(more=1),
        lambda d: d.update(users=[]),
        lambda d: d.update(acls={}),
        lambda d: d["users"].update({"": {}}),
        lambda d: d["users"].update(bob=3),
        lambda d: d["users"].update(bob={"SCRAM-SHA-1": "x"}),
        lambda d: d["users"].update(bob={"PLAIN": "n=3,r=8,p=1,salt=QQ==,hash=QQ=="}),
        lambda d: d["users"].update(bob={"PLAIN": "n=1048576,r=64,p=1,salt=QQ==,hash=QQ=="}),
        lambda d: d["users"].update(bob={"PLAIN": "hunter2"}),
        lambda d: d["users"].update(bob={"PLAIN": None}),
        lambda d: d["users"].update(
            bob={"SCRAM-SHA-256": "iterations=1,salt=QQ==,stored_key=QQ==,server_key=QQ=="}
        ),
        lambda d: d["users"].update(
            bob={"SCRAM-SHA-256": "iterations=5000,salt=QQ==,stored_key=QQ==,server_key=QQ=="}
        ),
        lambda d: d["acls"].append([]),
        lambda d: d["acls"].append({}),
        lambda d: d["acls"][0].update(operation="SING"),
        lambda d: d["acls"][0].update(resource="MOON"),
        lambda d: d["acls"][0].update(principal="alice"),
        lambda d: d["acls"][0].update(name=""),
        lambda d: d["acls"][0].update(permission="maybe"),
        lambda d: d["acls"][0].update(pattern="GLOB"),
        lambda d: d["acls"][0].update(colour="red"),
    ],
)
def test_malformed_users_file_is_refused(users: Users, change: Any) -> None:
    document = json.loads(encode_users(users))
    change(document)
    with pytest.raises(InvalidConfig) as caught:
        decode_users(json.dumps(document))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", '{"users": {"a": 1}'])
def test_file_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        decode_users(text)


# ---------------------------------------------------------------------- the command


def _piped(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.StringIO(line))


def test_users_command_writes_an_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "users.json"
    _piped(monkeypatch, "secret\n")
    adding = ["--add", "bob", "--topic", "orders-*", "--topic", "one", "--group", "*"]
    assert run(["users", str(path), *adding]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    said = capfd.readouterr()
    assert "bob: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in said.out and "secret" not in said.out
    assert read_users(str(path)).rules == (
        AclEntry("User:bob", Operation.READ, ResourceType.TOPIC, "orders-", True),
        AclEntry("User:bob", Operation.READ, ResourceType.TOPIC, "one"),
        AclEntry("User:bob", Operation.READ, ResourceType.GROUP, "*"),
    )
    path.chmod(0o640)
    _piped(monkeypatch, "other\n")
    assert run(["users", str(path), "--add", "bob", "--mechanism", "PLAIN"]) == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert read_users(str(path)).users["bob"].mechanisms == ["PLAIN"]
    capfd.readouterr()
    assert run(["users", str(path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["acls"][0]["pattern"] == "PREFIXED"
    assert run(["users", str(path), "--remove", "bob"]) == 0
    assert read_users(str(path)) == Users()


def test_users_command_refuses_incomplete_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "users.json")
    for words, given in {
        "cannot be read": {},
        "no password": {"add": "bob"},
        "no user bob": {"remove": "bob"},
        "unknown mechanism": {"add": "bob", "password": "x", "mechanism": "GSSAPI"},
        "user name is empty": {"add": "", "password": "x"},
        "but no user": {"topic": "orders"},
    }.items():
        with pytest.raises(InvalidConfig, match=words):
            lastwrite.users(path, **given)
        lastwrite.users(path, add="alice", password="secret", mechanism="PLAIN")  # noqa: S106


# ---------------------------------------------------------------------- proofs


def config(mechanism: str, password: str = PASSWORD, user: str = NAME) -> KafkaClientConfig:
    return KafkaClientConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_username=user,
        sasl_password=password,
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_client_authenticates_with_each_mechanism(users: Users, mechanism: str) -> None:
    who: list[str | None] = []

    def talk(settings: KafkaClientConfig) -> None:
        proof = start_sasl(mechanism, lambda: users.users)

        def exchange(token: bytes) -> bytes:
            step = proof.authenticate(token)
            who.append(step.user)
            return step.answer

        access.authenticate(settings, exchange, "us")

    talk(config(mechanism))
    assert who[-1] == NAME and who[:-1] in ([], [None])
    for wrong in (
        config(mechanism, "guess"),
        config(mechanism, user="nobody"),
        config(mechanism, user="é"),
    ):
        with pytest.raises(AuthenticationFailed, match=r"^Authentication failed") as caught:
            talk(wrong)
        assert "guess" not in str(caught.value) and "nobody" not in str(caught.value)


def test_rfc_example_gives_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    salt = scram.decode_base64("W22ZaJ0SNY7soEsUEjb6gQ==")
    client_key, server_key = scram.keys_of("sha256", b"pencil", salt, 4096)
    import hashlib

    keys = ScramKeys(salt, 4096, hashlib.sha256(client_key).digest(), server_key)
    nonce = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    monkeypatch.setattr("lastwrite.server.sasl.secrets.token_urlsafe", lambda _: nonce)
    proof = ScramExchange("SCRAM-SHA-256", lambda: {"user": User({"SCRAM-SHA-256": keys})})
    first = proof.authenticate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert first.answer == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    last = proof.authenticate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert last == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "user")


@pytest.mark.parametrize(
    "tokens",
    [
        [b""],
        [b"n,,"],
        [b"p=tls-unique,,n=user,r=abc"],
        [b"n,,n=,r=abc"],
        [b"n,,n=us=er,r=abc"],
        [b"n,,n=user,r="],
        [b"n,,m=x,n=user,r=abc"],
        [b"n,a=other,n=user,r=abc"],
        [b"n,,n=user,r=" + b"a" * 600],
        [b"n,,n=\xff,r=abc"],
        [b"n,,n=user,r=abc", b""],
        [b"n,,n=user,r=abc", b"c=biws,r=abc,p=AAAA"],
        [b"n,,n=user,r=abc", b"c=~,r=abc,p=~"],
        [b"n,,n=user,r=abc", b"\xff,p=AAAA"],
    ],
)
def test_malformed_scram_token_is_refused(tokens: list[bytes]) -> None:
    proof = ScramExchange("SCRAM-SHA-256", dict)
    with pytest.raises(AuthenticationFailed):
        for token in tokens:
            proof.authenticate(token)


@pytest.mark.parametrize("token", [b"", b"a\0b", b"\0user\0wrong", b"x\0user\0pw", b"\0\xff\0pw"])
def test_malformed_plain_token_is_refused(token: bytes) -> None:
    known = {"user": User(plain=SlowHash.of("pw"))}
    with pytest.raises(AuthenticationFailed):
        PlainExchange(lambda: known).authenticate(token)
    assert PlainExchange(lambda: known).authenticate(b"user\0user\0pw").user == "user"


# ---------------------------------------------------------------------- rights


def test_rights_equal_those_of_kafkas_authorizer() -> None:
    rights = AclTable(
        [
            AclEntry("User:a", Operation.READ, ResourceType.TOPIC, "one"),
            AclEntry("User:a", Operation.READ, ResourceType.TOPIC, "pre-", True),
            AclEntry("User:*", Operation.DESCRIBE, ResourceType.TOPIC, "*"),
            AclEntry("User:a", Operation.ALL, ResourceType.GROUP, "g", host="10.0.0.1"),
            AclEntry("User:b", Operation.ALL, ResourceType.TOPIC, "*"),
            AclEntry("User:b", Operation.READ, ResourceType.TOPIC, "secret", allows=False),
            AclEntry("User:b", Operation.DESCRIBE, ResourceType.TOPIC, "hidden", allows=False),
        ]
    )

    def may(
        user: str,
        operation: Operation,
        name: str,
        kind: ResourceType = ResourceType.TOPIC,
        host: str = "h",
    ) -> bool:
        return rights.may(f"User:{user}", host, operation, kind, name)

    read, describe = Operation.READ, Operation.DESCRIBE
    assert may("a", read, "one") and may("a", describe, "one") and may("a", read, "pre-x")
    assert not may("a", read, "ones") and not may("a", read, "pre") and may("a", describe, "ones")
    assert not may("a", read, "g", ResourceType.GROUP) and not may("a", Operation.WRITE, "one")
    assert may("a", read, "g", ResourceType.GROUP, "10.0.0.1")
    assert not may("b", read, "secret") and may("b", describe, "secret")
    assert not may("b", describe, "hidden") and may("b", read, "hidden")
    assert not may("a", Operation.DESCRIBE_CONFIGS, "one")
    assert may("b", Operation.DESCRIBE_CONFIGS, "secret")
    assert may("c", describe, "x") and not may("c", read, "x")


def test_certificate_name_is_formatted_as_by_java() -> None:
    subject = (
        (("countryName", "DE"),),
        (("organizationName", "Acme, Inc."),),
        (("commonName", " client #1 "),),
    )
    assert name_of({"subject": subject}) == r"CN=\ client #1\ ,O=Acme\, Inc.,C=DE"
    assert name_of({}) == "" == name_of(None)


def test_bad_new_file_keeps_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users.json"
    told: list[str] = []
    path.write_text('{"acls": []}')
    kept = ReloadingFile((str(path),), lambda: read_users(str(path)), told.append)
    monkeypatch.setattr("lastwrite.server.listener_security._LOOK_S", -1.0)

    def changes() -> Iterator[tuple[str, str]]:
        yield "{", "the previous one stays"
        yield '{"users": {"a": {}}}', "reloaded"

    for text, words in changes():
        path.write_text(text)
        before = kept()
        assert words in told[-1]
        assert kept() is before
    assert list(kept().users) == ["a"]
    path.unlink()
    assert list(kept().users) == ["a"] and "the previous one stays" in told[-1]
