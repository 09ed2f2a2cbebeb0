"""Properties of ``compaction.strategy`` (KIP-280): the largest version of a key stays."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.encoding.compression import Codec
from lastwrite.engine import pieces
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from tests.support.engine import compact
from tests.support.kafka.logs import NAME, SCRATCH, read_segments, write_segment

NOW = 1_700_000_000_000
NEVER = str(2**62)
Written = tuple[bytes | None, bytes | None, int, tuple[tuple[bytes, bytes | None], ...]]

versions = st.integers(-3, 3).map(lambda n: n.to_bytes(8, "big", signed=True))
headers = st.lists(
    st.tuples(st.sampled_from([b"v", b"v", b"other"]), st.none() | versions | st.just(b"short")),
    max_size=3,
).map(tuple)
written = st.tuples(
    st.none() | st.sampled_from([b"a", b"b", b"c", b""]),
    st.none() | st.just(b"x"),
    st.integers(0, 4),
    headers,
)
lives = st.lists(
    st.lists(st.lists(written, min_size=1, max_size=4), max_size=4), min_size=2, max_size=4
)


def version_of(record: Record, strategy: str) -> int:
    if strategy == "timestamp":
        return record.timestamp_ms
    found = [value for name, value in record.headers if name == b"v"]
    if not found or found[-1] is None or len(found[-1]) != 8:
        return -(2**63)
    return int.from_bytes(found[-1], "big", signed=True)


def expected(records: list[Record], strategy: str, end: int, last: int) -> list[int]:
    """The offsets that stay. Records at or above ``end`` and the log's last record always stay."""
    winner: dict[bytes, tuple[int, int]] = {}
    for record in records:
        if record.key is not None and record.offset < end:
            place = (version_of(record, strategy), record.offset)
            winner[record.key] = max(winner.get(record.key, place), place)
    return [
        record.offset
        for record in records
        if record.offset >= end
        or (
            record.key is not None
            and (winner[record.key][1] == record.offset or record.offset == last)
        )
    ]


def write(folder: Path, segments: list[list[list[Written]]], codec: Codec, offset: int = 0) -> int:
    """Append closed segments. Returns the log end offset."""
    for batches in segments:
        base, encoded = offset, []
        for batch in batches:
            records = [
                Record(offset + n, NOW + at, key, value, tags)
                for n, (key, value, at, tags) in enumerate(batch)
            ]
            encoded.append(encode_batch(records, codec=codec))
            offset += len(batch)
        write_segment(folder, base, encoded, interval_bytes=1)
    return offset


def records_in(folder: Path) -> list[Record]:
    return [
        Record(r.offset, r.timestamp_ms, r.key, r.value, r.headers)
        for segment in read_segments(folder)
        for batch in segment.batches
        for r in batch.records
    ]


@given(
    lives,
    lives,
    st.sampled_from(["timestamp", "header"]),
    st.booleans(),
    st.sampled_from([Codec.NONE, Codec.LZ4]),
)
def test_greatest_version_stays(
    first: list[list[list[Written]]],
    second: list[list[list[Written]]],
    strategy: str,
    exact: bool,
    codec: Codec,
) -> None:
    """Runs two rounds, so that clean records compete with dirty ones of smaller versions.

    Pieces have a few bytes.
    """
    config = {"compaction.strategy": strategy, "delete.retention.ms": NEVER}
    if strategy == "header":
        config["compaction.strategy.header"] = "v"
    whole = pieces._PIECE_BYTES
    pieces._PIECE_BYTES = 64
    try:
        with tempfile.TemporaryDirectory(prefix="lastwrite-strategy-", dir=SCRATCH) as root:
            folder = Path(root) / NAME
            end = 0
            for round_ in (first, second):
                segments = [batches for batches in round_ if batches]
                end = write(folder, segments, codec, end)
                write_segment(folder, end, [])
                before = records_in(folder)
                [report] = compact(Path(root), config, NOW + 10, exact=exact).partitions
                if not segments:
                    continue
                assert str(report.status) in ("cleaned", "unchanged"), report.reason
                assert [record.offset for record in records_in(folder)] == expected(
                    before, strategy, end, end - 1
                )
    finally:
        pieces._PIECE_BYTES = whole


def test_last_record_of_the_log_is_never_removed(tmp_path: Path) -> None:
    batches = [[(b"a", b"new", 9, ())], [(b"a", b"old", 1, ()), (b"a", b"older", 0, ())]]
    write(tmp_path / NAME, [batches], Codec.NONE)
    compact(tmp_path, {"compaction.strategy": "timestamp"}, NOW, include_active=True)
    assert [record.offset for record in records_in(tmp_path / NAME)] == [0, 2]


def test_tombstone_of_the_greatest_version_wins_and_expires(tmp_path: Path) -> None:
    config = {"compaction.strategy": "timestamp", "delete.retention.ms": "10"}
    write(
        tmp_path / NAME,
        [[[(b"a", None, 9, ())], [(b"a", b"late", 1, ())], [(b"b", b"x", 1, ())]], []],
        Codec.NONE,
    )
    write_segment(tmp_path / NAME, 3, [])
    compact(tmp_path, config, NOW)
    assert [record.offset for record in records_in(tmp_path / NAME)] == [0, 2]
    write(tmp_path / NAME, [[[(b"c", b"x", 1, ())]]], Codec.NONE, 3)
    write_segment(tmp_path / NAME, 4, [])
    compact(tmp_path, config, NOW + 10)
    assert [record.offset for record in records_in(tmp_path / NAME)] == [2, 3]


def test_header_strategy_needs_a_header(tmp_path: Path) -> None:
    write(tmp_path / NAME, [[[(b"a", b"x", 0, ())]]], Codec.NONE)
    with pytest.raises(InvalidConfig, match=r"compaction\.strategy\.header"):
        compact(tmp_path, {"compaction.strategy": "header"}, NOW)
    with pytest.raises(InvalidConfig, match="offset, timestamp, header"):
        compact(tmp_path, {"compaction.strategy": "newest"}, NOW)
