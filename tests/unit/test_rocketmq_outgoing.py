"""Tests of messages to be sent: properties, bodies, tombstones and members of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import InvalidConfig
from lastwrite.rocketmq.format import properties
from lastwrite.rocketmq.format.record import (
    INNER_BATCH,
    NEEDS_UNWRAP,
    Compression,
    body_of,
    make_message,
    split_inner,
)
from lastwrite.rocketmq.network.outgoing import OutgoingMessage, encode_batch_member
from lastwrite.rocketmq.network.send import parse_message

COMPRESSED = [Compression.ZLIB, Compression.LZ4, Compression.ZSTD]


@given(st.binary(min_size=1, max_size=300), st.sampled_from(COMPRESSED))
def test_compressed_body_round_trips(body: bytes, compression: Compression) -> None:
    stored, flag = OutgoingMessage(
        "k", body, compression=compression, compress_from=1
    ).encode_body()
    assert body_of(make_message("t", stored, sys_flag=flag), 1 << 20) == body


def test_small_body_is_not_compressed() -> None:
    assert OutgoingMessage("k", b"x" * 4095).encode_body() == (b"x" * 4095, 0)
    assert OutgoingMessage("k", b"x" * 4096).encode_body()[1] & 1
    assert OutgoingMessage("k", b"x" * 4096, compression=Compression.NONE).encode_body() == (
        b"x" * 4096,
        0,
    )


def test_tombstone_is_empty_after_decompression() -> None:
    stored, flag = OutgoingMessage("k", None).encode_body()
    assert stored
    assert body_of(make_message("t", stored, sys_flag=flag), 100) == b""


def test_properties_contain_key_tag_and_a_unique_key() -> None:
    flat = OutgoingMessage("a b", b"x", "T", {"p": "v"}).encode_properties("U" * 32)
    assert properties.parse(flat.encode()) == {
        "KEYS": "a b",
        "TAGS": "T",
        "p": "v",
        "UNIQ_KEY": "U" * 32,
    }


@pytest.mark.parametrize(
    "message",
    [
        OutgoingMessage(" \t", b"x"),
        OutgoingMessage("k\x02", b"x"),
        OutgoingMessage("k", b"x", ""),
        OutgoingMessage("k", b"x", None, {"": "v"}),
        OutgoingMessage("k", b"x", None, {"n": ""}),
        OutgoingMessage("k", b"x", None, {"KEYS": "other"}),
        OutgoingMessage("k", b"x", None, {"n": "v" * 33_000}),
    ],
)
def test_properties_that_do_not_round_trip_are_refused(message: OutgoingMessage) -> None:
    with pytest.raises(InvalidConfig):
        message.encode_properties("U")


def test_empty_body_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="is empty"):
        OutgoingMessage("k", b"").encode_body()


def test_batch_members_are_encoded_like_an_inner_batch() -> None:
    body = b"".join(
        encode_batch_member(OutgoingMessage(key, data), "U")
        for key, data in (("a", b"1"), ("b", None))
    )
    message = make_message(
        "t", body, {"INNER_NUM": "2", "INNER_BASE": "5"}, sys_flag=NEEDS_UNWRAP | INNER_BATCH
    )
    assert [(one.keys, one.body) for one in split_inner(message)] == [("a", b"1"), ("b", b"")]


@pytest.mark.parametrize(
    ("given_message", "expected"),
    [
        ({"key": "k", "body": "ä"}, OutgoingMessage("k", "ä".encode())),
        ({"key": "k", "body_base64": "AAE="}, OutgoingMessage("k", b"\0\1")),
        ({"key": "k", "body": None}, OutgoingMessage("k", None)),
        (
            {"key": "k", "tag": "T", "properties": {"a": "b"}, "body": "x"},
            OutgoingMessage("k", b"x", "T", {"a": "b"}),
        ),
    ],
)
def test_json_messages_are_parsed(
    given_message: dict[str, object], expected: OutgoingMessage
) -> None:
    assert parse_message(given_message) == expected


@pytest.mark.parametrize(
    "given_message",
    [
        {"keys": "k"},
        {"key": 7},
        {"key": "k", "body": "x", "body_base64": "eA=="},
        {"key": "k", "body_base64": "!"},
        {"key": "k", "properties": []},
        {"key": "k", "properties": {"a": 1}},
    ],
)
def test_invalid_json_message_is_refused(given_message: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        parse_message(given_message)
