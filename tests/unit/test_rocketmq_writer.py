"""Tests of writing a compaction log.

They cover an example that a real broker loaded, and the size limits of a record.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.errors import InvalidConfig
from lastwrite.rocketmq.format import kernels
from lastwrite.rocketmq.format.kernels import MESSAGE
from lastwrite.rocketmq.format.names import file_name, log_sizes
from lastwrite.rocketmq.format.record import (
    decode_blank,
    decode_message,
    encode_message,
    make_message,
)
from lastwrite.rocketmq.format.units import BATCH_UNIT, END_UNIT, batch_units, valid_count
from lastwrite.rocketmq.store.publish import Pair
from lastwrite.rocketmq.store.writer import QueueWriter

LOG_BYTES, INDEX_BYTES = 5060, 1012
RECORD_BYTES = 172


def record(offset: int, key: str | None, size: int | None = RECORD_BYTES) -> bytes:
    """A record of ``size`` bytes. Without ``size`` it has a short body."""
    properties = {} if key is None else {"KEYS": key, "TAGS": "T"}
    plain = make_message(
        "ctopic", b"", properties, queue_offset=offset, store_time_ms=1000 + offset
    )
    body = b"b" * (4 if size is None else size - plain.size)
    return encode_message(
        make_message("ctopic", body, properties, queue_offset=offset, store_time_ms=1000 + offset)
    )


def append(writer: QueueWriter, records: list[bytes]) -> int:
    data = np.frombuffer(b"".join(records), np.uint8).copy()
    table = np.zeros(len(records), MESSAGE)
    rows, _, code, _, _ = kernels.split(data, 0, len(data), table, True)
    assert (rows, code) == (len(records), kernels.OK)
    return writer.append(data, table)


def units_of(pair: Pair) -> np.ndarray:  # type: ignore[type-arg]
    units = batch_units(Path(pair.index_path).read_bytes())
    return units[: valid_count(units)]


def test_documented_example_gives_its_files(tmp_path: Path) -> None:
    writer = QueueWriter(str(tmp_path), LOG_BYTES, INDEX_BYTES)
    records = [record(offset, f"k{offset % 7}") for offset in range(100)]
    assert append(writer, records[:30]) + append(writer, records[30:]) == 100
    assert append(writer, [record(100, None)]) == 0  # a message without a key
    pairs = writer.finish()
    assert [pair.name for pair in pairs] == [file_name(n * LOG_BYTES) for n in range(5)]
    assert [len(units_of(pair)) for pair in pairs] == [21, 21, 21, 21, 16]
    assert {len(Path(pair.log_path).read_bytes()) for pair in pairs} == {LOG_BYTES}
    assert {len(Path(pair.index_path).read_bytes()) for pair in pairs} == {INDEX_BYTES}
    closed, opened = Path(pairs[0].log_path).read_bytes(), Path(pairs[-1].log_path).read_bytes()
    assert decode_blank(closed, 3612, LOG_BYTES) == 1448
    assert not any(closed[3620:])
    assert not any(opened[2752:])
    assert Path(pairs[0].index_path).read_bytes()[21 * BATCH_UNIT.size :] == END_UNIT
    assert not any(Path(pairs[-1].index_path).read_bytes()[16 * BATCH_UNIT.size :])


def test_records_change_only_in_their_address(tmp_path: Path) -> None:
    writer = QueueWriter(str(tmp_path), LOG_BYTES, INDEX_BYTES)
    records = [record(offset, "k", None) for offset in range(40)]
    append(writer, records)
    found = []
    for pair in writer.finish():
        data, start = Path(pair.log_path).read_bytes(), int(pair.name)
        for unit in units_of(pair):
            at = int(unit["physical_offset"]) - start
            message = decode_message(data, at, len(data))
            assert message.physical_offset == start + at
            assert (int(unit["base"]), int(unit["store_time_ms"])) == (
                message.queue_offset,
                message.store_time_ms,
            )
            assert (int(unit["number"]), int(unit["compacted_offset"]), int(unit["reserved"])) == (
                1,
                -1,
                0,
            )
            assert int(unit["tags_code"]) == ord("T")
            raw = data[at : at + int(unit["size"])]
            found.append(raw[:28] + bytes(8) + raw[36:])
    assert found == [raw[:28] + bytes(8) + raw[36:] for raw in records]


def test_record_at_or_below_an_earlier_offset_is_skipped(tmp_path: Path) -> None:
    writer = QueueWriter(str(tmp_path), LOG_BYTES, INDEX_BYTES)
    assert append(writer, [record(offset, "k") for offset in (3, 5)]) == 2
    assert append(writer, [record(offset, "k") for offset in (4, 5, 6)]) == 1
    assert (writer.records, writer.end_offset) == (3, 7)


def test_record_that_fits_in_no_file_is_refused(tmp_path: Path) -> None:
    writer = QueueWriter(str(tmp_path), LOG_BYTES, INDEX_BYTES)
    assert append(writer, [record(0, "k", LOG_BYTES - 8)]) == 1
    with pytest.raises(InvalidConfig, match="does not fit into a file"):
        append(writer, [record(1, "k", LOG_BYTES - 7)])
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=25)
@given(
    st.lists(st.integers(100, 700), min_size=1, max_size=60),
    st.sampled_from([(5060, 1024), (1000, 200), (9000, 460)]),
)
def test_written_files_can_be_loaded_by_a_broker(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], given: tuple[int, int]
) -> None:
    """Sizes, names, order and free space follow docs/formats/rocketmq-compaction.md."""
    log_bytes, index_bytes = log_sizes(*given)
    sizes = [min(size, log_bytes - 8) for size in sizes]
    writer = QueueWriter(str(tmp_path_factory.mktemp("queue")), log_bytes, index_bytes)
    append(writer, [record(2 * offset, f"k{offset}", size) for offset, size in enumerate(sizes)])
    bases: list[int] = []
    for number, pair in enumerate(writer.finish()):
        assert int(pair.name) == number * log_bytes
        units = units_of(pair)
        assert 0 < len(units) <= index_bytes // BATCH_UNIT.size - 1
        at = int(pair.name)
        for unit in units:
            assert int(unit["physical_offset"]) == at
            at += int(unit["size"])
            assert at + 8 <= int(pair.name) + log_bytes
        bases += units["base"].tolist()
    assert bases == [2 * offset for offset in range(len(sizes))]
