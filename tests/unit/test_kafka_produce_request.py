"""Tests of our Produce requests against kio's generated messages, in every supported version."""

from __future__ import annotations

import datetime
import io
import struct
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import LogError
from lastwrite.kafka.network.messages import APIS, build_message
from lastwrite.kafka.network.produce import (
    ProduceBatch,
    ProduceResult,
    decode_produce,
    encode_produce,
)

pytest.importorskip("kio")
from kio.schema.errors import ErrorCode  # noqa: E402
from kio.serial import entity_reader, entity_writer  # noqa: E402

VERSIONS = range(APIS["produce"].oldest, APIS["produce"].newest + 1)
NAME = st.text("abc.-_", min_size=1, max_size=249)
NUMBER = st.integers(0, 1 << 20)


def message(side: str, version: int) -> Any:
    return import_module(f"kio.schema.produce.v{version}.{side}")


@given(st.sampled_from(VERSIONS), st.builds(ProduceBatch, NAME, NUMBER, st.binary(max_size=99)))
def test_produce_request_contains_its_arguments(version: int, append: ProduceBatch) -> None:
    data = encode_produce(version, 77, "me", append, 5000)
    assert struct.unpack_from(">hhih2s", data) == (0, version, 77, 2, b"me")
    found, size = entity_reader(message("request", version).ProduceRequest)(data[12:], 0)
    assert size == len(data) - 12
    assert (found.transactional_id, found.acks) == (None, -1)
    assert found.timeout == datetime.timedelta(seconds=5)
    (topic,) = found.topic_data
    (part,) = topic.partition_data
    assert (topic.name, part.index, bytes(part.records)) == append


def answer(version: int, name: str, error: int, offset: int, words: list[str]) -> bytes:
    module = message("response", version)
    part = build_message(
        module,
        "PartitionProduceResponse",
        index=3,
        error_code=ErrorCode(error),
        base_offset=offset,
        log_append_time=None,
        log_start_offset=5,
        record_errors=()
        if version < 8
        else tuple(
            build_message(
                module, "BatchIndexAndErrorMessage", batch_index=n, batch_index_error_message=word
            )
            for n, word in enumerate(words[1:])
        ),
        error_message=words[0] if words else None,
    )
    topic = build_message(module, "TopicProduceResponse", name=name, partition_responses=(part,))
    whole = build_message(
        module,
        "ProduceResponse",
        responses=(topic,),
        throttle_time=datetime.timedelta(milliseconds=12),
    )
    data = io.BytesIO()
    entity_writer(type(whole))(data, whole)
    return data.getvalue()


@given(
    st.sampled_from(VERSIONS),
    NAME,
    st.sampled_from((0, 6, 45, 87)),
    st.integers(-1, 1 << 40),
    st.lists(st.text("why ", min_size=1, max_size=9), max_size=3),
)
def test_produce_response_is_decoded(
    version: int, name: str, error: int, offset: int, words: list[str]
) -> None:
    data = answer(version, name, error, offset, words)
    found = decode_produce(version, data)
    assert found[:3] == ProduceResult(12, error, offset, "")[:3]
    if version >= 8 and words:
        assert found.message.startswith(words[0])
        assert found.message.count("record ") == min(len(words) - 1, 2)
    else:
        assert found.message == ""
    for end in range(len(data)):
        with pytest.raises(LogError):
            decode_produce(version, data[:end])


def test_response_for_other_topics_is_refused() -> None:
    with pytest.raises(LogError, match="2 topics"):
        decode_produce(3, struct.pack(">ih1sii", 2, 1, b"t", 1, 0) + bytes(20))
