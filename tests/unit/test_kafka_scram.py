"""Tests of SCRAM with the example of RFC 7677, and with false brokers."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import patch

import pytest

from lastwrite.errors import RemoteFailed
from lastwrite.kafka.network import access
from lastwrite.kafka.rules.live_settings import KafkaClientConfig

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
LAST = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
CONFIG = KafkaClientConfig(
    security_protocol="SASL_PLAINTEXT",
    sasl_mechanism="SCRAM-SHA-256",
    sasl_username="user",
    sasl_password="pencil",
)


def exchanged(*answers: bytes) -> Sequence[bytes]:
    told: list[bytes] = []
    left = iter(answers)

    def exchange(token: bytes) -> bytes:
        told.append(token)
        return next(left)

    with patch.object(access.secrets, "token_urlsafe", return_value=NONCE):
        access.authenticate(CONFIG, exchange, "broker:9092")
    return told


def test_rfc_example_gives_its_messages() -> None:
    assert exchanged(FIRST, LAST) == [
        b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO",
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
    ]


@pytest.mark.parametrize(
    "answers, why",
    [
        ((FIRST, LAST.replace(b"6rr", b"7rr")), "signature does not match"),
        ((FIRST, b"e=other-error"), "signature does not match"),
        ((FIRST, b"v=~"), "not valid base64"),
        ((FIRST.replace(b"r=rOp", b"r=xOp"),), "does not begin with the client's"),
        (
            (b"r=" + NONCE.encode() + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",),
            "does not begin with the client's",
        ),
        ((FIRST.replace(b"4096", b"1"),), "requires 1 iterations"),
        ((FIRST.replace(b"4096", b"99999999999"),), "iterations"),
        ((FIRST.replace(b"4096", b"-4"),), "does not begin with the client's"),
        ((b"\xff\xfe",), "not UTF-8 text"),
        ((b"",), "does not begin with the client's"),
    ],
)
def test_false_broker_is_refused(answers: Sequence[bytes], why: str) -> None:
    with pytest.raises(RemoteFailed, match=why):
        exchanged(*answers)
