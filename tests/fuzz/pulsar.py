"""Pulsar's part of the fuzz:  python -m tests.fuzz --system pulsar --inputs 100000 --seed 1

Every input is a data object, raw or compacted, flipped, cut, spliced and lied about, half of the time under checksums
that hold. It goes through split, open, walk and rebuild, beside the slow readers: both accept the same entries, see the
same records, and what is rebuilt holds what was kept. With it one file of another kind (index, entry log, journal,
MapFile, node of the metadata store, JSON) goes to its reader. Every ``--whole``-th input is a topic folder with damage
in some of its files, compacted, read and looked at: it is refused and stays as it was, or holds what the plain model
says.
"""

from __future__ import annotations

import contextlib
import gzip
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

import lastwrite
from lastwrite.errors import LogError, OutOfMemoryBudget
from lastwrite.formats.fingerprint import SECRET_WORDS, secret_from
from lastwrite.formats.pulsar import kernels
from lastwrite.formats.pulsar.chunk import PulsarFormat
from lastwrite.formats.pulsar.codecs import Codec
from lastwrite.formats.pulsar.compacted import decode_record, is_record
from lastwrite.formats.pulsar.entry import Entry, batch_parts, decode_entry, plain_payload
from lastwrite.formats.pulsar.entry_log import decode_map, walk_entry_log, walk_journal
from lastwrite.formats.pulsar.ledger_metadata import LedgerMetadata
from lastwrite.formats.pulsar.managed_ledger import (
    CursorInfo,
    LedgerInfo,
    ManagedLedgerInfo,
    PositionInfo,
    from_json,
    wrapped,
)
from lastwrite.formats.pulsar.names import INDEX_SUFFIX, MANAGED_LEDGER, parse_object_name
from lastwrite.formats.pulsar.offload import (
    IndexObject,
    StreamedIndexObject,
    StreamedLedger,
    walk_data,
    walk_streamed,
)
from lastwrite.formats.pulsar.position import Position
from lastwrite.formats.pulsar.sequence_file import encode_sequence_file, walk_sequence_file
from lastwrite.logstore.pulsar.manifest import read_manifest
from lastwrite.model.columns import COPY, DROP, REBUILD, ROW_COLUMNS, SHADOWED
from lastwrite.model.report import Status
from lastwrite.pipeline.inline import INLINE
from tests.pulsar_corpus import CORPUS
from tests.pulsar_drawn import as_records, buffer_of, data_object, slots_of
from tests.pulsar_model import START_MS, Author, ModelTopic, Rules, content
from tests.pulsar_topics import put_ledger, read_compacted, topic_folder

PLAIN_LIMIT = 1 << 20
SECRET = secret_from(bytes(range(1, 9)) * SECRET_WORDS)
LEDGER = 10
EVENT_TIME = "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"
_PADDING = b"\xfe\xdc\xde\xad"
_EXTREMES = [
    0,
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    127,
    128,
    255,
    2**15,
    2**31 - 1,
    2**32 - 1,
    2**63 - 1,
    2**64 - 1,
]
_LIES = [
    b"\xff",
    b"\0",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff\xff\xff\xff\x07",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 10,
    b"\x58\x03",
    b"\xf8\x01\x02",
    b"\x48\x00",
    b"\x40\x01",
    b"\xa0\x01\x15",
    b"\x20\x01",
    b"\x18\x00",
]


@dataclass(frozen=True)
class Sound:
    """What inputs are made of."""

    objects: list[tuple[bytes, int]]  # with the least offset that its first entry may have
    files: list[tuple[Callable[[bytes], Any], bytes]]


