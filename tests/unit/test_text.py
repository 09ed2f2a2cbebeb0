"""Tests of checkpoints and the other small text files."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, LogError, TruncatedLog, UnsupportedFormat
from lastwrite.kafka.format.text import (
    LeaderEpoch,
    decode_clean_shutdown,
    decode_leader_epochs,
    decode_offset_checkpoint,
    decode_partition_metadata,
    encode_clean_shutdown,
    encode_leader_epochs,
    encode_offset_checkpoint,
    encode_partition_metadata,
    leader_epochs_from,
    topic_id_bytes,
    topic_id_text,
)
from lastwrite.model.log import TopicPartition

ORDERS = b"0\n2\norders 0 4711\norders 1 12\n"
TOPIC_ID = "3Db5QLSqSZieL3rJBUUegA"


def test_offset_checkpoint_round_trips() -> None:
    offsets = {TopicPartition("orders", 0): 4711, TopicPartition("orders", 1): 12}
    assert decode_offset_checkpoint(ORDERS) == offsets
    assert encode_offset_checkpoint(offsets) == ORDERS
    assert decode_offset_checkpoint(b"") == {} == decode_offset_checkpoint(b"0\n0\n")
    assert encode_offset_checkpoint({}) == b"0\n0\n"
    assert decode_offset_checkpoint(ORDERS[:-1]) == offsets
    assert decode_offset_checkpoint(b"0\r\n1\r\na-b.c \t 7  9\r\n") == {
        TopicPartition("a-b.c", 7): 9
    }


@pytest.mark.parametrize(
    ("text", "error", "at"),
    [
        (b"\n", CorruptLog, 0),
        (b"1\n0\n", UnsupportedFormat, 0),
        (b"-1\n0\n", CorruptLog, 0),
        (b"x\n0\n", CorruptLog, 0),
        (b"0\n", TruncatedLog, 2),
        (b"0\n-1\n", CorruptLog, 2),
        (b"0\n1\n", TruncatedLog, 4),
        (b"0\n99999999999999999999999\n", CorruptLog, 2),
        (b"0\n2147483647\na 0 1\n", TruncatedLog, 10 + 9),
        (b"0\n1\na 0 1\nb 0 1\n", CorruptLog, 10),
        (b"0\n1\na 0\n", CorruptLog, 4),
        (b"0\n1\na 0 1 2\n", CorruptLog, 4),
        (b"0\n1\n a 0 1\n", CorruptLog, 4),
        (b"0\n2\na 0 1\nb 0 -1\n", CorruptLog, 10),
        (b"0\n1\na -1 1\n", CorruptLog, 4),
        (b"0\n1\na 0 1.5\n", CorruptLog, 4),
        (b"0\n1\na 0 9223372036854775808\n", CorruptLog, 4),
        (b"0\n1\na 2147483648 0\n", CorruptLog, 4),
        (b"0\n1\n\xff 0 0\n", CorruptLog, 4),
        (b"0\n2\na 0 1\na 0 2\n", CorruptLog, 10),
        (b"0\n1\n\n", CorruptLog, 4),
    ],
)
def test_broken_offset_checkpoint_is_refused(text: bytes, error: type[LogError], at: int) -> None:
    with pytest.raises(error) as caught:
        decode_offset_checkpoint(text)
    assert type(caught.value) is error and caught.value.at == at


@given(st.binary(max_size=60) | st.text("0123 -ab\n", max_size=30).map(str.encode))
def test_noise_raises_only_log_errors(noise: bytes) -> None:
    for decode in (decode_offset_checkpoint, decode_leader_epochs, decode_partition_metadata):
        try:
            decode(noise)
        except LogError as error:
            assert error.at is not None
    decode_clean_shutdown(noise)


partitions = st.builds(
    TopicPartition, st.from_regex(r"[a-z0-9._-]{1,10}", fullmatch=True), st.integers(0, 2**31 - 1)
)


@given(st.dictionaries(partitions, st.integers(0, 2**63 - 1)))
def test_random_offset_checkpoints_round_trip(offsets: dict[TopicPartition, int]) -> None:
    assert decode_offset_checkpoint(encode_offset_checkpoint(offsets)) == offsets


def test_negative_offsets_are_not_encoded() -> None:
    with pytest.raises(ValueError):
        encode_offset_checkpoint({TopicPartition("a", 0): -1})
    with pytest.raises(ValueError):
        encode_leader_epochs([LeaderEpoch(-1, 0)])
    assert encode_offset_checkpoint({TopicPartition("-a-", 0): 1}) == b"0\n1\n-a- 0 1\n"


def test_leader_epochs_round_trip() -> None:
    epochs = (LeaderEpoch(0, 0), LeaderEpoch(3, 917))
    assert decode_leader_epochs(b"0\n2\n0 0\n3 917\n") == epochs
    assert encode_leader_epochs(epochs) == b"0\n2\n0 0\n3 917\n"
    for text in (
        b"0\n2\n0 0\n0 5\n",
        b"0\n2\n0 5\n1 5\n",
        b"0\n2\n1 0\n0 5\n",
        b"0\n1\n-1 0\n",
        b"0\n1\n1\n",
    ):
        with pytest.raises(CorruptLog):
            decode_leader_epochs(text)
    with pytest.raises(ValueError):
        encode_leader_epochs(epochs[::-1])


@pytest.mark.parametrize(
    ("log_start", "after"),
    [
        (0, [(0, 0), (2, 9), (5, 20)]),
        (8, [(0, 8), (2, 9), (5, 20)]),
        (9, [(2, 9), (5, 20)]),
        (19, [(2, 19), (5, 20)]),
        (20, [(5, 20)]),
        (99, [(5, 99)]),
    ],
)
def test_later_log_start_removes_leader_epochs(log_start: int, after: Any) -> None:
    epochs = [LeaderEpoch(0, 0), LeaderEpoch(2, 9), LeaderEpoch(5, 20)]
    assert leader_epochs_from(epochs, log_start) == tuple(LeaderEpoch(*e) for e in after)
    assert leader_epochs_from([LeaderEpoch(3, 7)], 6) == (LeaderEpoch(3, 7),)
    assert leader_epochs_from([], log_start) == ()


def test_partition_metadata_round_trips() -> None:
    text = b"version: 0\ntopic_id: " + TOPIC_ID.encode()
    assert decode_partition_metadata(text) == TOPIC_ID
    assert decode_partition_metadata(text + b"\n") == TOPIC_ID
    assert decode_partition_metadata(text.replace(b": ", b":").replace(b"\n", b"\r\n")) == TOPIC_ID
    assert encode_partition_metadata(TOPIC_ID) == text
    assert topic_id_text(topic_id_bytes(TOPIC_ID)) == TOPIC_ID
    for broken in (
        b"",
        b"version: 0",
        b"version: x\ntopic_id: " + TOPIC_ID.encode(),
        b"topic_id: a\nversion: 0",
        text[:-1],
        text + b"A",
        text + b"\nmore",
        b"version: 0\ntopic_id: " + b"A" * 22,
        b"version: 0\ntopic_id: \xff",
        b"version: 0\ntopic_id: " + TOPIC_ID[:-1].encode() + b"B",
    ):
        with pytest.raises(CorruptLog):
            decode_partition_metadata(broken)
    with pytest.raises(UnsupportedFormat):
        decode_partition_metadata(text.replace(b"version: 0", b"version: 1"))
    with pytest.raises(ValueError):
        encode_partition_metadata("A" * 22)


def test_clean_shutdown_file_round_trips() -> None:
    assert encode_clean_shutdown(7) == b'{"version":0,"brokerEpoch":7}'
    assert decode_clean_shutdown(encode_clean_shutdown(7)) == 7
    for text in (
        b"",
        b"{}",
        b"[]",
        b"null",
        b'{"version":1,"brokerEpoch":7}',
        b'{"version":0,"brokerEpoch":"7"}',
        b'{"version":0,"brokerEpoch":true}',
        b"\xff",
        b"[" * 100_000,
    ):
        assert decode_clean_shutdown(text) is None
