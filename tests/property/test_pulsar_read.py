"""Properties of reading a topic folder, while newer horizons appear.

The rows are compared with the messages of a plain consumer.
"""

from __future__ import annotations

import base64
import itertools
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.errors import LogError
from lastwrite.pulsar.format.entry import Entry, decode_entry, messages_of
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.look.read import TopicReading
from tests.support.pulsar.folders import write_compacted, write_ledger
from tests.support.pulsar.model import ABORT, COMMIT, Author, ModelTopic, Rules
from tests.support.pulsar.topics import topic_folder

Told = tuple[int, int, int, str | None, bytes | None]  # ledger, entry, index, key, value

TOPIC = "persistent://public/default/orders"


@dataclass
class Written:
    """A topic with its ledgers in a folder, and its model."""

    folder: Path
    model: ModelTopic = field(default_factory=ModelTopic)
    ledgers: dict[int, list[bytes]] = field(default_factory=dict)
    next_compacted: int = 1000

    def add(self, ledger: int, entries: Sequence[bytes], block_bytes: int) -> None:
        self.ledgers[ledger] = list(entries)
        self.model.raw += [(Position(ledger, number), body) for number, body in enumerate(entries)]
        write_ledger(self.folder, ledger, entries, block_bytes=block_bytes)

    def compact(self, upto: int, block_bytes: int = 600) -> bool:
        """Compact the first ``upto`` entries. Returns whether the horizon moved."""
        part = ModelTopic(self.model.raw[:upto], self.model.compacted, self.model.horizon)
        if not part.compact(Rules()):
            return False
        self.model.compacted, self.model.horizon = part.compacted, part.horizon
        assert part.horizon is not None
        write_compacted(self.folder, self.next_compacted, part.compacted, part.horizon, block_bytes)
        self.next_compacted += 1
        return True

    def drop_raw(self) -> None:
        """Remove the ledgers that rounds have read completely."""
        horizon = self.model.horizon
        for ledger, entries in list(self.ledgers.items()):
            if horizon is not None and Position(ledger, len(entries) - 1) <= horizon:
                for suffix in ("", "-index"):
                    next(self.folder.glob(f"*-ledger-{ledger}{suffix}")).unlink()
                del self.ledgers[ledger]

    def compacted_view(self) -> list[Told]:
        above = [(place, body) for place, body in self.model.raw if not self._is_compacted(place)]
        return told_of([*self.model.compacted, *readable(above)])

    def backlog(self) -> list[Told]:
        return told_of(
            readable(
                [(place, body) for place, body in self.model.raw if place.ledger in self.ledgers]
            )
        )

    def _is_compacted(self, place: Position) -> bool:
        return self.model.horizon is not None and place <= self.model.horizon


def readable(entries: Sequence[tuple[Position, bytes]]) -> list[tuple[Position, bytes]]:
    """The entries that a broker dispatches from a backlog.

    There are no markers and no aborted data, and it ends at the first open transaction.
    """
    decoded = [(place, body, decode_entry(body, *place)) for place, body in entries]
    ends = {
        entry.metadata.transaction: entry.metadata.marker_type
        for _, _, entry in decoded
        if entry.metadata.marker_type in (COMMIT, ABORT)
    }
    found = []
    for place, body, entry in decoded:
        transaction = entry.metadata.transaction
        if not entry.is_marker and transaction is not None and transaction not in ends:
            break
        if not entry.is_marker and ends.get(transaction) != ABORT:
            found.append((place, body))
    return found


def told_of(entries: Sequence[tuple[Position, bytes]]) -> list[Told]:
    """The messages that a consumer gets from these entries. Chunks are put together."""
    parts: dict[str, list[Entry]] = {}
    found: list[Told] = []
    for place, body in entries:
        entry = decode_entry(body, *place)
        meta = entry.metadata
        if meta.is_chunk:
            group = parts.setdefault(meta.uuid or "", [])
            group.append(entry)
            if [part.metadata.chunk_id or 0 for part in group] != list(
                range(meta.num_chunks_from_msg or 0)
            ):
                continue
            entry = replace(entry, payload=b"".join(part.payload for part in group))
        try:
            messages = messages_of(entry)
        except LogError:
            found.append((*place, -1, _text(meta.partition_key), None))
            continue
        for message in messages:
            if not message.compacted_out:
                value = None if message.is_null or message.is_encrypted else message.value
                index = -1 if message.index is None else message.index
                found.append((*place, index, _text(message.key), value))
    return found


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode()


