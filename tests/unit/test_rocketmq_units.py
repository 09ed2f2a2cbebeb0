"""Tests of index units, index files and side files with hand-made bytes."""

from __future__ import annotations

import contextlib
import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, InvalidConfig, TruncatedLog
from lastwrite.rocketmq.format import index_file, sides, units
from lastwrite.rocketmq.format.java_hash import index_hash
from tests.support.rocketmq.records import array

START = 1_700_000_000_000


def unit(
    physical: int = 0, size: int = 100, base: int = 0, number: int = 1, time: int = START
) -> bytes:
    return units.BATCH_UNIT.pack(physical, size, 0, time, base, number, -1, 0)


def test_documented_units_have_the_expected_bytes() -> None:
    assert units.CONSUME_QUEUE_UNIT.pack(0, 125, 2598919) == bytes.fromhex(
        "0000000000000000 0000007d 000000000027a807"
    )
    assert units.BATCH_UNIT.pack(0, 125, 2598919, START + 123, 7, 1, -1, 0) == bytes.fromhex(
        "0000000000000000 0000007d 000000000027a807 0000018bcfe5687b 0000000000000007 0001 ffffffff 00000000"
    )
    assert units.END_UNIT == bytes.fromhex(
        "ffffffffffffffff 00000000 0000000000000000 0000000000000000 0000000000000000 0000 ffffffff 00000000"
    )
    assert units.FILLER == bytes.fromhex("0000000000000000 7fffffff 0000000000000000")


def test_valid_units_end_at_an_end_unit_zeros_or_the_end_of_the_bytes() -> None:
    good = [unit(100 * n, base=n) for n in range(5)]
    for behind in (b"", units.END_UNIT, bytes(46), bytes(50), b"\0" * 45):
        assert units.valid_count(units.batch_units(b"".join(good) + behind)) == 5
    for bad in (
        unit(physical=-1),
        unit(size=0),
        unit(size=-5),
        unit(base=-1),
        unit(number=0),
        unit(number=-1),
    ):
        assert units.valid_count(units.batch_units(good[0] + bad + good[1])) == 1
    queue = units.FILLER * 3 + units.CONSUME_QUEUE_UNIT.pack(0, 125, 7) + bytes(40)
    assert units.valid_count(units.consume_queue_units(queue)) == 4
    many = np.zeros(40_000, units.BATCH_DTYPE)
    many["size"][:33_333], many["number"] = 9, 1
    assert units.valid_count(many) == 33_333


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), max_size=30), st.integers(0, 260))
def test_offset_search_equals_a_linear_search(shape: list[tuple[int, int]], wanted: int) -> None:
    rows, base = [], 3
    for number, gap in shape:
        base += gap
        rows.append((base, number))
        base += number
    data = b"".join(unit(base=b, number=n) for b, n in rows) + units.END_UNIT
    found = units.batch_units(data)
    assert units.find_offset(found, wanted) == next(
        (i for i, (b, n) in enumerate(rows) if b + n > wanted), len(rows)
    )


def test_extension_units_round_trip() -> None:
    raw = units.encode_extension(-77, START, b"\x01\x02")
    assert len(raw) == 22
    assert units.decode_extension(raw + b"\xff", 0, len(raw) + 1) == (22, -77, START, b"\x01\x02")
    assert units.decode_extension(b"\xff\xff\0\0", 0, 4) is None  # the mark for the end of a file
    assert units.decode_extension(bytes(30), 0, 30) is None
    assert units.decode_extension(b"", 0, 0) is None
    for cut in range(2, len(raw)):
        with pytest.raises(TruncatedLog):
            units.decode_extension(raw, 0, cut)
    with pytest.raises(CorruptLog):
        units.decode_extension((19).to_bytes(2, "big") + raw[2:], 0, len(raw))
    for claim in (3, -1, 32767):
        with pytest.raises(CorruptLog):
            units.decode_extension(
                raw[:18] + claim.to_bytes(2, "big", signed=True) + raw[20:], 0, len(raw)
            )
    with pytest.raises(ValueError):
        units.encode_extension(0, 0, bytes(32748))


# ---- index file


def entries(keys: list[str], start: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    hashes = np.array([index_hash("t", key) for key in keys], np.int64)
    places = np.arange(start, start + 100 * len(keys), 100, dtype=np.int64)
    times = START + 1500 * np.arange(len(keys), dtype=np.int64)
    return hashes, places, times


def test_default_index_file_has_the_documented_size() -> None:
    assert (
        index_file.index_bytes(index_file.DEFAULT_SLOTS, index_file.DEFAULT_ENTRIES) == 420_000_040
    )
    with pytest.raises(InvalidConfig):
        index_file.index_bytes(0, 10)


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.integers(1, 7), st.integers(2, 40))
def test_index_file_lookup_equals_a_dictionary(keys: list[str], slots: int, capacity: int) -> None:
    out = index_file.new_index_file(slots, capacity)
    hashes, places, times = entries(keys)
    done = index_file.build(out, slots, hashes, places, times)
    assert done == min(len(keys), capacity - 1)
    opened = index_file.IndexFile.of(out, slots)
    assert opened.header.count == done + 1 and opened.capacity == capacity
    assert opened.is_full == (done + 1 >= capacity)
    for key in "abcdefghi":
        expected = [
            int(place) for place, other in zip(places[:done], keys, strict=False) if other == key
        ]
        assert opened.addresses("t", key) == expected[::-1]
    if done:
        assert (
            opened.header.first_physical_offset == 0
            and opened.header.last_physical_offset == 100 * (done - 1)
        )
        assert opened.header.used_slots == len({int(value) % slots for value in hashes[:done]})