def sound() -> Sound:
    """Objects of every shape of entry, of a real cluster too, and a sample for each other reader."""
    objects: list[tuple[bytes, int]] = []
    for seed in range(24):
        bodies = Author(seed).entries(9)
        objects.append(
            (
                data_object(bodies, seed % 3, random.Random(seed).choice([700, 1 << 20])),
                LEDGER << 32,
            )
        )
        places = [Position(LEDGER + n // 4, 3 * n) for n in range(len(bodies))]
        objects.append((data_object(as_records(bodies, places), 0, 900), 0))
    for path in sorted((CORPUS / "offloaded").iterdir()):
        named = parse_object_name(path.name)
        if named is not None and path.stat().st_size < 12_000:
            objects.append((path.read_bytes(), named[1] << 32))
    return Sound(objects, _files())


def _files() -> list[tuple[Callable[[bytes], Any], bytes]]:
    def some(pattern: str, count: int = 4) -> list[bytes]:
        found = [_unpacked(path) for path in sorted(CORPUS.glob(pattern))]
        return [data for data in found if 0 < len(data)][:count]

    def walked(walk: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        return lambda data: list(walk(data))

    files: list[tuple[Callable[[bytes], Any], bytes]] = []
    files += [(walked(walk_entry_log), data[:6000]) for data in some("bookies/*/current/*.log.gz")]
    files += [(decode_map, data) for data in some("bookies/*/current/*.log.gz")]
    files += [(walked(walk_journal), data[:6000]) for data in some("bookies/*/current/*.txn.gz")]
    files += [(walked(walk_sequence_file), data) for data in some("filesystem/**/data")]
    files.append(
        (
            walked(walk_sequence_file),
            encode_sequence_file([(n, b"v" * n) for n in range(9)], bytes(16), has_blocks=True),
        )
    )
    files += [(IndexObject.decode, data) for data in some(f"offloaded/*{INDEX_SUFFIX}")]
    streamed = StreamedIndexObject(
        999, (StreamedLedger(7, b"\x08\x07", IndexObject.decode(files[-1][1]).blocks[:1]),)
    )
    files.append((StreamedIndexObject.decode, streamed.encode()))
    files.append(
        (
            walked(walk_streamed),
            struct.pack(">Iqqqq92xiq3s", 0x26A66D32, 128, 143, 0, 7, 3, 0, b"abc"),
        )
    )
    files += [(LedgerMetadata.decode_node, data) for data in some("ledgers/*")]
    nodes = some("topics/*/1/managed-ledger")
    files += [(ManagedLedgerInfo.decode_node, data) for data in nodes]
    files += [(ManagedLedgerInfo.decode_node, wrapped(nodes[0], codec)) for codec in Codec]
    files += [(CursorInfo.decode_node, data) for data in some("topics/*/1/cursor")]
    files.append(
        (
            PositionInfo.decode_node,
            bytes.fromhex("080a100522180a14436f6d706163746564546f7069634c6564676572104d"),
        )
    )
    files += [
        (lambda data: from_json(data.decode("latin-1")), data)
        for data in some("topics/*/1/stats-internal.json")
    ]
    return files


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


# ---------------------------------------------------------------- harm


def mutate(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One broken (or, rarely, still sound) file of any kind."""
    out = bytearray(data)
    match rng.randrange(7):
        case 0:
            return rng.randbytes(rng.choice([0, 1, 4, 12, 128, 140, 300]))
        case 1:
            return bytes(out[: rng.randrange(len(out) + 1)])
        case 2:
            other = rng.choice(others)
            at, start = rng.randrange(len(out) + 1), rng.randrange(len(other) + 1)
            return bytes(out[:at] + other[start : start + rng.randrange(len(other) + 1)] + out[at:])
        case 3:
            at = rng.randrange(len(out) + 1)
            del out[at : at + rng.randrange(1, 40)]
        case 4:
            for _ in range(rng.choice([1, 1, 2, 8])):
                if out:
                    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
        case 5:
            at, size = rng.randrange(len(out) + 1), rng.choice([1, 2, 4, 4, 8])
            out[at : at + size] = (rng.choice(_EXTREMES) % 256**size).to_bytes(size, "big")
        case _:
            at, lie = rng.randrange(len(out) + 1), rng.choice(_LIES)
            out[at : at + len(lie) * rng.randrange(2)] = lie
    return bytes(out)


def mutate_object(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """A broken data object; often harm is done inside one entry, whose lengths and checksum then hold again."""
    if rng.random() < 0.35:
        return mutate(rng, data, others)
    places = [(at, size) for _, at, size in walk_data(data)]
    if not places:
        return data
    at, size = rng.choice(places)
    body = data[at : at + size]
    front = len(body) - len(decode_record(body)[2]) if is_record(body) else 0
    if rng.random() < 0.8:
        inner = bytearray(body[front:])
        for _ in range(rng.choice([1, 1, 2, 3])):
            place, lie = rng.randrange(len(inner) + 1), rng.choice([*_LIES, rng.randbytes(2)])
            inner[place : place + len(lie) * rng.randrange(2)] = lie
        changed = bytes(inner)
        if rng.random() < 0.85:
            changed = resealed(changed)
        if front and rng.random() < 0.9:
            body = body[: front - 4] + len(changed).to_bytes(4, "big") + changed
        else:
            body = body[:front] + changed
    else:
        body = mutate(rng, body, [body])
    delta = len(body) - size
    out = bytearray(data)
    out[at - 12 : at - 8] = len(body).to_bytes(4, "big")
    out[at : at + size] = body
    for start in _headers(data):
        if start < at <= start + struct.unpack_from(">q", data, start + 12)[0]:
            struct.pack_into(
                ">q", out, start + 12, struct.unpack_from(">q", data, start + 12)[0] + delta
            )
    return bytes(out)


def _headers(data: bytes) -> list[int]:
    found, at = [], 0
    while at < len(data):
        found.append(at)
        at += struct.unpack_from(">q", data, at + 12)[0]
    return found


def resealed(body: bytes) -> bytes:
    """A framed entry whose checksum fits its bytes, where it has one."""
    out, at = bytearray(body), 0
    if out[:2] == b"\x0e\x02" and len(out) >= 6:
        at = min(len(out), 6 + struct.unpack_from(">I", out, 2)[0])
    if out[at : at + 2] == b"\x0e\x01" and len(out) - at >= 6:
        struct.pack_into(">I", out, at + 2, google_crc32c.value(bytes(out[at + 6 :])))
    return bytes(out)


# ---------------------------------------------------------------- in memory


@dataclass
class Seen:
    """What the slow readers make of an object: its entries up to the first that is refused."""

    entries: list[tuple[Position, bytes, Entry]]
    is_whole: bool


def seen(data: bytes, lowest: int) -> Seen:
    """Borders by the first byte, as ``kernels`` says: below 80 an entry, FB a block, else padding."""
    found: list[tuple[Position, bytes, Entry]] = []
    at, expected, floor = 0, -1, lowest
    ledger = lowest >> 32
    try:
        while at < len(data):
            if data[at] == 0xFB:
                if len(data) - at < 128:
                    break
                magic, head, length, first = struct.unpack_from(">Iqqq", data, at)
                if (
                    (magic, head) != (0xFBDBABCB, 128)
                    or length < 128
                    or first < 0
                    or expected not in (-1, first)
                ):
                    break
                at, expected = at + 128, first
                continue
            if data[at] >= 0x80:
                phase = _PADDING.find(data[at])
                if phase < 0 or (phase and at):
                    break
                while at < len(data) and data[at] == _PADDING[phase]:
                    at, phase = at + 1, phase + 1 & 3
                if at < len(data) and data[at] != 0xFB:
                    break
                continue
            if len(data) - at < 12:
                break
            size, number = struct.unpack_from(">iq", data, at)
            body = data[at + 12 : at + 12 + size]
            if len(body) < size or number < 0 or number >= 1 << 32 or expected not in (-1, number):
                break
            position = Position(ledger, number)
            if is_record(body):
                position, _, body = decode_record(body)
                if position.offset < floor or len(body) < 4:
                    break
            elif position.offset < floor or (found and position.offset != floor):
                break
            entry = decode_entry(body, *position)
            txn = entry.metadata.transaction
            if entry.crc_holds is False or (txn and not (txn[0] < 1 << 15 and txn[1] < 1 << 48)):
                break
            found.append((position, body, entry))
            ledger, floor, expected = position.ledger, position.offset + 1, number + 1
            at += 12 + size
    except LogError:
        pass
    return Seen(found, at == len(data))


def check_in_memory(form: PulsarFormat, data: bytes, lowest: int, rng: random.Random) -> str:
    """Scan and rewrite one object; returns what became of it."""
    expected = seen(data, lowest)
    buffer = buffer_of(data)
    at, floor, count = 0, lowest, 0
    while at < len(buffer):
        try:
            table, consumed, wanted, _ = form.split(buffer, at, len(buffer), floor)
        except LogError as error:
            assert len(expected.entries) == count and not expected.is_whole, (
                f"refused what is sound: {error}"
            )
            return "refused"
        here = expected.entries[count : count + len(table)]
        assert len(here) == len(table), "accepted what the slow reader refuses"
        for row, (position, body, _) in zip(table, here, strict=True):
            assert row["base_offset"] == position.offset
            assert buffer[row["position"] : row["position"] + row["size"]].tobytes() == body
        count += len(table)
        if len(table):
            floor = int(table["next_offset"][-1])
            try:
                check_rounds(form, buffer, table.copy(), [entry for _, _, entry in here], rng)
            except OutOfMemoryBudget:
                return "refused for its size"
        if wanted >= 0:
            assert not expected.is_whole
            return "cut short"
        at = consumed
    assert expected.is_whole and len(expected.entries) == count
    return "accepted"


def check_rounds(
    form: PulsarFormat, buffer: Any, table: Any, entries: list[Entry], rng: random.Random
) -> None:
    records = int(table["records"].sum())
    assert records <= len(buffer) // kernels.SMALLEST_MESSAGE + len(table) * (
        PLAIN_LIMIT // kernels.SMALLEST_MESSAGE
    )
    states = np.zeros(records, np.uint8)
    found = np.zeros((records + 1, 3), np.uint64)
    place = filled = 0
    for run in form.opened(buffer, table):
        filled = form.walk(run, table, SECRET, place, states[place:], found, filled)
        place += int(table["records"][run.first : run.last].sum())
    assert place == records
    ends = np.cumsum(table["records"])
    keep = np.frombuffer(rng.randbytes(records), np.uint8) & 1
    keep[states & SHADOWED != 0] = 0
    actions = np.full(len(table), COPY, np.uint8)
    expected: list[tuple[Entry, set[int] | None]] = []
    for b, (row, entry, end) in enumerate(zip(table, entries, ends, strict=True)):
        slots = slots_of(entry)
        here = slice(end - row["records"], end)
        is_whole = int(form.entries["kind"][b]) == kernels.WHOLE
        assert is_whole == (slots is None), f"kept whole: {is_whole}"
        if slots is None:
            assert not states[here].any()
            keep[here] = 1
            expected.append((entry, None))
            continue
        assert states[here].tolist() == [slot.state for slot in slots]
        if not keep[here].all() or not slots:
            actions[b] = REBUILD if keep[here].any() else DROP
        if keep[here].any():
            held = {
                slot.index
                for slot, stays in zip(slots, keep[here], strict=True)
                if stays and slot.index is not None
            }
            expected.append((entry, held if entry.is_readable_batch else None))
    out = np.empty(form.rebuilt_size(table, records), np.uint8)
    rows = np.empty((len(table), ROW_COLUMNS), np.int64)
    out, size, count = form.rebuild(
        buffer, table, actions, np.zeros(len(table), np.int64), keep, out, rows
    )
    assert count == len(expected) and size == int(rows[:count, 1].sum())
    for row, (entry, held) in zip(rows[:count].tolist(), expected, strict=True):
        again = decode_entry(out[row[0] : row[0] + row[1]].tobytes(), entry.ledger, entry.entry)
        assert again.crc_holds is not False and again.prefix == b""
        if held is None:
            assert (again.metadata_bytes, again.payload) == (entry.metadata_bytes, entry.payload)
            continue
        before = {
            index: part for index, _, _, part in batch_parts(entry.metadata, plain_payload(entry))
        }
        parts = batch_parts(again.metadata, plain_payload(again))
        assert {index: part for index, one, _, part in parts if not one.compacted_out} == {
            n: before[n] for n in held
        }
        # One that lies about who stayed may be copied, lie and all, where all of it stays.
        assert again.metadata.compacted_batch_indexes in (
            tuple(sorted(held)),
            entry.metadata.compacted_batch_indexes,
        )
        assert again.metadata.unknown == entry.metadata.unknown


def check_file(files: list[tuple[Callable[[bytes], Any], bytes]], rng: random.Random) -> str:
    """One file of another kind; returns what became of it."""
    read, data = rng.choice(files)
    for _ in range(rng.choice([1, 1, 2])):
        data = mutate(rng, data, [data])
    try:
        read(data)
    except LogError:
        return "file: refused"
    return "file: read"


# ---------------------------------------------------------------- whole


def check_whole(work: Path, rng: random.Random) -> str:
    """A topic folder of some ledgers, perhaps compacted before, with harm in its files."""
    shutil.rmtree(work, ignore_errors=True)
    folder = topic_folder(work)
    author, model = Author(rng.randrange(1 << 30)), ModelTopic()
    rules = Rules(rng.random() < 0.3, rng.random() < 0.3, rng.random() < 0.3, rng.random() < 0.2)
    rounds = rng.choice([0, 1, 1, 2])
    for ledger in (3, 4, 9)[: rounds + 1]:
        if model.raw:
            moved = model.compact(rules)
            assert run(folder, rules).partitions[0].status in (
                Status.CLEANED,
                Status.UNCHANGED,
                Status.SKIPPED,
            )
            assert not moved or read_manifest(str(folder)) is not None
        entries = author.entries(rng.randrange(1, 9))
        put_ledger(folder, ledger, entries, rng.choice([2000, 1 << 20]) + max(map(len, entries)))
        model.raw += [(Position(ledger, n), entry) for n, entry in enumerate(entries)]
    if rng.random() < 0.4:
        info = ManagedLedgerInfo(
            ledgers=tuple(
                LedgerInfo(
                    ledger=ledger,
                    entries=sum(place.ledger == ledger for place, _ in model.raw),
                    closed_ms=1,
                )
                for ledger in (3, 4, 9)[: rounds + 1]
            )
        )
        (folder / MANAGED_LEDGER).write_bytes(wrapped(info.encode(), rng.choice(list(Codec))))
    names = [path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".lock"]
    names.sort(key=lambda name: name.rpartition("-ledger-")[2])  # uuids are drawn
    objects = [name for name in names if parse_object_name(name)]
    known = read_manifest(str(folder))
    harmed: set[str] = set()
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        name = rng.choice(objects) if rng.random() < 0.5 else rng.choice(names)
        data = (folder / name).read_bytes()
        change = mutate_object if name in objects and rng.random() < 0.7 else mutate
        with contextlib.suppress(LogError):
            new = change(rng, data, [data])
            (folder / name).write_bytes(new)
            if new != data:
                harmed.add(name)
    before = contents(folder)
    try:
        report = run(folder, rules)
    except LogError as error:
        assert contents(folder) == before
        return f"whole: {type(error).__name__}"
    look(folder)
    (one,) = report.partitions
    after = contents(folder)
    if one.status is not Status.CLEANED:
        assert {name: after.get(name) for name in before} == before, f"{one.status}, yet changed"
        return f"whole: {one.status}"
    if MANAGED_LEDGER in harmed:
        return "whole: cleaned, of other ledgers perhaps"
    for name in harmed & set(objects):  # what was harmed and accepted is what the model reads, too
        named = parse_object_name(name)
        assert named is not None
        if known is not None and name == known.object:
            return "whole: cleaned, from a compacted ledger that was harmed"
        if model.horizon is not None and named[1] <= model.horizon.ledger:
            continue  # was read in an earlier round, but for what lies behind the horizon
        entries_now = seen(before[name], named[1] << 32)
        assert entries_now.is_whole, "cleaned what is damaged"
        model.raw = [each for each in model.raw if each[0].ledger != named[1]]
        model.raw = sorted(model.raw + [(place, body) for place, body, _ in entries_now.entries])
    model.compact(rules)
    found = [content(place, body) for place, body in read_compacted(folder)]
    assert found == [content(place, body) for place, body in model.compacted]
    return "whole: cleaned" + (", harmed" if harmed else "")


def run(folder: Path, rules: Rules) -> Any:
    config: dict[str, object] = {
        "topicCompactionRetainNullKey": rules.retain,
        "exposingBrokerEntryMetadataToClientEnabled": rules.keeps_prefix,
    }
    if rules.event_time:
        config["compactionServiceFactoryClassName"] = EVENT_TIME
    return lastwrite.compact(
        str(folder), config=config, now_ms=START_MS, spark=INLINE, like_broker=rules.like_broker
    )


def contents(folder: Path) -> dict[str, bytes]:
    """What must not change: all but surveys and the lock."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix not in (".survey", ".lock")
    }


def look(folder: Path) -> None:
    """Inspect, dump, verify, read: what is broken is said, nothing falls."""
    with contextlib.suppress(LogError):
        lastwrite.inspect(str(folder))
    with contextlib.suppress(LogError):
        list(lastwrite.dump(str(folder), limit=50))
    with contextlib.suppress(LogError):
        lastwrite.verify(str(folder), spark=INLINE)
    for read_compacted_too in (True, False):
        with contextlib.suppress(LogError):
            for _ in zip(
                range(50),
                lastwrite.read(str(folder), read_compacted=read_compacted_too),
                strict=False,
            ):
                pass
