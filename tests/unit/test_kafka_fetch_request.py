"""Tests of our Fetch requests against kio's generated messages, in every supported version."""

from __future__ import annotations

import datetime
import io
import struct
import uuid
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import LogError
from lastwrite.kafka.network.fetch import FetchPartition, decode_fetch, encode_fetch
from lastwrite.kafka.network.messages import APIS

pytest.importorskip("kio")
from kio.schema.errors import ErrorCode  # noqa: E402
from kio.serial import entity_reader, entity_writer  # noqa: E402

VERSIONS = range(APIS["fetch"].oldest, APIS["fetch"].newest + 1)
NOTHING = datetime.timedelta(0)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
I32 = st.integers(-(1 << 31), (1 << 31) - 1)


def message(side: str, version: int) -> Any:
    return import_module(f"kio.schema.fetch.v{version}.{side}")


def made(module: Any, name: str, **values: object) -> Any:
    kind = getattr(module, name)
    return kind(
        **{name: each for name, each in values.items() if name in kind.__dataclass_fields__}
    )


@given(
    st.sampled_from(VERSIONS),
    st.builds(
        FetchPartition,
        st.text("abc.-_", min_size=1, max_size=249),
        st.binary(min_size=16, max_size=16).filter(any),
        st.integers(0, 1 << 20),
        I32,
        I64,
        st.integers(0, (1 << 31) - 1),
        st.integers(0, 60_000),
    ),
    st.text("client", max_size=20),
)
def test_fetch_request_contains_its_arguments(
    version: int, asked: FetchPartition, client: str
) -> None:
    data = encode_fetch(version, 77, client, asked)
    module = message("request", version)
    key, said, correlation, length = struct.unpack_from(">hhih", data)
    assert (key, said, correlation, length) == (1, version, 77, len(client))
    head = 10 + length
    assert data[10:head] == client.encode()
    if version >= 12:
        assert data[head] == 0
        head += 1
    found, size = entity_reader(module.FetchRequest)(data[head:], 0)
    assert size == len(data) - head
    assert getattr(found, "replica_id", -1) == -1
    assert found.max_wait == datetime.timedelta(milliseconds=asked.max_wait_ms)
    assert (found.min_bytes, found.max_bytes, found.isolation_level) == (1, asked.max_bytes, 0)
    assert (getattr(found, "session_id", 0), getattr(found, "session_epoch", -1)) == (0, -1)
    assert getattr(found, "forgotten_topics_data", ()) == ()
    assert getattr(found, "rack_id", "") == ""
    (topic,) = found.topics
    if version >= 13:
        assert topic.topic_id == uuid.UUID(bytes=asked.topic_id)
    else:
        assert topic.topic == asked.topic
    (part,) = topic.partitions
    assert (part.partition, part.fetch_offset) == (asked.partition, asked.offset)
    assert part.partition_max_bytes == asked.max_bytes
    assert getattr(part, "current_leader_epoch", asked.leader_epoch) == asked.leader_epoch
    assert getattr(part, "last_fetched_epoch", -1) == -1
    assert getattr(part, "log_start_offset", -1) == -1


@given(
    st.sampled_from(VERSIONS),
    st.sampled_from([0, 1, 3, 6, 75]),
    I64,
    st.integers(0, (1 << 63) - 1),
    st.none() | st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=3),
    st.none() | st.binary(max_size=300),
    st.integers(0, 100_000),
)
def test_fetch_response_is_decoded(
    version: int,
    error: int,
    high_watermark: int,
    log_start: int,
    aborted: list[tuple[int, int]] | None,
    records: bytes | None,
    throttle_ms: int,
) -> None:
    module = message("response", version)
    part = made(
        module,
        "PartitionData",
        partition_index=3,
        error_code=ErrorCode(error),
        high_watermark=high_watermark,
        last_stable_offset=5,
        log_start_offset=log_start,
        aborted_transactions=None
        if aborted is None
        else tuple(
            made(module, "AbortedTransaction", producer_id=id, first_offset=first)
            for id, first in aborted
        ),
        preferred_read_replica=-1,
        records=records,
    )
    topic = made(
        module,
        "FetchableTopicResponse",
        topic="orders",
        topic_id=uuid.UUID(int=7),
        partitions=(part,),
    )
    whole = made(
        module,
        "FetchResponse",
        throttle_time=datetime.timedelta(milliseconds=throttle_ms),
        error_code=ErrorCode(0),
        session_id=0,
        responses=(topic,),
    )
    body = io.BytesIO()
    entity_writer(module.FetchResponse)(body, whole)
    data = (b"\0" if version >= 12 else b"") + body.getvalue()
    found = decode_fetch(version, data)
    assert found.throttle_ms == throttle_ms
    assert (found.error, found.high_watermark) == (error, high_watermark)
    assert found.log_start == (log_start if version >= 5 else -1)
    assert bytes(found.records) == (records or b"")
    end = data.rindex(records) + len(records) if records else len(data) - 3 * (version >= 12)
    for cut in range(0, end, max(1, end // 40)):
        with pytest.raises(LogError):
            decode_fetch(version, data[:cut])


@pytest.mark.parametrize("version", VERSIONS)
def test_throttling_broker_sends_an_empty_response(version: int) -> None:
    module = message("response", version)
    whole = made(
        module,
        "FetchResponse",
        throttle_time=datetime.timedelta(milliseconds=1500),
        error_code=ErrorCode(0),
        session_id=0,
        responses=(),
    )
    body = io.BytesIO()
    entity_writer(module.FetchResponse)(body, whole)
    found = decode_fetch(version, (b"\0" if version >= 12 else b"") + body.getvalue())
    assert (found.throttle_ms, found.error, bytes(found.records)) == (1500, 0, b"")
