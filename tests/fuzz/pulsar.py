"""Targets for Pulsar: data objects, entries, metadata, bookies' files, compacted topics.

A data object, raw or compacted, is split, opened, walked and rebuilt, and compared with the slow
decoders. Both must accept the same entries and find the same records, and the rebuilt object must
have what was kept. Every other kind of file (index, entry log, journal, MapFile, node of the
metadata store, JSON) goes to its reader. A topic folder with damaged files is compacted, read and
inspected. It is rejected without a change, or has the content of the plain model.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

import lastwrite
from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.errors import LogError, OutOfMemoryBudget
from lastwrite.model.columns import COPY, DROP, REBUILD, ROW_COLUMNS, SHADOWED
from lastwrite.model.policy import Policy, Strategy
from lastwrite.pulsar.format import entry_log_kernels, kernels, protobuf
from lastwrite.pulsar.format.chunk import PulsarFormat
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs
from lastwrite.pulsar.format.compacted import MessageId, decode_record, is_record
from lastwrite.pulsar.format.entry import (
    Entry,
    Metadata,
    SingleMetadata,
    batch_parts,
    checked,
    decode_entry,
    is_undecodable,
    messages_of,
    plain_payload,
    rebatched,
)
from lastwrite.pulsar.format.entry_log import decode_map, encode_map, walk_entry_log, walk_journal
from lastwrite.pulsar.format.ledger_metadata import LedgerMetadata
from lastwrite.pulsar.format.managed_ledger import (
    CursorInfo,
    LedgerInfo,
    ManagedLedgerInfo,
    PositionInfo,
    from_json,
    wrapped,
)
from lastwrite.pulsar.format.missing import EntryRange, decode_ranges
from lastwrite.pulsar.format.names import (
    FETCHED,
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANIFEST,
    SURVEY_SUFFIX,
    TopicName,
    parse_entry_log_name,
    parse_map_file_name,
    parse_object_name,
    parse_streamed_name,
)
from lastwrite.pulsar.format.offload import IndexObject, walk_data
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.sequence_file import walk_sequence_file
from lastwrite.pulsar.format.survey import EntrySurveyor
from lastwrite.pulsar.network import commands
from lastwrite.pulsar.store.exported_metadata import read_exported
from lastwrite.pulsar.store.known import TopicFacts, read_facts
from lastwrite.pulsar.store.manifest import checksum_of, read_manifest
from lastwrite.pulsar.store.survey import LedgerSurvey, stored_survey
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.fuzz.mutate import harm
from tests.fuzz.target import INPUT, OUTPUT, Target, files, on_disk, outcome, reader
from tests.support.pulsar.corpus import CORPUS
from tests.support.pulsar.drawn import as_records, data_object, slots_of
from tests.support.pulsar.model import START_MS, Author, ModelTopic, Rules, content
from tests.support.pulsar.topics import put_ledger, read_compacted, topic_folder
from tests.support.pulsar.writers import encode_sequence_file

PLAIN_LIMIT = 1 << 20
SECRET = secret_from(bytes(range(1, 9)) * SECRET_WORDS)
LEDGER = 10
BY_TIME = Policy(now_ms=0, tombstone_retention_ms=0, strategy=Strategy.EVENT_TIME)
EVENT_TIME = "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"
_PADDING = b"\xfe\xdc\xde\xad"
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


def targets() -> list[Target]:
    """The targets for all readers of Pulsar's bytes."""
    objects = sound_objects()
    others = [data for data, _ in objects]
    form, surveyor = PulsarFormat(PLAIN_LIMIT), EntrySurveyor(PLAIN_LIMIT)

    def harmed(rng: random.Random) -> tuple[bytes, Any]:
        data, lowest = rng.choice(objects)
        return mutate_object(rng, data, others), lowest

    found = [
        Target(
            "pulsar object",
            harmed,
            lambda data, lowest, rng: check_in_memory(form, data, lowest, rng),
            (
                "pulsar.chunk:PulsarFormat.split",
                "pulsar.chunk:PulsarFormat.opened",
                "pulsar.chunk:PulsarFormat.walk",
                "pulsar.chunk:PulsarFormat.rebuild",
                "pulsar.chunk:PulsarFormat.records_below",
                "pulsar.chunk:PulsarFormat.add_versions",
                "pulsar.kernels:split",
                "pulsar.kernels:open_many",
                "pulsar.kernels:walk",
                "pulsar.kernels:thin",
                "pulsar.kernels:rebuild",
                "pulsar.kernels:thin_many",
                "pulsar.kernels:put_head",
                "pulsar.entry:decode_entry",
                "pulsar.entry:batch_parts",
                "pulsar.entry:plain_payload",
                "pulsar.compacted:decode_record",
                "pulsar.compacted:is_record",
                "pulsar.offload:walk_data",
                "pulsar.offload:block_entries",
            ),
            share=2,
        ),
        Target(
            "pulsar survey",
            harmed,
            lambda data, lowest, rng: check_survey(surveyor, data, lowest, rng),
            (
                "pulsar.survey:EntrySurveyor.take",
                "pulsar.entry:messages_of",
                "pulsar.entry:decode_properties",
                "pulsar.entry:is_undecodable",
                "pulsar.entry:checked",
                "pulsar.entry:rebatched",
                "pulsar.protobuf:without",
            ),
            share=1,
        ),
        Target(
            "pulsar topic", lambda rng: (rng.randbytes(8), None), on_disk(check_topic), share=0.01
        ),
    ]
    return found + _files() + _kernels() + _folders()


