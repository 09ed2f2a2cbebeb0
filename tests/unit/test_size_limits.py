"""Tests that sizes stated in a message are limited by its bytes, so that no message exhausts the
memory.
"""

from __future__ import annotations

import io
import random
import struct
import uuid

import pytest
from kio.serial import entity_writer

from lastwrite.errors import CorruptLog
from lastwrite.kafka.network.messages import build_message, decode, schema
from lastwrite.kafka.network.size_limits import _struct_of, checked
from lastwrite.server.messages import APIS, ClientRequest, _kind, decode_body
from tests.fuzz.serving import struct_bytes


def encoded(message: object) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)  # type: ignore[call-overload]
    return out.getvalue()


def wanted_topics(version: int) -> object:
    module = schema("metadata", version)
    topics = [
        build_message(module, "MetadataRequestTopic", name=name, topic_id=uuid.uuid4())
        for name in ("orders", "payments")
    ]
    return build_message(
        module,
        "MetadataRequest",
        topics=tuple(topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


@pytest.mark.parametrize("version", range(14))
def test_valid_message_passes_and_a_truncated_one_is_refused(version: int) -> None:
    message = wanted_topics(version)
    data = encoded(message)
    assert bytes(checked(type(message), data, 0)) == data
    for end in range(len(data)):
        with pytest.raises(CorruptLog):
            checked(type(message), data[:end], 0)


@pytest.mark.parametrize("version", [0, 8, 9, 12])
@pytest.mark.parametrize("count", [1 << 20, (1 << 31) - 1])
def test_list_longer_than_its_message_is_refused(version: int, count: int) -> None:
    kind = type(wanted_topics(version))
    is_flexible = version >= 9
    claim = bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x0F]) if is_flexible else struct.pack(">i", count)
    with pytest.raises(CorruptLog):
        checked(kind, claim + bytes(40), 0)


def test_false_size_in_a_response_is_refused() -> None:
    answer = b"\0" + struct.pack(">i", 0) + bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x07]) + bytes(100)
    with pytest.raises(CorruptLog, match="a list has 2147483646 elements"):
        decode("metadata", 12, answer)


@pytest.mark.parametrize("name", [name for name, api in APIS.items() if api.flexible <= api.newest])
def test_unknown_tagged_fields_are_ignored_in_every_structure(name: str) -> None:
    api, decoded_count = APIS[name], 0
    for version in range(max(api.flexible, api.oldest), api.newest + 1):
        kind = _kind(name, version)
        for seed in range(30):
            plain, with_tags = (
                struct_bytes(random.Random(seed), _struct_of(kind), unknown) for unknown in (0, 2)
            )
            assert len(with_tags) > len(plain)
            expected = _outcome(name, version, plain)
            assert _outcome(name, version, with_tags) == expected
            decoded_count += not expected.startswith("CorruptLog")
    assert decoded_count >= 10  # kio rejects some of the generated null values


def _outcome(name: str, version: int, body: bytes) -> str:
    try:
        return repr(decode_body(ClientRequest(name, version, 1, "", memoryview(body))))
    except CorruptLog as error:
        return repr(error)


def test_unknown_tagged_fields_in_a_response_are_ignored() -> None:
    body = struct.pack(">ihqh", 0, 0, 7, 1)
    tags = b"\x02\x64\x01a\x65\x00"
    assert decode("init_producer_id", 4, tags + body + tags) == decode(
        "init_producer_id", 4, b"\0" + body + b"\0"
    )
