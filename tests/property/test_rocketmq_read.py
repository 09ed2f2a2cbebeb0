"""Properties of reading a compacted queue, compared with a plain list of its messages."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.errors import CorruptLog, LogError
from lastwrite.rocketmq.format.units import BATCH_UNIT
from lastwrite.rocketmq.rules.pull import FileOffsets, PullStatus, answer
from tests.support.rocketmq.queues import Sent, folded, paths_of, write_queue

TOPIC = "prices"


@st.composite
def queues(draw: st.DrawFn, fewest: int = 1) -> list[list[Sent]]:
    """Files of a queue: offsets ascend with gaps, and no file is empty."""
    offset = draw(st.integers(0, 3))
    files: list[list[Sent]] = []
    for _ in range(draw(st.integers(fewest, 4))):
        file: list[Sent] = []
        for _ in range(draw(st.integers(1, 12))):
            body = draw(st.binary(max_size=40))
            key = draw(st.sampled_from(["a", "b", "c", "a b", "ключ", "𝄞", None]))
            file.append(
                Sent(
                    offset, key, body, draw(st.booleans()), tag=draw(st.sampled_from([None, "red"]))
                )
            )
            offset += 1 + draw(st.sampled_from([0, 0, 0, 1, 5]))
        files.append(file)
    return files


@contextmanager
def stored(*written: Sequence[Sequence[Sent]], **how: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        for number, files in enumerate(written):
            write_queue(Path(folder), TOPIC, number, files, **how)
        yield Path(folder)


def told(rows: Sequence[dict[str, Any]]) -> list[tuple[int, str | None, bytes]]:
    return [
        (row["queue_offset"], row["properties"].get("KEYS"), base64.b64decode(row["body"]))
        for row in rows
    ]


def expected(
    files: Sequence[Sequence[Sent]], offset: int = 0
) -> list[tuple[int, str | None, bytes]]:
    return [
        (sent.offset, sent.key, sent.body)
        for file in files
        for sent in file
        if sent.offset >= offset
    ]


# ---------------------------------------------------------------------- the rule


def table_of_section_15(offset: int, offsets: list[int]) -> tuple[str, int]:
    """Status and next offset of a pull, for queues without empty pairs.

    For FOUND, the offset of the first returned message.
    """
    if not offsets:
        return "NO_MESSAGE_IN_QUEUE", 0
    smallest, largest = min(offsets), max(offsets) + 1
    if offset == largest:
        return "OFFSET_OVERFLOW_ONE", offset
    if offset > largest:
        return "OFFSET_OVERFLOW_BADLY", 0 if smallest == 0 else largest
    return "FOUND", min(o for o in offsets if o >= offset)


@given(queues(), st.integers(0, 80))
def test_pull_rule_equals_the_documented_table(files: list[list[Sent]], offset: int) -> None:
    ranges = [FileOffsets(file[0].offset, file[-1].offset) for file in files]
    offsets = [sent.offset for file in files for sent in file]
    said = answer(offset, ranges)
    status, place = table_of_section_15(offset, offsets)
    assert said.status == status
    assert (said.min_offset, said.max_offset) == (offsets[0], offsets[-1] + 1)
    if said.status is PullStatus.FOUND:
        assert said.file is not None
        assert min(s.offset for s in files[said.file] if s.offset >= offset) == place
    else:
        assert said.next_offset == place


# ---------------------------------------------------------------------- read


@given(queues(), st.booleans())
def test_every_offset_has_a_brokers_response(files: list[list[Sent]], is_closed: bool) -> None:
    offsets = [sent.offset for file in files for sent in file]
    with stored(files, is_closed=is_closed) as store:
        for offset in range(offsets[-1] + 4):
            reading = lastwrite.read(str(store), topic=TOPIC, offset=offset)
            assert told(list(reading)) == expected(files, offset)
            if offset <= offsets[-1] + 1:
                assert (reading.status, reading.next_offset) == (
                    PullStatus.OFFSET_OVERFLOW_ONE,
                    offsets[-1] + 1,
                )
            else:
                assert (reading.status, reading.next_offset) == table_of_section_15(offset, offsets)
            assert not reading.notes


@given(queues(), st.integers(1, 9))
def test_one_pull_ends_with_its_file(files: list[list[Sent]], most: int) -> None:
    offsets = [sent.offset for file in files for sent in file]
    with stored(files) as store:
        for offset in range(offsets[-1] + 3):
            reading = lastwrite.read(
                str(store), topic=TOPIC, offset=offset, limit=most, one_pull=True
            )
            rows = told(list(reading))
            status, _ = table_of_section_15(offset, offsets)
            assert reading.status == status
            if status == "FOUND":
                file = next(file for file in files if file[-1].offset >= offset)
                assert rows == expected([file], offset)[:most]
                assert reading.next_offset == rows[-1][0] + 1
            else:
                assert not rows


@given(queues(), st.integers(0, 60), st.integers(0, 9))
def test_limited_read_continues_where_it_ended(
    files: list[list[Sent]], offset: int, limit: int
) -> None:
    wanted = expected(files, offset)
    with stored(files) as store:
        first = lastwrite.read(str(store), topic=TOPIC, offset=offset, limit=limit)
        begun = told(list(first))
        assert begun == wanted[:limit]
        if (
            len(begun) == limit and first.status is PullStatus.FOUND
        ):  # with another status, the client chooses the next offset
            rest = lastwrite.read(str(store), topic=TOPIC, offset=first.next_offset)
            assert begun + told(list(rest)) == wanted


# ---------------------------------------------------------------------- missing or wrong indexes


def harmed(path: Path, kind: str, number: int) -> None:
    """Damage an index file, but not the log."""
    data = bytearray(path.read_bytes())
    size = BATCH_UNIT.size
    count = next(
        n for n in range(len(data) // size + 1) if not any(data[n * size : n * size + 8 + 4][8:])
    )
    at = (number % count) * size
    if kind == "missing":
        path.unlink()
        return
    if kind == "zeroed":
        data = bytearray(len(data))
    elif kind == "address":
        data[at : at + 8] = (int.from_bytes(data[at : at + 8], "big") + 13).to_bytes(8, "big")
    elif kind == "size":
        data[at + 8 : at + 12] = (1 << 30).to_bytes(4, "big")
    elif kind == "offset":
        data[at + 28 : at + 36] = (int.from_bytes(data[at + 28 : at + 36], "big") + 1_000).to_bytes(
            8, "big"
        )
    path.write_bytes(data)


@given(queues(), st.data())
def test_missing_or_wrong_index_is_rebuilt(files: list[list[Sent]], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(["missing", "zeroed", "address", "size", "offset"]))
    file = data.draw(st.integers(0, len(files) - 1))
    number = data.draw(st.integers(0, 20))
    offset = data.draw(st.integers(0, files[-1][-1].offset))
    with stored(files) as store:
        harmed(paths_of(store, TOPIC, 0, file)[1], kind, number)
        reading = lastwrite.read(str(store), topic=TOPIC)
        assert told(list(reading)) == expected(files)
        assert any("in memory" in note.message for note in reading.notes)
        assert told(list(lastwrite.read(str(store), topic=TOPIC, offset=offset))) == expected(
            files, offset
        )
        try:
            table = lastwrite.latest(str(store), topic=TOPIC)
        except CorruptLog:
            # Consistent wrong offsets are only noticed when the records are read.
            assert kind == "offset"
        else:
            assert table == folded([[sent for file in files for sent in file]])


@given(queues(), st.data())
def test_records_without_a_unit_are_not_read(files: list[list[Sent]], data: st.DataObject) -> None:
    """The records after the last unit are left over from an interrupted run."""
    number = data.draw(st.integers(0, len(files) - 1))
    path = paths_of
    with stored(files, is_closed=False) as store:
        index = path(store, TOPIC, 0, number)[1]
        kept = data.draw(st.integers(1, len(files[number])))
        units = index.read_bytes()[: kept * BATCH_UNIT.size]
        index.write_bytes(units.ljust(len(index.read_bytes()), b"\0"))
        left = [file[:kept] if n == number else file for n, file in enumerate(files)]
        assert told(list(lastwrite.read(str(store), topic=TOPIC))) == expected(left)


@given(queues(), st.binary(min_size=8, max_size=400), st.integers(0, 3))
def test_missing_index_is_rebuilt_up_to_foreign_bytes(
    files: list[list[Sent]], junk: bytes, file: int
) -> None:
    with stored(files, junk=b"\xff\xff" + junk) as store:
        paths_of(store, TOPIC, 0, file % len(files))[1].unlink()
        assert told(list(lastwrite.read(str(store), topic=TOPIC))) == expected(files)


# ---------------------------------------------------------------------- damage


@given(queues(), st.data())
def test_damaged_message_hides_no_other(files: list[list[Sent]], data: st.DataObject) -> None:
    file = data.draw(st.integers(0, len(files) - 1))
    number = data.draw(st.integers(0, len(files[file]) - 1))
    lost = files[file][number].offset
    with stored(files) as store:
        log, index = paths_of(store, TOPIC, 0, file)
        unit = index.read_bytes()[number * BATCH_UNIT.size :]
        at = int.from_bytes(unit[:8], "big") % 6_072
        content = bytearray(log.read_bytes())
        content[at + 84 : at + 88] = b"\x7f\xff\xff\xff"  # the length of the body
        log.write_bytes(content)
        reading = lastwrite.read(str(store), topic=TOPIC)
        rows = []
        with pytest.raises(CorruptLog) as damage:
            for row in reading:
                rows.append(row)
        assert told(rows) == [row for row in expected(files) if row[0] != lost]
        assert damage.value.path == str(log)
        with pytest.raises(CorruptLog):
            lastwrite.latest(str(store), topic=TOPIC)


# ---------------------------------------------------------------------- latest


@given(st.lists(queues(), min_size=1, max_size=3))
def test_latest_equals_the_fold_of_a_consumer(written: list[list[list[Sent]]]) -> None:
    with stored(*written) as store:
        model = folded([[sent for file in files for sent in file] for files in written])
        assert lastwrite.latest(str(store), topic=TOPIC) == model


@given(queues(), st.data())
def test_malformed_store_gives_messages_or_a_log_error(
    files: list[list[Sent]], data: st.DataObject
) -> None:
    """Numbers anywhere in the files are wrong, up to the largest ones."""
    with stored(files) as store:
        for _ in range(data.draw(st.integers(1, 3))):
            file = data.draw(st.integers(0, len(files) - 1))
            path = paths_of(store, TOPIC, 0, file)[data.draw(st.integers(0, 1))]
            content = bytearray(path.read_bytes())
            used = max(len(bytes(content).rstrip(b"\0")), 1)
            at = data.draw(st.integers(0, used - 1))
            contradiction = data.draw(
                st.sampled_from(
                    [b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", bytes(8), b"\0\0\x10\0", b"\1"]
                )
            )
            content[at : at + len(contradiction)] = contradiction
            path.write_bytes(content[: len(path.read_bytes())])
        try:
            for row in lastwrite.read(str(store), topic=TOPIC):
                assert row["problem"] is not None or row["body"] is not None
        except LogError:
            pass
        try:
            lastwrite.latest(str(store), topic=TOPIC)
        except LogError:
            pass