def sound_objects() -> list[tuple[bytes, int]]:
    """Intact data objects with entries of every kind, some of a real cluster.

    Each has the lowest offset that its first entry may have.
    """
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
    return objects


def _some(pattern: str, count: int = 4, most: int = 1 << 20) -> list[bytes]:
    found = [_unpacked(path)[:most] for path in sorted(CORPUS.glob(pattern)) if path.is_file()]
    return [data for data in found if data][:count]


def _walked(walk: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    return lambda data: list(walk(data))


def _files() -> list[Target]:
    """Targets for the readers of whole files and nodes, each with samples."""
    logs, journals = (
        _some("bookies/*/current/*.log.gz", most=6000),
        _some("bookies/*/current/*.txn.gz", most=6000),
    )
    pairs = encode_sequence_file([(n, b"v" * n) for n in range(9)], bytes(16), has_blocks=True)
    indexes, nodes = _some(f"offloaded/*{INDEX_SUFFIX}"), _some("topics/*/1/managed-ledger")
    wrapped_nodes = [wrapped(nodes[0], codec) for codec in PulsarCodec]
    position = bytes.fromhex("080a100522180a14436f6d706163746564546f7069634c6564676572104d")
    maps = [encode_map({1: 5, 2: 900}), *_some("bookies/*/current/*.log.gz")]

    def name(data: bytes) -> None:
        word = data.decode("utf-8", "replace")
        for parse in (
            parse_object_name,
            parse_streamed_name,
            parse_map_file_name,
            parse_entry_log_name,
        ):
            parse(word)
        for parse in (TopicName.parse, TopicName.of_managed_ledger, Position.parse):
            outcome(lambda: parse(word))  # noqa: B023

    def message(data: bytes) -> None:
        protobuf.spans(data)
        for kind in (Metadata, SingleMetadata, MessageId):
            outcome(lambda: kind.decode(data))  # noqa: B023

    command = commands.encode_command(
        commands.BaseCommand(
            kind=6,
            success=commands.Success(request_id=7),
            connect=commands.Connect(client_version="x"),
        )
    )
    names = [
        b"persistent://public/default/t-partition-3",
        b"public/default/persistent/a%2Fb",
        b"12:7",
        b"12:7:1:3",
    ]
    names += [path.name.encode() for path in sorted((CORPUS / "offloaded").iterdir())][:6]
    return [
        reader(
            "pulsar entry log",
            _walked(walk_entry_log),
            logs,
            [
                "pulsar.entry_log:walk_entry_log",
                "pulsar.entry_log:decode_header",
                "pulsar.entry_log:digest_of",
            ],
        ),
        reader("pulsar entry log map", decode_map, maps, ["pulsar.entry_log:decode_map"]),
        reader(
            "pulsar journal", _walked(walk_journal), journals, ["pulsar.entry_log:walk_journal"]
        ),
        reader(
            "pulsar sequence file",
            _walked(walk_sequence_file),
            [*_some("filesystem/**/data", most=4000), pairs],
            ["pulsar.sequence_file:walk_sequence_file", "pulsar.sequence_file:decode_header"],
        ),
        reader(
            "pulsar index",
            IndexObject.decode,
            indexes,
            [
                "pulsar.offload:IndexObject.decode",
                "pulsar.offload:parse_block_header",
                "pulsar.offload:is_padding",
            ],
        ),
        reader(
            "pulsar ledger node",
            LedgerMetadata.decode_node,
            _some("ledgers/*", 12),
            [
                "pulsar.ledger_metadata:LedgerMetadata.decode_node",
                "pulsar.protobuf:ProtoMessage.decode",
            ],
        ),
        reader(
            "pulsar managed ledger",
            ManagedLedgerInfo.decode_node,
            nodes + wrapped_nodes,
            [
                "pulsar.managed_ledger:ManagedLedgerInfo.decode_node",
                "pulsar.managed_ledger:unwrapped",
            ],
        ),
        reader(
            "pulsar cursor",
            CursorInfo.decode_node,
            _some("topics/*/1/cursor"),
            ["pulsar.managed_ledger:CursorInfo.decode_node"],
        ),
        reader(
            "pulsar position",
            PositionInfo.decode_node,
            [position],
            ["pulsar.managed_ledger:PositionInfo.decode_node"],
        ),
        reader(
            "pulsar stats",
            lambda data: from_json(data.decode("latin-1")),
            _some("topics/*/1/stats-internal.json"),
            ["pulsar.managed_ledger:from_json"],
            extra=[b"null", b"1.5", b"true", b'"x"', b"[]", b"{}"],
        ),
        reader(
            "pulsar names",
            name,
            names,
            [
                "pulsar.names:TopicName.parse",
                "pulsar.names:TopicName.of_managed_ledger",
                "pulsar.position:Position.parse",
                "pulsar.names:parse_object_name",
                "pulsar.names:parse_streamed_name",
                "pulsar.names:parse_map_file_name",
                "pulsar.names:parse_entry_log_name",
            ],
        ),
        reader(
            "pulsar protobuf",
            message,
            [*_some("topics/*/1/cursor"), *nodes],
            [
                "pulsar.protobuf:spans",
                "pulsar.protobuf:decode_varint",
                "pulsar.protobuf:ProtoField.decode",
            ],
        ),
        reader(
            "pulsar missing entries",
            decode_ranges,
            [b"0-3,7,9-12", b"5"],
            ["pulsar.missing:decode_ranges"],
            extra=[b",", b"-", b"1"],
            share=0.5,
        ),
        reader(
            "pulsar command",
            commands.decode_command,
            [command],
            ["pulsar.network.commands:decode_command"],
        ),
    ]


def _kernels() -> list[Target]:
    """Targets for the kernel that reads bookies' files, and for payloads of each codec."""
    logs, journals = (
        _some("bookies/*/current/*.log.gz", most=6000),
        _some("bookies/*/current/*.txn.gz", most=6000),
    )
    samples = [(data[1024:], False) for data in logs if len(data) > 1100] + [
        (data[512:], True) for data in journals
    ]
    kept = [data for data, _ in samples]
    codecs = PulsarCodecs()
    plain = [b"", b"x", b"abc" * 90, bytes(range(256)) * 4]
    packed = [
        (codec, codecs.compress(codec, data), len(data)) for codec in PulsarCodec for data in plain
    ]

    def bookie(rng: random.Random) -> tuple[bytes, Any]:
        data, is_journal = rng.choice(samples)
        for _ in range(rng.choice([0, 1, 1, 2])):
            data = harm(rng, data, kept)
        return data, is_journal

    def payload(rng: random.Random) -> tuple[bytes, Any]:
        codec, data, size = rng.choice(packed)
        for _ in range(rng.choice([0, 1, 1, 2])):
            data = harm(rng, data, [data])
        return data, (codec, rng.choice([size, size, size + 1, 0, 7, 2**31 - 1]))

    def open_payload(data: bytes, said: Any, rng: random.Random) -> str:
        codec, size = said
        out = OUTPUT.room(rng.choice([min(size, 5000), 100, 5000]))
        try:
            fits = codecs.open_into(codec, data, size, out)
        except LogError:
            assert outcome(lambda: codecs.decompress(codec, data, size, PLAIN_LIMIT)) == "refused"
            return "refused"
        if fits:
            assert codecs.decompress(codec, data, size, PLAIN_LIMIT) == out[:size].tobytes()
            return "read"
        outcome(lambda: codecs.decompress(codec, data, size, PLAIN_LIMIT))
        return "too large"

    return [
        Target(
            "pulsar bookie",
            bookie,
            check_bookie,
            ("pulsar.entry_log_kernels:walk", "pulsar.entry_log_kernels:frame"),
            share=2,
        ),
        Target(
            "pulsar payload",
            payload,
            open_payload,
            ("pulsar.codecs:PulsarCodecs.open_into", "pulsar.codecs:PulsarCodecs.decompress"),
            share=2,
        ),
    ]


def check_bookie(data: bytes, is_journal: bool, rng: random.Random) -> str:
    """Check that the kernel's rows lie within the bytes, and are decoded to the same records."""
    buffer, wanted = INPUT.put(data), np.array(sorted(rng.sample(range(12), 6)) + [77], np.int64)
    table, scratch = (
        np.zeros(rng.choice([2, 64]), entry_log_kernels.STORED),
        OUTPUT.room(rng.choice([100, 1 << 14])),
    )
    at, proves, count = 0, rng.random() < 0.3, 0
    for _ in range(200):
        rows, now, proves, why = entry_log_kernels.walk(
            buffer, at, proves, wanted, is_journal, table, scratch
        )
        count += rows
        found = table[:rows]
        assert at <= now <= len(data)
        assert all(
            0 <= row["at"] and row["size"] >= 0 and row["at"] + row["size"] <= len(data)
            for row in found
        )
        places = np.cumsum([0, *(12 + found["size"])])
        out = np.zeros(int(places[-1]), np.uint8)
        entry_log_kernels.frame(buffer, found, places, out)
        for row, place in zip(found, places[:-1].tolist(), strict=True):
            body = data[int(row["at"]) : int(row["at"] + row["size"])]
            assert out[place + 12 : place + 12 + len(body)].tobytes() == body
        if why != entry_log_kernels.TABLE_FULL:
            break
        at = now
    return "found" if count else "nothing"


def _folders() -> list[Target]:
    """Targets for the files of an archive, as the store reads them."""
    nodes, cursors = _some("topics/*/1/managed-ledger"), _some("topics/*/1/cursor")
    stats = _some("topics/*/1/stats-internal.json")
    manifest = _sound_manifest()
    runs, marks = np.array([[0, 3, 1, -1]], np.int64), np.array([[2, 90]], np.int64)
    survey = LedgerSurvey(9, 12, START_MS, 0, runs, marks).encode(100, 5)

    known = TopicFacts(
        topic="persistent://public/default/t",
        entries={10: 30, 80: 90},
        damaged={80: (EntryRange(91, 95),)},
        compacted=(77, Position(10, 5)),
        cursor=78,
    ).encode()

    def survey_file(folder: Path) -> None:
        stored_survey(str(folder / "x"), 100, 5)

    return [
        files(
            "pulsar manifest",
            lambda folder: read_manifest(str(folder)),
            MANIFEST,
            [manifest],
            ["pulsar.store.manifest:read_manifest"],
            seal=_seal_manifest,
        ),
        files(
            "pulsar survey file",
            survey_file,
            f"x{SURVEY_SUFFIX}",
            [survey],
            ["pulsar.store.survey:kept_survey"],
            seal=_seal_survey,
        ),
        files(
            "pulsar known",
            lambda folder: read_facts(str(folder)),
            FETCHED,
            [known],
            ["pulsar.store.known:read_known"],
            seal=_seal_manifest,
        ),
        files(
            "pulsar said",
            lambda folder: read_exported(str(folder / "said")),
            "said",
            nodes + stats + cursors,
            ["pulsar.store.exported_metadata:read_said"],
        ),
    ]


def _sound_manifest() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        topic = topic_folder(Path(folder))
        put_ledger(topic, 3, Author(1).entries(6), 1 << 20)
        run(topic, Rules(False, False, False, False))
        return (topic / MANIFEST).read_bytes()


def _seal_manifest(data: bytearray) -> bytes:
    try:
        content = json.loads(bytes(data))
        content.pop("checksum", None)
        return json.dumps({**content, "checksum": checksum_of(content)}).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return bytes(data)


def _seal_survey(data: bytearray) -> bytes:
    return bytes(data[:-4]) + google_crc32c.value(bytes(data[:-4])).to_bytes(4, "little")


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


# ---------------------------------------------------------------- damage


def mutate_object(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """A damaged data object.

    Often only one entry is changed, with matching lengths and checksum.
    """
    if rng.random() < 0.35:
        return harm(rng, data, others)
    places = [(at, size) for _, at, size in walk_data(data)]
    if not places:
        return data
    at, size = rng.choice(places)
    body = data[at : at + size]
    front = len(body) - len(decode_record(body)[2]) if is_record(body) else 0
    if rng.random() < 0.8:
        inner = bytearray(body[front:])
        for _ in range(rng.choice([1, 1, 2, 3])):
            place, contradiction = (
                rng.randrange(len(inner) + 1),
                rng.choice([*_LIES, rng.randbytes(2)]),
            )
            inner[place : place + len(contradiction) * rng.randrange(2)] = contradiction
        changed = bytes(inner)
        if rng.random() < 0.85:
            changed = resealed(changed)
        if front and rng.random() < 0.9:
            body = body[: front - 4] + len(changed).to_bytes(4, "big") + changed
        else:
            body = body[:front] + changed
    else:
        body = harm(rng, body, [body])
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
    """A framed entry with its checksum, if it has one, corrected."""
    out, at = bytearray(body), 0
    if out[:2] == b"\x0e\x02" and len(out) >= 6:
        at = min(len(out), 6 + struct.unpack_from(">I", out, 2)[0])
    if out[at : at + 2] == b"\x0e\x01" and len(out) - at >= 6:
        struct.pack_into(">I", out, at + 2, google_crc32c.value(bytes(out[at + 6 :])))
    return bytes(out)


# ---------------------------------------------------------------- in memory


@dataclass
class Seen:
    """The slow decoders' result for an object: its entries up to the first rejected one."""

    entries: list[tuple[Position, bytes, Entry]]
    is_whole: bool


def seen(data: bytes, lowest: int) -> Seen:
    """Decode an object with the slow decoders.

    As in ``kernels``, the first byte tells the kind: below 0x80 an entry, 0xFB a block, else
    padding.
    """
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
    """Scan and rewrite one object. Returns the outcome."""
    expected = seen(data, lowest)
    buffer = INPUT.put(data)
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
        before = filled
        filled = form.walk(run, table, SECRET, place, states[place:], found, filled)
        form.add_versions(buffer, run, table, BY_TIME, place, found, before, filled)
        row = table[run.first]
        assert (
            0
            <= form.records_below(run, row, int(row["base_offset"]) + rng.randrange(4))
            <= row["records"]
        )
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
    out = OUTPUT.room(form.rebuilt_size(table, records))
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
        # A batch with wrong kept indexes may be copied unchanged if all of its messages stay.
        assert again.metadata.compacted_batch_indexes in (
            tuple(sorted(held)),
            entry.metadata.compacted_batch_indexes,
        )
        assert again.metadata.unknown == entry.metadata.unknown


def check_survey(surveyor: EntrySurveyor, data: bytes, lowest: int, rng: random.Random) -> str:
    """Check the survey, which reads only metadata, and run all slow decoders on some entries."""
    buffer = INPUT.put(data)
    try:
        table, consumed, _ = surveyor.take(buffer, 0, len(buffer), lowest)
        assert consumed <= len(data) and (table["records"] >= 0).all()
    except LogError:
        table = None
    for _, body, entry in seen(data, lowest).entries[:4]:
        is_undecodable(entry, PLAIN_LIMIT)
        outcome(lambda: messages_of(entry, PLAIN_LIMIT))  # noqa: B023
        outcome(lambda: checked(entry))  # noqa: B023
        outcome(lambda: rebatched(entry, lambda n: n % 2 == 0, PLAIN_LIMIT))  # noqa: B023
        outcome(lambda: protobuf.without(body, 1, 2))  # noqa: B023
    return "refused" if table is None else "surveyed"


# ---------------------------------------------------------------- whole topics


def check_topic(data: bytes, work: Path, rng: random.Random) -> str:
    """Compact a topic folder of a few ledgers with damaged files. Some were compacted before."""
    rng = random.Random(data)
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
        (folder / MANAGED_LEDGER).write_bytes(wrapped(info.encode(), rng.choice(list(PulsarCodec))))
    names = [path.name for path in folder.iterdir() if path.is_file() and path.suffix != ".lock"]
    names.sort(key=lambda name: name.rpartition("-ledger-")[2])  # sort without the random uuids
    objects = [name for name in names if parse_object_name(name)]
    known = read_manifest(str(folder))
    harmed: set[str] = set()
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        name = rng.choice(objects) if rng.random() < 0.5 else rng.choice(names)
        data = (folder / name).read_bytes()
        change = mutate_object if name in objects and rng.random() < 0.7 else harm
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
    # damaged objects that were accepted: the model reads the same bytes
    for name in harmed & set(objects):
        named = parse_object_name(name)
        assert named is not None
        if known is not None and name == known.object:
            return "whole: cleaned, from a compacted ledger that was harmed"
        if model.horizon is not None and named[1] <= model.horizon.ledger:
            continue  # read in an earlier round, except for entries after the horizon
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
    """The files that must not change: all but surveys and the lock."""
    return {
        path.name: path.read_bytes()
        for path in sorted(folder.iterdir())
        if path.is_file() and path.suffix not in (".survey", ".lock")
    }


def look(folder: Path) -> None:
    """Run inspect, dump, verify and read. Only a LogError is allowed."""
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
