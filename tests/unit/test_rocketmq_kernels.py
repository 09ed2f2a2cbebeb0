"""Tests of the compiled kernels against slow models.

Malformed input must not cause a read out of bounds.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lastwrite.rocketmq.format import index_file, kernels
from lastwrite.rocketmq.format.java_hash import decode, index_hash, is_blank, string_hash
from lastwrite.rocketmq.format.record import (
    RocketmqMessage,
    encode_blank,
    encode_message,
    make_message,
)
from tests.support.rocketmq.records import (
    EXAMPLE_INNER,
    EXAMPLE_RECORD_CRC,
    EXAMPLE_V1,
    EXAMPLE_V1_OLD,
    EXAMPLE_V2,
    EXAMPLE_V3,
    array,
    log_of,
    logs,
    slow_split,
    split,
)

EXAMPLES = [EXAMPLE_V1, EXAMPLE_V1_OLD, EXAMPLE_V2, EXAMPLE_V3, EXAMPLE_RECORD_CRC, EXAMPLE_INNER]


def as_dicts(table: np.ndarray) -> list[dict[str, int]]:
    return [dict(zip(table.dtype.names, row.tolist(), strict=True)) for row in table]


def check_against_twin(data: bytes, check_crc: bool = True) -> None:
    table, consumed, code, at, wanted = split(data, check_crc)
    rows, twin_consumed, twin_code = slow_split(data, check_crc)
    assert as_dicts(table) == rows
    assert (consumed, code) == (twin_consumed, twin_code)
    assert 0 <= at <= len(data)
    if code == kernels.NEED_MORE:
        assert wanted > len(data) - consumed


def test_documented_examples_are_split() -> None:
    data = b"".join(EXAMPLES) + encode_blank(77)
    check_against_twin(data)
    table, consumed, code, at, wanted = split(data)
    assert len(table) == len(EXAMPLES) and (code, at, wanted) == (kernels.BLANK, len(data) - 8, 77)
    assert consumed == at
    assert table["tags_code"].tolist() == [2598919, 2598919, 0, 0, string_hash("T"), 0]
    assert table["inner_num"].tolist() == [-1, -1, -1, -1, -1, 3]
    assert table["inner_base"].tolist() == [-1, -1, -1, -1, -1, 0]
    keys = [data[row["key_at"] : row["key_at"] + row["key_length"]] for row in table[:5]]
    assert keys == [b"order-1", b"order-1", b"order-2", b"order-1", b"k0"]
    assert table["key_length"][5] == -1 and table["uniq_length"][5] == 3


@given(
    logs,
    st.binary(max_size=12)
    | st.sampled_from([bytes(20), encode_blank(8), encode_blank(2**31 - 1) + b"x"]),
)
def test_split_equals_the_slow_model(found: list[RocketmqMessage], behind: bytes) -> None:
    check_against_twin(log_of(found) + behind)


@given(logs, st.data())
def test_split_of_damaged_bytes_equals_the_slow_model(
    found: list[RocketmqMessage], data: st.DataObject
) -> None:
    raw = bytearray(log_of(found))
    for _ in range(data.draw(st.integers(1, 4)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(
            st.sampled_from([0, 1, 2, 127, 128, 255])
        )
    cut = data.draw(st.integers(0, len(raw)))
    check_against_twin(bytes(raw[: cut or len(raw)]), data.draw(st.booleans()))


@example(bytes.fromhex("00000001 00000000"))  # the start of a DLedger entry
@given(st.binary(max_size=300))
def test_split_of_random_bytes_equals_the_slow_model(data: bytes) -> None:
    check_against_twin(data)
    check_against_twin(EXAMPLE_V1[:4] + EXAMPLE_V1[4:8] + data)


@pytest.mark.parametrize("example", EXAMPLES)
def test_split_of_a_truncated_record_requests_more_bytes(example: bytes) -> None:
    for cut in range(1, len(example)):
        table, consumed, code, at, wanted = split(example[:cut])
        assert (len(table), consumed, code, at) == (0, 0, kernels.NEED_MORE, 0)
        assert wanted == (8 if cut < 8 else len(example))


@pytest.mark.parametrize("example", EXAMPLES)
def test_any_wrong_byte_of_a_record_is_handled_like_the_slow_model(example: bytes) -> None:
    for at in range(len(example)):
        for value in (0, 0x7F, 0x80, 0xFF, example[at] ^ 1):
            check_against_twin(example[:at] + bytes([value]) + example[at + 1 :] + EXAMPLE_V1)


def test_full_table_stops_before_the_next_record() -> None:
    data = array(EXAMPLE_V1 * 5)
    table = np.zeros(2, kernels.MESSAGE)
    at, seen = 0, []
    while at < len(data):
        rows, at, code, _, _ = kernels.split(data, at, len(data), table, True)
        assert code == kernels.OK
        seen += table["position"][:rows].tolist()
    assert seen == [125 * n for n in range(5)]


def test_wrong_body_is_found_only_with_crc_checks() -> None:
    wrong = EXAMPLE_V1.replace(b"hello", b"hellO")
    assert split(wrong)[2] == kernels.BAD_CRC
    assert split(wrong, check_crc=False)[2] == kernels.OK
    check_against_twin(wrong, check_crc=False)


TEXTS = st.lists(
    st.text(max_size=6).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.binary(max_size=5)
    | st.sampled_from(
        [b"\xed\xa0\x80", b"\xe0\x80", b"\xf0\x9f\x98\x80", b"\xf4\x90\x80\x80", b"\xe2\x82", b" "]
    )
).map(b"".join)


@given(TEXTS)
def test_string_hash_of_any_bytes_equals_javas(raw: bytes) -> None:
    data = array(raw + b"x")
    value = kernels._hash_on(data.ctypes.data, 0, len(raw), np.int64(0))
    assert (value ^ 1 << 31) - (1 << 31) == string_hash(decode(raw))


@given(
    st.lists(
        st.sampled_from(
            [b" ", b"\t", b"\x1f", b"a", b"\xc2\xa0", b"\xe2\x80", b"\xff"]
            + [
                "\u1680".encode(),
                "\u2000".encode(),
                "\u2007".encode(),
                "\u200a".encode(),
                "\u2028".encode(),
            ]
            + ["\u205f".encode(), "\u3000".encode(), "\u200b".encode()]
        ),
        max_size=6,
    ).map(b"".join)
)
def test_blank_check_equals_the_slow_model(raw: bytes) -> None:
    data = array(raw + b"x")
    assert kernels.is_blank(data.ctypes.data, 0, len(raw)) == is_blank(decode(raw))


def slow_index(found: list[RocketmqMessage], tags: bool) -> list[tuple[int, int, int]]:
    rows = []
    for message in found:
        if message.sys_flag & 0xC == 0xC:
            continue
        keys = [message.unique_key] if message.unique_key else []
        keys += [part for part in message.properties.get("KEYS", "").split(" ") if part]
        keys += [f"T#{message.tags}"] if tags and message.tags else []
        for key in keys:
            rows.append(
                (index_hash(message.topic, key), message.physical_offset, message.store_time_ms)
            )
    return rows


@given(logs, st.integers(1, 12), st.booleans())
def test_index_keys_equal_the_slow_model(
    found: list[RocketmqMessage], room: int, tags: bool
) -> None:
    data = log_of(found)
    rows = split(data)[0]
    # A property of 60 bytes may have up to 30 keys, so each call takes only as many records as
    # surely fit.
    hashes, places, times = (np.zeros(40 * room, np.int64) for _ in range(3))
    seen, at = [], 0
    while at < len(rows):
        filled, after = kernels.index_keys(
            array(data), rows, at, len(rows), hashes, places, times, tags
        )
        assert after > at
        seen += list(
            zip(
                hashes[:filled].tolist(),
                places[:filled].tolist(),
                times[:filled].tolist(),
                strict=True,
            )
        )
        at = after
    assert seen == slow_index(found, tags)


def slow_index_file(slots: int, capacity: int, rows: list[tuple[int, int, int]]) -> bytes:
    """A slow model that writes an index file entry by entry."""
    newest: dict[int, int] = {}
    out = []
    for number, (key_hash, place, time) in enumerate(rows[: capacity - 1], 1):
        begin = rows[0][2] if number > 1 else 0
        seconds = min(max(time - begin, 0) // 1000, 2**31 - 1) if begin > 0 else 0
        out.append((key_hash, place, seconds, newest.get(key_hash % slots, 0)))
        newest[key_hash % slots] = number
    head = (
        (rows[0][2], rows[len(out) - 1][2], rows[0][1], rows[len(out) - 1][1])
        if out
        else (0, 0, 0, 0)
    )
    data = index_file.INDEX_HEADER.pack(*head, len(newest), len(out) + 1)
    data += b"".join(newest.get(slot, 0).to_bytes(4, "big") for slot in range(slots)) + bytes(20)
    data += b"".join(index_file.INDEX_ENTRY.pack(*entry) for entry in out)
    return data.ljust(40 + 4 * slots + 20 * capacity, b"\0")


@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**62), st.integers(-5, 2**61)),
        max_size=20,
    ),
    st.integers(1, 9),
    st.integers(2, 25),
)
def test_index_file_equals_one_built_entry_by_entry(
    rows: list[tuple[int, int, int]], slots: int, capacity: int
) -> None:
    out = index_file.new_index_file(slots, capacity)
    columns = [np.array([row[k] for row in rows], np.int64) for k in range(3)]
    index_file.build(out, slots, *columns)
    assert out.tobytes() == slow_index_file(slots, capacity, rows)


def test_long_properties_are_searched() -> None:
    for length in range(60):
        message = make_message(
            "t", b"b", {"p": "x" * (length + 1), "KEYS": "k" * length or "k", "TAGS": "T"}
        )
        check_against_twin(encode_message(message))
        check_against_twin(encode_message(message) + bytes(3))