@given(st.lists(st.sampled_from("abcdefgh"), max_size=30), st.integers(0, 30))
def test_index_file_built_in_two_calls_has_the_same_bytes(keys: list[str], cut: int) -> None:
    hashes, places, times = entries(keys)
    one, two = index_file.new_index_file(5, 50), index_file.new_index_file(5, 50)
    index_file.build(one, 5, hashes, places, times)
    index_file.build(two, 5, hashes[:cut], places[:cut], times[:cut])
    index_file.build(two, 5, hashes, places, times, min(cut, len(keys)))
    assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize(
    ("slots", "capacity"), [(100, 1000), (5000, 20_000), (7, 28), (3, 50), (1, 2), (64, 99)]
)
def test_number_of_slots_is_derived_from_an_index_file(slots: int, capacity: int) -> None:
    out = index_file.new_index_file(slots, capacity)
    assert index_file.find_slots(out) is None
    assert index_file.IndexFile.of(out).addresses("t", "a") == []
    keys = [f"key-{n}" for n in range(min(capacity - 1, 40))]
    index_file.build(out, slots, *entries(keys, 4096))
    assert index_file.find_slots(out) == slots
    assert index_file.IndexFile.of(out).addresses("t", keys[0]) == [4096]


def test_new_index_file_continues_after_the_previous_one() -> None:
    out = index_file.new_index_file(3, 9, last_physical_offset=777, last_store_time_ms=START)
    assert index_file.decode_index_header(out) == (START, START, 777, 777, 0, 1)
    hashes, places, times = entries(["a", "b"], 800)
    index_file.build(out, 3, hashes, places, times + 5000)
    opened = index_file.IndexFile.of(out, 3)
    # The first entry's seconds count from the previous file, as in a broker's index files.
    assert opened.entry(1).seconds == 5 and opened.entry(2).seconds == 1
    assert opened.header.first_store_time_ms == START + 5000


def test_malformed_index_file_neither_crashes_nor_loops() -> None:
    out = index_file.new_index_file(1, 9)
    index_file.build(out, 1, *entries(list("aaaa")))
    data = bytearray(out.tobytes())
    last = 44 + 20 * 4
    for previous in (4, 5, -1, 2**31 - 1):
        data[last + 16 : last + 20] = struct.pack(">i", previous)
        with pytest.raises(CorruptLog):
            index_file.IndexFile.of(bytes(data), 1).addresses("t", "a")
    for slot in (-1, 5, 2**31 - 1):
        data[40:44] = struct.pack(">i", slot)
        with pytest.raises(CorruptLog):
            index_file.IndexFile.of(bytes(data), 1).addresses("t", "a")
    for count in (2**31 - 1, 10):
        data[36:40] = struct.pack(">i", count)
        with pytest.raises(CorruptLog):
            index_file.IndexFile.of(bytes(data), 1)
        with pytest.raises(CorruptLog):
            index_file.IndexFile.of(bytes(data))
        with pytest.raises(ValueError):
            index_file.build(array(bytes(data)), 1, *entries(["a"]))
    with pytest.raises(TruncatedLog):
        index_file.IndexFile.of(bytes(39))
    with pytest.raises(TruncatedLog):
        index_file.IndexFile.of(bytes(data), 2**31)


@given(st.binary(min_size=40, max_size=400))
def test_random_bytes_as_an_index_file_raise_only_log_errors(data: bytes) -> None:
    try:
        index_file.IndexFile.of(data).addresses("t", "a")
    except CorruptLog:
        return


# ---- side files


def test_checkpoint_round_trips() -> None:
    checkpoint = sides.Checkpoint(START, START - 5000, START + 1, 4, 5, 6)
    raw = sides.encode_checkpoint(checkpoint)
    assert len(raw) == 4096 and sides.decode_checkpoint(raw) == checkpoint
    assert checkpoint.recovery_time_ms == START - 8000
    assert sides.Checkpoint(0, 0, 0, 0, 0, 0).recovery_time_ms == 0
    with pytest.raises(TruncatedLog):
        sides.decode_checkpoint(raw[:47])


def test_abort_file_contains_the_process_id() -> None:
    assert sides.decode_abort(b"") is None
    assert sides.decode_abort(b"4711") == 4711
    assert sides.decode_abort(b"what?") is None


