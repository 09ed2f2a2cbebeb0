"""Reads, runs and rewrites the text cases that ``tests/cases/README.md`` describes.

A class for each system writes a log from lines, runs a round, and prints the log as the lines that
would write it. Each case runs twice: with the engine and with the plain model.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import lastwrite
from lastwrite.pulsar.format.entry import decode_entry, messages_of
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.rules.settings import PulsarConfig
from lastwrite.rocketmq.format.names import file_name
from lastwrite.rocketmq.format.record import body_of, decode_message
from lastwrite.rocketmq.format.sides import decode_positions
from lastwrite.rocketmq.format.units import BATCH_UNIT, END_UNIT
from lastwrite.rocketmq.rules.settings import RocketmqConfig
from lastwrite.spark.inline import INLINE
from tests.support.engine import compact
from tests.support.kafka import reference
from tests.support.kafka.logs import (
    NAME,
    bases,
    encode_model,
    headers_of,
    read_segments,
    write_checkpoint,
    write_segment,
)
from tests.support.kafka.model import ModelBatch, ModelRecord, ModelSegment
from tests.support.pulsar import folders, topics
from tests.support.pulsar.model import ModelTopic, Rules
from tests.support.pulsar.rounds import raw_files
from tests.support.rocketmq import model as queues

CASES = Path(__file__).parents[1] / "cases"
WRITTEN_MS = 1
Words = Mapping[str, int]  # the names and numbers after a round's time


class Log(Protocol):
    """One log in an empty folder. With ``by_model`` the plain model runs the rounds."""

    def __init__(self, root: Path, by_model: bool) -> None: ...
    def write(self, lines: list[str]) -> None: ...
    def clean(self, config: dict[str, str], now_ms: int, words: Words) -> None: ...
    def shown(self) -> list[str]: ...


def play(path: Path, root: Path, by_model: bool) -> list[tuple[list[str], list[str]]]:
    """Run a case. Returns the expected and the actual lines of each ``leaves`` step."""
    config, log, found = {}, SYSTEMS[path.parent.name](root, by_model), []
    before = after = log.shown()
    for step, lines in steps(path.read_text()):
        words = step.split()
        match words[0]:
            case "config":
                name, _, value = step.removeprefix("config ").partition("=")
                config[name.strip()] = value.strip()
            case "log" | "append":
                log.write(lines)
            case "round":
                named = dict(zip(words[3::2], map(int, words[4::2]), strict=True))
                before = log.shown()
                log.clean(config, int(words[2]), named)
                after = log.shown()
            case "leaves":
                found.append((before if step == NOTHING else lines, after))
            case unknown:
                raise AssertionError(f"{path}: no step is called {unknown}")
    return found


NOTHING = "leaves nothing new"


def steps(text: str) -> list[tuple[str, list[str]]]:
    """The steps of a case: each unindented line with the indented lines below it.

    Comments are removed and each run of blanks becomes one blank.
    """
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        bare = plain(line)
        if bare and line[0] == " ":
            found[-1][1].append(bare)
        elif bare:
            found.append((bare, []))
    return found


def plain(line: str) -> str:
    return " ".join(line.partition("#")[0].split())


def rewritten(text: str, results: Iterable[tuple[list[str], list[str]]]) -> str:
    """The text of a case with the actual results in place of the expected ones.

    Lines that were right stay as they are, with their comments.
    """
    lines, made, left = text.splitlines(), [], iter(results)
    while lines:
        line = lines.pop(0)
        if not line.startswith("leaves"):
            made.append(line)
            continue
        expected, actual = next(left)
        if plain(line) == NOTHING and expected == actual:
            made.append(line)
            continue
        made.append(line if plain(line) != NOTHING else "leaves")
        old = []
        while lines and (lines[0].startswith(" ") or lines[0].startswith("#")):
            old.append(lines.pop(0))
        for each in actual:
            same = next((one for one in old if plain(one) == each), None)
            made.append(same or ("  " if each.split()[0] in HEADS else "    ") + each)
    return "\n".join(made) + "\n"


HEADS = {"segment", "file", "ledger", "horizon", "nothing"}


# ---------------------------------------------------------------------- Kafka

BATCH = re.compile(r"(?P<first>\d+)(\.\.(?P<last>\d+))?( until (?P<horizon>\d+))?:(?P<records>.*)")


class Kafka:
    """A log of segments, written as ``segment 0`` and ``0..2 until 6000: a=1 b=~ _``."""

    def __init__(self, root: Path, by_model: bool) -> None:
        self._root, self._folder, self._by_model = root, root / NAME, by_model
        self._folder.mkdir(parents=True)

    def write(self, lines: list[str]) -> None:
        """Append lines to the log. Those before the first ``segment`` go to the active segment."""
        if not lines[0].startswith("segment "):
            lines = [f"segment {bases(self._folder)[-1]}", *lines]
        for segment in segments(lines):
            old = self._folder / f"{segment.base_offset:020d}.log"
            data = old.read_bytes() if old.exists() else b""
            there = (
                [data[at : at + header.size_bytes] for at, header in headers_of(old)]
                if data
                else []
            )
            batches = [*there, *map(encode_model, segment.batches)]
            write_segment(self._folder, segment.base_offset, batches, mtime_ms=WRITTEN_MS)

    def clean(self, config: dict[str, str], now_ms: int, words: Words) -> None:
        end = reference.listed(self._root).end_offset
        marks = {NAME: words.get("watermark", end)}
        write_checkpoint(self._root, "replication-offset-checkpoint", marks)
        if "checkpoint" in words:
            write_checkpoint(self._root, "cleaner-offset-checkpoint", {NAME: words["checkpoint"]})
        settings = {"cleanup.policy": "compact", **config}
        if self._by_model:
            reference.compact(self._root, settings, now_ms)
        else:
            compact(self._root, settings, now_ms, like_broker=True)

    def shown(self) -> list[str]:
        left = read_segments(self._folder)
        lines = [line for segment in left for line in _segment_lines(segment)]
        assert bare(segments(lines)) == bare(left), "the lines do not say all that lies there"
        return lines


def segments(lines: list[str]) -> tuple[ModelSegment, ...]:
    found: list[ModelSegment] = []
    for line in lines:
        if line.startswith("segment "):
            found.append(ModelSegment(int(line.split()[1]), ()))
        else:
            found[-1] = replace(found[-1], batches=(*found[-1].batches, batch(line)))
    return tuple(found)


def batch(line: str) -> ModelBatch:
    parts = BATCH.fullmatch(line)
    assert parts is not None, line
    first, horizon = int(parts["first"]), parts["horizon"]
    pairs = [(offset, word) for offset, word in enumerate(parts["records"].split(), first)]
    records = [
        ModelRecord(offset, WRITTEN_MS, *pair(word)) for offset, word in pairs if word != "_"
    ]
    return ModelBatch(
        first,
        int(parts["last"] or first),
        tuple(records),
        horizon_ms=int(horizon) if horizon else None,
        max_timestamp_ms=WRITTEN_MS,
    )


def pair(word: str) -> tuple[bytes | None, bytes | None]:
    """The key and the value in ``key=value``. ``*`` means no key and ``~`` no value."""
    key, _, value = word.partition("=")
    return (
        None if key == "*" else key.strip("'").encode(),
        None if value == "~" else value.encode(),
    )


def word_of(key: bytes | str | None, value: bytes | None) -> str:
    name = key.decode() if isinstance(key, bytes) else key
    left = "*" if name is None else name or "''"
    return f"{left}={'~' if value is None else value.decode()}"


def _segment_lines(segment: ModelSegment) -> Iterable[str]:
    yield f"segment {segment.base_offset}"
    for each in segment.batches:
        span = f"{each.base_offset}"
        span += f"..{each.last_offset}" if each.last_offset > each.base_offset else ""
        span += f" until {each.horizon_ms}" if each.horizon_ms is not None else ""
        here = {record.offset: word_of(record.key, record.value) for record in each.records}
        offsets = range(each.base_offset, each.last_offset + 1)
        yield f"{span}: " + (" ".join(here.get(n, "_") for n in offsets) if here else "_")


def bare(segments: tuple[ModelSegment, ...]) -> list[tuple[int, list[ModelBatch]]]:
    """The segments without timestamps, which cases do not state."""
    return [
        (
            segment.base_offset,
            [replace(b, base_timestamp_ms=0, max_timestamp_ms=0) for b in segment.batches],
        )
        for segment in segments
    ]


# ---------------------------------------------------------------------- RocketMQ


class Rocketmq:
    """The files of one queue's compaction log, written as ``file 0`` and ``0 at 4000: a=1``."""

    log_bytes, index_bytes = 46 * 20 * 30, 46 * 20

    def __init__(self, root: Path, by_model: bool) -> None:
        self._root, self._by_model = root, by_model

    def write(self, lines: list[str]) -> None:
        queue = self._read()
        for line in lines:
            if line.startswith("file "):
                if queue.pairs:
                    queue.pairs[-1] = replace(queue.pairs[-1], is_closed=True)
                queue.pairs.append(queues.ModelPair(int(line.split()[1]) * self.log_bytes))
                continue
            place, _, word = line.partition(": ")
            offset, _, at = place.partition(" at ")
            key, body = pair(word)
            made = queues.message(
                int(offset),
                None if key is None else key.decode(),
                body or b"",
                int(at or WRITTEN_MS),
            )
            last = queue.pairs[-1]
            queue.pairs[-1] = replace(last, messages=(*last.messages, made))
        queues.write_store(self._root, [queue])

    def clean(self, config: dict[str, str], now_ms: int, words: Words) -> None:
        if not self._by_model:
            compact(self._root, config, now_ms, system="rocketmq")
            return
        settings, queue = RocketmqConfig.from_names(config), self._read()
        keeps = settings.keyless_messages == "keep"
        queues.compact(queue, now_ms, settings.delete_retention_ms, keeps_keyless=keeps)
        queues.write_store(self._root, [queue])

    def shown(self) -> list[str]:
        queue = self._read()
        lines = []
        for each in queue.pairs:
            lines.append(f"file {each.start // self.log_bytes}")
            for message in each.messages:
                at = f" at {message.store_ms}" if message.store_ms != WRITTEN_MS else ""
                lines.append(f"{message.offset}{at}: {word_of(message.key, message.body or None)}")
        assert queues.read_files(self._root) == queues.files_of(queue)
        return lines

    def _read(self) -> queues.ModelQueue:
        """The queue, read from its files by its indexes."""
        queue, files = (
            queues.ModelQueue(self.log_bytes, self.index_bytes),
            queues.read_files(self._root),
        )
        logs = sorted(place for place in files if place.startswith("compactionLog/"))
        for place in logs:
            log, index = files[place], files[place.replace("compactionLog", "compactionCq")]
            start = int(Path(place).name)
            assert Path(place).name == file_name(start)
            found, at = [], 0
            while at < len(index) and index[at : at + 46] != END_UNIT and any(index[at : at + 46]):
                address, size, *_ = BATCH_UNIT.unpack_from(index, at)
                found.append(self._message(log[address - start : address - start + size]))
                at += BATCH_UNIT.size
            is_closed = index[at : at + 46] == END_UNIT
            queue.pairs.append(queues.ModelPair(start, tuple(found), is_closed))
        positions = self._root / "compaction" / "position-checkpoint"
        if positions.exists():
            queue.position = decode_positions(positions.read_bytes()).get(f"{queue.topic}_0", -1)
        return queue

    @staticmethod
    def _message(data: bytes) -> queues.ModelMessage:
        read = decode_message(data, 0, len(data))
        return queues.message(
            read.queue_offset, read.properties.get("KEYS"), body_of(read), read.store_time_ms
        )


