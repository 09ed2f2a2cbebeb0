"""Tests of remoting frames: round trips and malformed input. For a real broker see tests/system."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, LogError, TruncatedLog, UnsupportedFormat
from lastwrite.rocketmq.network.frame import PREFIX, Command, decode_command, encode_command

NUMBERS = st.integers(-(2**31), 2**31 - 1)


@given(
    st.builds(
        Command,
        code=NUMBERS,
        fields=st.dictionaries(st.text(), st.text(), max_size=5),
        body=st.binary(max_size=50),
        opaque=NUMBERS,
        flag=st.integers(0, 3),
        remark=st.none() | st.text(),
    )
)
def test_frame_round_trips(command: Command) -> None:
    frame = encode_command(command)
    assert PREFIX.unpack_from(frame) == (len(frame) - PREFIX.size,)
    assert decode_command(frame[PREFIX.size :]) == command


def test_frame_of_a_broker_is_decoded() -> None:
    header = (
        b'{"code":0,"extFields":{"offset":"7"},"flag":1,"language":"JAVA","opaque":3,"version":501}'
    )
    frame = len(header).to_bytes(4, "big") + header + b"body"
    found = decode_command(frame)
    assert (found.code, found.fields, found.body, found.opaque) == (0, {"offset": "7"}, b"body", 3)
    assert found.is_answer


def test_truncated_frame_is_refused() -> None:
    frame = encode_command(Command(11, {"topic": "orders"}))[PREFIX.size :]
    for cut in range(len(frame)):
        with pytest.raises(TruncatedLog):
            decode_command(frame[:cut])


def test_binary_header_is_unsupported() -> None:
    with pytest.raises(UnsupportedFormat, match="serialization type 1"):
        decode_command(b"\x01\x00\x00\x02{}")


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"7",
        b"{",
        b'{"code":"x"}',
        b'{"opaque":1.5}',
        b'{"extFields":[1]}',
        b"\xff",
        b'{"code":null}',
        b"[" * 9999,
    ],
)
def test_header_of_another_shape_is_refused(header: bytes) -> None:
    with pytest.raises(CorruptLog):
        decode_command(len(header).to_bytes(4, "big") + header)


@given(st.binary(max_size=100))
def test_random_frame_is_decoded_or_raises_a_log_error(frame: bytes) -> None:
    try:
        decode_command(frame)
    except LogError:
        pass