def told(row: dict[str, Any]) -> Told:
    value = None if row["value"] is None else base64.b64decode(row["value"])
    return row["ledger"], row["entry"], row["batch_index"], row["key"], value


def read(folder: Path, **how: Any) -> TopicReading:
    found = lastwrite.read(str(folder), **how)
    assert isinstance(found, TopicReading)
    return found


@contextmanager
def written(seed: int, sizes: Sequence[int], block_bytes: int) -> Iterator[Written]:
    with tempfile.TemporaryDirectory() as folder:
        topic, author = Written(topic_folder(Path(folder), TOPIC)), Author(seed)
        for number, size in enumerate(sizes):
            entries = author.entries(size) if size else []
            if number + 1 == len(sizes) and seed % 3:
                entries += author.end_transactions()
            if entries:
                topic.add(10 + 3 * number, entries, block_bytes)
        if not topic.ledgers:
            topic.add(10, author.entries(1), block_bytes)
        yield topic


SIZES = st.lists(st.integers(0, 14), min_size=1, max_size=4)


@given(
    st.integers(0, 10**6), SIZES, st.sampled_from([700, 64 << 20]), st.floats(0, 1), st.booleans()
)
def test_start_position_gives_the_message_there_or_the_next(
    seed: int, sizes: list[int], block_bytes: int, share: float, is_trimmed: bool
) -> None:
    with written(seed, sizes, block_bytes) as topic:
        topic.compact(round(share * len(topic.model.raw)))
        if is_trimmed:
            topic.drop_raw()
        for reads_compacted in (False, True):
            expected = topic.compacted_view() if reads_compacted else topic.backlog()
            reading = read(topic.folder, read_compacted=reads_compacted)
            assert [told(row) for row in reading] == expected
            assert reading.status in ("END_OF_TOPIC", "OPEN_TRANSACTION")
            places = {(ledger, entry) for ledger, entry, *_ in expected} | {
                (9, 0),
                (11, 2),
                (10, 3),
                (99, 0),
            }
            for place in places:
                at = read(
                    topic.folder, read_compacted=reads_compacted, start="{}:{}".format(*place)
                )
                whole = [one for one in expected if one[:2] >= place]
                assert [told(row) for row in at] == without_cut_parts(topic, whole, place)


def without_cut_parts(topic: Written, whole: list[Told], place: tuple[int, int]) -> list[Told]:
    """A consumer's messages from ``place`` on, without those whose first chunk is before it."""
    starts: dict[str, Position] = {}
    lasts: dict[tuple[int, int], str] = {}
    for at, body in topic.model.raw:
        meta = decode_entry(body, *at).metadata
        if meta.is_chunk:
            starts.setdefault(meta.uuid or "", at)
            lasts[at] = meta.uuid or ""
    return [one for one in whole if one[:2] not in lasts or starts[lasts[one[:2]]] >= place]