# ---------------------------------------------------------------------- Pulsar


class Pulsar:
    """Ledgers of single messages and batches: ``ledger 10``, ``0: a=1``, ``1: [b=1 c=~]``.

    The result of a round is the compacted ledger: ``horizon 10:1``, ``10:1: [_ c=2]``.
    """

    def __init__(self, root: Path, by_model: bool) -> None:
        self._root, self._folder = root, topics.topic_folder(root)
        self._model = ModelTopic() if by_model else None
        self._raw: list[tuple[Position, bytes]] = []

    def write(self, lines: list[str]) -> None:
        ledger, written = 0, {}
        for line in lines:
            if line.startswith("ledger "):
                ledger = int(line.split()[1])
                written[ledger] = []
                continue
            number, _, words = line.partition(": ")
            assert int(number) == len(written[ledger]), f"entry {number} is not the next"
            written[ledger].append(self._entry(words))
        for ledger, entries in written.items():
            self._raw += [(Position(ledger, n), entry) for n, entry in enumerate(entries)]
            topics.put_ledger(self._folder, ledger, entries)

    @staticmethod
    def _entry(words: str) -> bytes:
        if not words.startswith("["):
            key, value = pair(words)
            return folders.single(None if key is None else key.decode(), value)
        pairs = [pair(word) for word in words.strip("[]").split()]
        texts = [[None if each is None else each.decode() for each in both] for both in pairs]
        return folders.batch([(key, value) for key, value in texts])

    def clean(self, config: dict[str, str], now_ms: int, words: Words) -> None:
        if self._model is not None:
            self._model.raw = self._raw
            self._model.compact(Rules(retain=PulsarConfig.from_names(config).retain_null_key))
            return
        before = raw_files(self._root)
        report = lastwrite.compact(
            str(self._root), system="pulsar", config=config, now_ms=now_ms, spark=INLINE
        )
        assert report.exit_status == 0 and raw_files(self._root) == before

    def shown(self) -> list[str]:
        if self._model is not None:
            horizon, entries = self._model.horizon, self._model.compacted
        elif (manifest := topics.read_manifest(str(self._folder))) is not None:
            horizon, entries = manifest.horizon, topics.read_compacted(self._folder)
        else:
            return []
        if horizon is None:
            return []
        lines = [f"horizon {horizon.ledger}:{horizon.entry}"]
        for place, body in entries:
            entry = decode_entry(body, *place)
            words = [
                "_"
                if each.compacted_out
                else word_of(each.key, None if each.is_null else each.value)
                for each in messages_of(entry)
            ]
            text = f"[{' '.join(words)}]" if entry.is_readable_batch else words[0]
            lines.append(f"{place.ledger}:{place.entry}: {text}")
        return lines


SYSTEMS: dict[str, type[Log]] = {"kafka": Kafka, "rocketmq": Rocketmq, "pulsar": Pulsar}