TOPICS = b"""{"dataVersion": {"counter": 3, "stateVersion": 0, "timestamp": 1700000000000},
 "topicConfigTable": {
   "ctopic": {"attributes": {"cleanup.policy": "COMPACTION"}, "order": true, "perm": 6,
              "readQueueNums": 8, "writeQueueNums": 4, "topicFilterType": "SINGLE_TAG",
              "topicName": "ctopic", "topicSysFlag": 0},
   "btopic": {"attributes": {"queue.type": "BatchCQ"}, "perm": 6, "readQueueNums": 1, "writeQueueNums": 1},
   "old": {"perm": 6, "readQueueNums": 1, "writeQueueNums": 1}}}"""


def test_topics_file_is_decoded() -> None:
    found = sides.decode_topics(TOPICS)
    assert list(found) == ["ctopic", "btopic", "old"]
    assert found["ctopic"].is_compacted and not found["ctopic"].has_batch_queues
    assert (
        found["ctopic"].read_queues,
        found["ctopic"].write_queues,
        found["ctopic"].is_ordered,
    ) == (8, 4, True)
    assert found["btopic"].has_batch_queues and not found["btopic"].is_compacted
    assert not found["old"].is_compacted and found["old"].attributes == {}
    assert sides.decode_topics(b"{}") == {}


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b'{"topicConfigTable":[]}',
        b'{"topicConfigTable":{"a":1}}',
        b"\xff",
        b"[" * 100_000,
    ]
    + [
        b'{"topicConfigTable":{"a":{"perm":"x"}}}',
        b'{"topicConfigTable":{"a":{"attributes":[1]}}}',
    ],
)
def test_damaged_topics_file_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptLog):
        sides.decode_topics(text)


def test_unquoted_numbers_as_json_names_are_decoded() -> None:
    text = b'{"offsetTable":{"t{1:2}@g":{0:5,1:6\n},"u@g":{"0":7}},"dataVersion":{"counter":1}}'
    assert sides.decode_consumer_offsets(text) == {
        ("t{1:2}", "g"): {0: 5, 1: 6},
        ("u", "g"): {0: 7},
    }


def test_positions_are_encoded_as_by_a_broker() -> None:
    expected = b'{\n\t"empty":false,\n\t"queueOffsetMap":{\n\t\t"ctopic_0":83\n\t}\n}'
    assert sides.encode_positions({sides.position_name("ctopic", 0): 83}) == expected
    assert sides.decode_positions(expected) == {"ctopic_0": 83}
    assert sides.decode_positions(b"") == {}
    for text in (
        b"{",
        b'{"queueOffsetMap":{"a":"b"}}',
        b'{"queueOffsetMap":{"a":true}}',
        b'{"queueOffsetMap":[]}',
    ):
        with pytest.raises(CorruptLog):
            sides.decode_positions(text)


@given(st.dictionaries(st.text(max_size=8), st.integers(-1, 2**63 - 1), max_size=40))
def test_positions_round_trip(positions: dict[str, int]) -> None:
    try:
        raw = sides.encode_positions(positions)
    except UnicodeEncodeError:
        return
    assert sides.decode_positions(raw) == positions
    assert list(json.loads(raw)["queueOffsetMap"]) == sides.java_order(positions)


def test_position_order_equals_a_java_maps() -> None:
    # The order in which java.util.concurrent.ConcurrentHashMap of Java 17 iterates after it has
    # doubled once. Some bins are reversed.
    expected = (
        "topic-676_0 topic-947_1 topic-623_1 topic-433_3 topic-919_1 topic-866_2 topic-461_3 topic-0_0 "
        "topic-109_3 topic-271_1 topic-28_0 topic-785_3 topic-542_2 topic-514_2 topic-838_2 topic-757_3 "
        "topic-595_1 topic-190_2 topic-704_0 topic-352_0"
    )
    assert (
        sides.java_order(f"topic-{n * 7919 % 1000}_{n % 4}" for n in range(20)) == expected.split()
    )
    assert sides.java_order([]) == []


@given(st.binary(max_size=80) | st.text('{}[]":,019 \\\\ant', max_size=60).map(str.encode))
def test_random_bytes_as_json_raise_only_log_errors(data: bytes) -> None:
    for decode in (sides.decode_topics, sides.decode_consumer_offsets, sides.decode_positions):
        try:
            decode(data)
        except CorruptLog:
            pass


@given(
    st.lists(st.sampled_from("abcdefgh"), max_size=9),
    st.lists(st.tuples(st.integers(0, 199), st.integers(0, 255))),
)
def test_damaged_index_file_neither_crashes_nor_loops(
    keys: list[str], damage: list[tuple[int, int]]
) -> None:
    out = index_file.new_index_file(5, 10)
    index_file.build(out, 5, *entries(keys))
    for at, value in damage:
        out[at] = value
    for slots in (None, 5):
        try:
            opened = index_file.IndexFile.of(out.tobytes(), slots)
        except CorruptLog:
            continue
        for key in "abcdefgh":
            with contextlib.suppress(CorruptLog):
                assert len(opened.addresses("t", key)) < opened.capacity
    try:
        index_file.build(out, 5, *entries(["a", "b"]))
    except ValueError:
        pass
