"""What a message announces of its own sizes is believed only as far as its bytes go: kio's reader
would ask for a hundred gigabytes, and the process would end.
"""

from __future__ import annotations

import io
import struct
import uuid

import pytest
from kio.serial import entity_writer

from lastwrite.errors import CorruptLog
from lastwrite.kafka.network.claims import check_claims
from lastwrite.kafka.network.messages import decode, made, schema


def encoded(message: object) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)  # type: ignore[call-overload]
    return out.getvalue()


def wanted_topics(version: int) -> object:
    module = schema("metadata", version)
    topics = [
        made(module, "MetadataRequestTopic", name=name, topic_id=uuid.uuid4())
        for name in ("orders", "payments")
    ]
    return made(
        module,
        "MetadataRequest",
        topics=tuple(topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
        include_cluster_authorized_operations=False,
    )


@pytest.mark.parametrize("version", range(14))
def test_what_was_written_holds_and_nothing_that_is_cut(version: int) -> None:
    message = wanted_topics(version)
    data = encoded(message)
    check_claims(type(message), data, 0)
    for end in range(len(data)):
        with pytest.raises(CorruptLog):
            check_claims(type(message), data[:end], 0)


@pytest.mark.parametrize("version", [0, 8, 9, 12])
@pytest.mark.parametrize("count", [1 << 20, (1 << 31) - 1])
def test_a_list_of_more_than_there_is(version: int, count: int) -> None:
    kind = type(wanted_topics(version))
    is_flexible = version >= 9
    claim = bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x0F]) if is_flexible else struct.pack(">i", count)
    with pytest.raises(CorruptLog):
        check_claims(kind, claim + bytes(40), 0)


def test_a_lying_broker_does_not_end_us() -> None:
    answer = b"\0" + struct.pack(">i", 0) + bytes([0xFF, 0xFF, 0xFF, 0xFF, 0x07]) + bytes(100)
    with pytest.raises(CorruptLog, match="a list of"):
        decode("metadata", 12, answer)