@given(st.integers(0, 10**6), SIZES, st.integers(0, 30), st.booleans())
def test_limited_read_continues_where_it_ended(
    seed: int, sizes: list[int], limit: int, reads_compacted: bool
) -> None:
    with written(seed, sizes, 64 << 20) as topic:
        topic.compact(len(topic.model.raw) // 2)
        expected = topic.compacted_view() if reads_compacted else topic.backlog()
        if any(decode_entry(body, *place).metadata.is_chunk for place, body in topic.model.raw):
            return
        first = read(topic.folder, read_compacted=reads_compacted, limit=limit)
        rows = [told(row) for row in first]
        assert rows == expected[:limit]
        rest = read(topic.folder, read_compacted=reads_compacted, start=first.next_id)
        assert rows + [told(row) for row in rest] == expected


@given(st.integers(0, 10**6), SIZES, st.floats(0, 1), st.booleans())
def test_last_message_id_is_that_of_the_last_message(
    seed: int, sizes: list[int], share: float, is_trimmed: bool
) -> None:
    with written(seed, sizes, 64 << 20) as topic:
        topic.compact(round(share * len(topic.model.raw)))
        if is_trimmed:
            topic.drop_raw()
        for reads_compacted in (False, True):
            reading = read(topic.folder, read_compacted=reads_compacted)
            ids = [(row["ledger"], row["entry"]) for row in reading]
            said = reading.summary()["last_message_id"]
            assert (said["ledger"], said["entry"]) >= (ids[-1] if ids else (-1, -1))
            entries = dict(topic.model.raw)
            place = Position(said["ledger"], said["entry"])
            if said["ledger"] >= 0 and (not ids or (place.ledger, place.entry) != ids[-1]):
                assert decode_entry(
                    entries[place], *place
                ).metadata.is_chunk  # a chunk of an incomplete message


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.lists(st.integers(3, 14), min_size=2, max_size=4), st.data())
def test_newer_horizon_during_a_read_loses_no_last_write(
    seed: int, sizes: list[int], data: st.DataObject
) -> None:
    with written(seed, sizes, 700) as topic:
        everything = told_of([(place, body) for place, body in topic.model.raw])
        total = len(topic.model.raw)
        rounds = sorted(data.draw(st.lists(st.integers(1, total), max_size=5)))
        views: dict[str, set[Told]] = {}
        got: list[Told] = []
        reading = read(topic.folder, read_compacted=True)
        if rounds and topic.compact(rounds.pop(0)):
            views[str(topic.model.horizon)] = set(told_of(topic.model.compacted))
        for row in reading:
            got.append(told(row))
            if row["source"] == "compacted":
                assert told(row) in views[reading.horizons[-1]]
            if rounds and data.draw(st.booleans()) and topic.compact(rounds.pop(0)):
                views[str(topic.model.horizon)] = set(told_of(topic.model.compacted))
        check_read_to_the_end(got, topic, everything)


def check_read_to_the_end(got: list[Told], topic: Written, everything: list[Told]) -> None:
    """Check a complete read, whatever was compacted meanwhile.

    Ids are ascending, no message is invented, and the last write of every live key was read. A
    reader may miss deletes below a horizon.
    """
    assert [one[:3] for one in got] == sorted({one[:3] for one in got})
    assert set(got) <= set(everything)
    in_parts = {
        _text(entry.metadata.partition_key)
        for entry in (decode_entry(body, *place) for place, body in topic.model.raw)
        if entry.metadata.is_chunk
    }
    last = {one[3]: one for one in told_of(readable(topic.model.raw))}
    seen = {one[3]: one for one in got}
    for key, one in last.items():
        if key is not None and one[4] and key not in in_parts:
            assert seen.get(key) == one


def test_readers_and_a_publisher_run_concurrently(tmp_path: Path) -> None:
    """Readers read the topic again and again while each horizon is published."""
    topic, author = Written(topic_folder(tmp_path, TOPIC)), Author(7)
    for number in range(3):
        topic.add(10 + number, author.entries(40), 900)
    topic.add(20, author.end_transactions() + author.entries(3), 900)
    everything = told_of(topic.model.raw)
    problems: list[BaseException] = []
    done = threading.Event()
    read_through = itertools.count()

    def keep_reading() -> None:
        try:
            while not done.is_set():
                rows = [told(row) for row in read(topic.folder, read_compacted=True)]
                check_read_to_the_end(rows, topic, everything)
                next(read_through)
        except BaseException as error:
            problems.append(error)

    readers = [threading.Thread(target=keep_reading) for _ in range(2)]
    for thread in readers:
        thread.start()
    for upto in range(1, len(topic.model.raw) + 1, 2):
        topic.compact(upto)
    done.set()
    for thread in readers:
        thread.join()
    assert not problems, problems[0]
    assert next(read_through) >= 2
