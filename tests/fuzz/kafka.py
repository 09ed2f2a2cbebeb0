"""Targets for Kafka: segments, indexes, snapshots, small text files, records of internal topics.

A segment is decoded, scanned (split, decompressed, walked) and rewritten (judged, thinned, sealed),
and compared with the slow decoder. Both must accept the same bytes and find the same records, and
the rewritten segment must decode to exactly the kept records. Other targets run the checks of a
segment after a crash, the search for producers, and the rows of ``verify``.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

import lastwrite
from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.engine.rules.verdict import Verdict, judge
from lastwrite.errors import CorruptLog, LogError
from lastwrite.kafka.cluster.commits import commit_of, decode_group_partition
from lastwrite.kafka.cluster.internal_topics import (
    GROUPS_TOPIC,
    RECORD_TYPES,
    decode_internal_record,
    is_commit,
)
from lastwrite.kafka.cluster.metadata_log import cluster_configs
from lastwrite.kafka.cluster.metadata_record import decode_metadata_record
from lastwrite.kafka.cluster.remote_log_metadata import decode_segment_state
from lastwrite.kafka.format import index, names, text
from lastwrite.kafka.format.batch import (
    decode_batch,
    decode_batch_header,
    decode_control_record,
    iter_batches,
)
from lastwrite.kafka.format.batch_layout import Batch
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.kafka.look.content import KafkaContents, seed_from
from lastwrite.kafka.old_format.entries import decode_old_header
from lastwrite.kafka.producers import headers, snapshot
from lastwrite.kafka.recovery import proof_walk
from lastwrite.kafka.recovery.unfinished_swap import Intent, decode_intent, encode_intents
from lastwrite.kafka.store.checkpoints import read_offsets
from lastwrite.kafka.store.watching import NOTES
from lastwrite.model.columns import CONTROL, IS_CONTROL, KEYLESS, SHADOWED, TOMBSTONE
from lastwrite.model.policy import Policy, Strategy
from lastwrite.model.stores import StoreSettings
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from lastwrite.storage.chunked import SegmentChunks, decode_manifest
from lastwrite.storage.quarantine import read_quarantine
from lastwrite.storage.reading import cipher_of
from lastwrite.verification.rows import (
    BY_HEADER,
    BY_OFFSET,
    BY_TIMESTAMP,
    FACT_WORDS,
    ROW_WORDS,
    SEED_WORDS,
    TALLIES,
)
from tests.fuzz import automq
from tests.fuzz.mutate import START, harm, mutate, sound_segments
from tests.fuzz.target import INPUT, OUTPUT, Target, files, on_disk, outcome, reader
from tests.support.files import contents

PLAIN_LIMIT = 1 << 20
SECRET = secret_from(bytes(range(1, 9)) * SECRET_WORDS)
SEED = seed_from(bytes(range(1, 9)) * SEED_WORDS)
CORPUS = Path(__file__).parents[1] / "corpus"
BROKER = CORPUS / "kafka-4.4.0" / "stopped"


def targets() -> list[Target]:
    """The targets for all readers of Kafka's bytes."""
    segments = sound_segments(random.Random(0))
    format = KafkaFormat(PLAIN_LIMIT)

    def segment(rng: random.Random) -> tuple[bytes, Any]:
        return mutate(rng, segments), None

    found = [
        Target(
            "kafka segment",
            segment,
            lambda data, _, rng: check_segment(format, data, rng),
            (
                "kafka.batch:decode_batch_header",
                "kafka.batch:decode_batch",
                "kafka.batch:decode_attributes",
                "kafka.old_format.entries:decode_old_batch",
                "kafka.chunk:KafkaFormat.split",
                "kafka.chunk:KafkaFormat.opened",
                "kafka.chunk:KafkaFormat.walk",
                "kafka.chunk:KafkaFormat.rebuild",
                "kafka.chunk:KafkaFormat.add_versions",
                "kafka.chunk:KafkaFormat.records_below",
                "kafka.kernels:split",
                "kafka.kernels:walk",
                "kafka.kernels:thin",
                "kafka.kernels:rebuild",
                "kafka.kernels:records_below",
                "kafka.versions:versions",
                "kafka.old_format.chunk:OldConverter.convert",
                "kafka.old_format.kernels:convert_messages",
                "kafka.old_format.kernels:measure_wrapper",
                "kafka.old_format.kernels:convert_wrapper",
                "kafka.old_format.kernels:wrapped_value",
                "kafka.packed_kernels:open_many",
                "kafka.packed_kernels:thin_many",
                "kafka.packed_kernels:seal_many",
                "kafka.look.content:KafkaContents.take",
                "kafka.look.content:contents",
                "kafka.look.content:digest",
            ),
            share=4,
        ),
        Target(
            "kafka walks",
            segment,
            lambda data, _, rng: check_walks(data, rng),
            (
                "kafka.recovery.proof_walk:walk_proven",
                "kafka.recovery.proof_walk:describe",
                "kafka.recovery.proof_walk:seek",
                "kafka.producers.headers:walk_headers",
                "kafka.batch:iter_batches",
                "kafka.batch:decode_control_record",
                "kafka.old_format.entries:decode_old_header",
            ),
            share=3,
        ),
        Target("kafka topic", segment, on_disk(check_topic), share=0.02),
    ]
    found += _side_files() + _records() + _tiers() + automq.targets()
    return found


# ---------------------------------------------------------------------- segments


def decoded(data: bytes) -> list[Batch] | None:
    """All batches by the slow decoder, with ascending offsets. None if it rejects the bytes."""
    out: list[Batch] = []
    at, floor = 0, 0
    while at < len(data):
        try:
            batch = decode_batch(
                data, at, PLAIN_LIMIT if data[at + 16 : at + 17] == b"\2" else PLAIN_LIMIT // 2
            )
        except LogError:
            return None
        if batch.header.base_offset < floor:
            return None
        if batch.attributes.control and not all(
            record.key and is_control_key(record.key) for record in batch.records
        ):
            return None
        floor = batch.header.next_offset
        at += batch.header.size_bytes
        out.append(batch)
    return out


def is_control_key(key: bytes) -> bool:
    return len(key) >= 4 and key[0] < 128  # version and type


def check_segment(format: KafkaFormat, data: bytes, rng: random.Random) -> str:
    """Decode, scan and rewrite one input. Returns the outcome."""
    expected = decoded(data)
    buffer = INPUT.put(data)
    at, floor = 0, 0
    seen: list[Batch] = []
    while at < len(buffer):
        try:
            table, consumed, wanted, held_in = format.split(buffer, at, len(buffer), floor)
            if not len(table):
                assert wanted >= 0
                assert expected is None, "split wants more where the decoder is content"
                return "refused"
            table = table.copy()
            records = int(table["records"].sum())
            held = min(records, PLAIN_LIMIT)  # more records are a wrong count of a compressed batch
            states = np.zeros(held, np.uint8)
            entries = np.zeros((held, 3), np.uint64)
            filled = place = 0
            contents = _Contents(rng, table, held)
            for run in format.opened(held_in, table):
                before = filled
                filled = format.walk(run, table, SECRET, place, states[place:], entries, filled)
                format.add_versions(
                    held_in, run, table, contents.policy, place, entries, before, filled
                )
                contents.take(run, table, held_in)
                place += int(table["records"][run.first : run.last].sum())
                row = table[run.first]
                format.records_below(run, row, int(row["base_offset"]) + rng.randrange(5))
            contents.ends(records)
            check_rewrite(format, data, held_in, table, states, entries[:filled], rng)
        except LogError:
            assert expected is None, "refused what the decoder accepts"
            return "refused"
        for row in table:
            seen.append(decode_batch(data, int(row["origin"]), PLAIN_LIMIT))
        floor = int(table["next_offset"][-1])
        at = consumed
    assert expected is not None, "accepted what the decoder refuses"
    assert seen == expected
    return "accepted"


class _Contents:
    """Checks the rows of ``verify`` for a table: one for each record and one for each batch."""

    def __init__(self, rng: random.Random, table: np.ndarray, records: int) -> None:
        order = rng.choice([BY_OFFSET, BY_OFFSET, BY_TIMESTAMP, BY_HEADER])
        header = rng.choice(["h", "", "version"])
        strategy = {
            BY_OFFSET: Strategy.HEADER,
            BY_TIMESTAMP: Strategy.TIMESTAMP,
            BY_HEADER: Strategy.HEADER,
        }[order]
        self.policy = Policy(
            now_ms=START, tombstone_retention_ms=1, strategy=strategy, strategy_header=header
        )
        self._contents = KafkaContents(
            SEED, rng.random() < 0.5, rng.choice([None, START]), order, header
        )
        self._rows = np.zeros((records + len(table), ROW_WORDS), np.uint64)
        self._tally, self._facts = (
            np.zeros(TALLIES, np.int64),
            np.zeros((len(table), FACT_WORDS), np.int64),
        )
        self._filled = self._noted = 0

    def take(self, run: Any, table: np.ndarray, buffer: np.ndarray) -> None:
        self._filled, self._noted = self._contents.take(
            run, table, buffer, self._rows, self._filled, self._tally, self._facts, self._noted
        )

    def ends(self, records: int) -> None:
        assert self._filled == len(self._rows) and self._tally[0] == records


def check_rewrite(
    format: KafkaFormat,
    data: bytes,
    buffer: np.ndarray,
    table: np.ndarray,
    states: np.ndarray,
    entries: np.ndarray,
    rng: random.Random,
) -> None:
    for ordinal in (entries[:, 1] & np.uint64(0xFFFFFFFF)).tolist():
        states[ordinal] |= SHADOWED * (rng.random() < 0.4)
    policy = Policy(
        now_ms=START + rng.choice([0, 50, 99]),
        tombstone_retention_ms=10,
        shell_offset=int(table["next_offset"][-1]),
    )
    keep, actions = np.zeros(len(states), np.uint8), np.zeros(len(table), np.uint8)
    horizons, counts = np.zeros(len(table), np.int64), np.zeros(len(Verdict), np.int64)
    judge(table, states, policy, 0, keep, actions, horizons, counts)
    out, rows = (
        OUTPUT.room(format.rebuilt_size(table, len(states))),
        np.zeros((len(table), 5), np.int64),
    )
    out, size, filled = format.rebuild(buffer, table, actions, horizons, keep, out, rows)
    found = decoded(out[:size].tobytes())
    assert found is not None and len(found) == filled, "what was rewritten does not decode"
    want, place = [], 0
    for row in table:
        for record in decode_batch(data, int(row["origin"]), PLAIN_LIMIT).records:
            state = int(states[place])
            if row["flags"] & IS_CONTROL:
                assert state & CONTROL and not state & (KEYLESS | TOMBSTONE | SHADOWED)
            else:
                assert bool(state & KEYLESS) == (record.key is None)
                assert state & KEYLESS or bool(state & TOMBSTONE) == (record.value is None)
            if keep[place]:
                want.append(record)
            place += 1
    assert [record for batch in found for record in batch.records] == want


def check_walks(data: bytes, rng: random.Random) -> str:
    """Check the walk after a crash against each CRC, and the bounds of the walk for producers."""
    buffer, rows = INPUT.put(data), np.zeros((rng.choice([1, 3, 64]), proof_walk.COLUMNS), np.int64)
    filled, at, wanted, why = proof_walk.walk_proven(buffer, len(data), rows)
    proven = _proven(data)
    assert (
        [int(row[0]) for row in rows[:filled]] == proven[:filled]
        and 0 <= at <= len(data)
        and wanted >= 0
    )
    assert why == proof_walk.FULL or filled == len(proven), (
        "the walk stops elsewhere than the checksums"
    )
    at, left, ceiling = (
        rng.randrange(len(data) + 1),
        rng.randrange(len(data) + 1),
        rng.choice([0, 9, 2**62]),
    )
    assert proof_walk.seek(buffer, at, left, 0, ceiling) == _sought(data, at, left, ceiling)
    sights = np.zeros((rng.choice([1, 64]), 7), np.int64)
    floor = rng.choice([0, 0, 7, 2**33])
    filled, at, _, seen, _ = headers.walk_headers(
        buffer, len(data), floor, rng.choice([0, 9]), 2**62, sights
    )
    assert 0 <= filled <= min(seen, len(sights)) and at >= 0
    with contextlib.suppress(LogError):
        for _, batch in iter_batches(data, 0, PLAIN_LIMIT):
            for record in batch.records if batch.attributes.control else ():
                decode_control_record(record)
    for offset in {0, *proven, len(data) // 2}:
        for decode in (decode_batch_header, decode_old_header):
            try:
                decode(data, offset)
            except LogError:
                continue
    return "proven" if why == proof_walk.END else "stopped"


def _sought(data: bytes, at: int, left: int, ceiling: int) -> int:
    """The slow equivalent of ``proof_walk.seek``, from offset 0 on."""
    for place in range(at, len(data) - 17):
        base, size = struct.unpack_from(">qi", data, place)
        least = {0: 14, 1: 14, 2: 49}.get(data[place + 16])
        if least is not None and least <= size <= left - place - 12 and 0 <= base <= ceiling:
            return place
    return -1


def _proven(data: bytes) -> list[int]:
    """The positions of complete entries with correct checksums."""
    import zlib

    found: list[int] = []
    at = 0
    while len(data) - at > 17:
        size = struct.unpack_from(">i", data, at + 8)[0] + 12
        magic = struct.unpack_from(">b", data, at + 16)[0]
        if size < 26 or size > len(data) - at or (magic >= 2 and size < 61):
            break
        if magic < 2:
            good = (
                zlib.crc32(data[at + 16 : at + size]) == struct.unpack_from(">I", data, at + 12)[0]
            )
        else:
            good = (
                google_crc32c.value(data[at + 21 : at + size])
                == struct.unpack_from(">I", data, at + 17)[0]
            )
        if not good:
            break
        found.append(at)
        at += size
    return found


# ---------------------------------------------------------------------- other files


def _side_files() -> list[Target]:
    def some(pattern: str) -> list[bytes]:
        return [
            path.read_bytes()
            for path in sorted(CORPUS.rglob(pattern))
            if 0 < path.stat().st_size < 4000
        ][:12]

    def offset_index(data: bytes) -> None:
        found = index.decode_offset_index(data, 0)
        assert data.startswith(index.encode_offset_index(found))

    def time_index(data: bytes) -> None:
        found = index.decode_time_index(data, 0)
        assert data.startswith(index.encode_time_index(found))

    def transaction_index(data: bytes) -> None:
        found = index.decode_transaction_index(data, 0)
        assert data.startswith(index.encode_transaction_index(found))

    def leader_epochs(data: bytes) -> None:
        found = text.decode_leader_epochs(data)
        assert text.decode_leader_epochs(text.encode_leader_epochs(found)) == found

    def offsets(data: bytes) -> None:
        found = text.decode_offset_checkpoint(data)
        assert text.decode_offset_checkpoint(text.encode_offset_checkpoint(found)) == found

    def producers(data: bytes) -> None:
        found = snapshot.decode_snapshot(data)
        assert snapshot.decode_snapshot(snapshot.encode_snapshot(found)) == found

    def name(data: bytes) -> None:
        word = data.decode("utf-8", "replace")
        names.classify(word)
        names.decode_folder_name(word)

    aborted = index.encode_transaction_index(
        [index.AbortedEntry(0, 7, 3 + 9 * n, 9 + 9 * n, 10 + 9 * n) for n in range(3)]
    )
    checkpoints = some("*-checkpoint")
    entries = b"".join(struct.pack(">ii", n * 5 + 3, n * 400) for n in range(9))
    times = b"".join(struct.pack(">qi", START + n, n * 5) for n in range(9))
    intent = Intent(
        first_dirty_offset=4,
        outputs=(0,),
        sources=(0, 9),
        kept=(),
        swaps=("0.log.a.swap",),
        stand_ins=(),
    )
    note = encode_intents({"t-0": intent})
    uncleanable = json.dumps(
        {
            "version": 1,
            "partitions": {"t-0": {"reason": "x", "since_ms": 1, "tries": 2, "next_try_ms": 3}},
        }
    ).encode()
    return [
        reader(
            "kafka offset index",
            offset_index,
            [*some("*.index"), entries],
            ["kafka.index:decode_offset_index"],
        ),
        reader(
            "kafka time index",
            time_index,
            [*some("*.timeindex"), times],
            ["kafka.index:decode_time_index"],
        ),
        reader(
            "kafka transaction index",
            transaction_index,
            [*some("*.txnindex"), aborted],
            ["kafka.index:decode_transaction_index"],
        ),
        reader(
            "kafka snapshot",
            producers,
            some("*.snapshot"),
            ["kafka.producers.snapshot:decode_snapshot"],
            seal=_seal_snapshot,
        ),
        reader(
            "kafka leader epochs",
            leader_epochs,
            some("leader-epoch-checkpoint"),
            ["kafka.text:decode_leader_epochs"],
        ),
        reader(
            "kafka checkpoint",
            offsets,
            checkpoints,
            ["kafka.text:decode_offset_checkpoint"],
            extra=[b"t 0 5\n"],
        ),
        reader(
            "kafka partition metadata",
            text.decode_partition_metadata,
            some("partition.metadata"),
            ["kafka.text:decode_partition_metadata", "kafka.text:topic_id_text"],
        ),
        reader(
            "kafka clean shutdown",
            text.decode_clean_shutdown,
            some(".kafka_cleanshutdown"),
            ["kafka.text:decode_clean_shutdown"],
            share=0.5,
        ),
        reader(
            "kafka names",
            name,
            [b"orders-0", b"00000000000000000007.log", b"a-1.0123456789abcdef-delete"],
            ["kafka.names:classify", "kafka.names:decode_folder_name"],
            extra=[b"-delete", b"-future", b".swap"],
        ),
        files(
            "kafka checkpoint file",
            lambda folder: read_offsets(str(folder), "cleaner-offset-checkpoint"),
            "cleaner-offset-checkpoint",
            checkpoints,
            ["kafka.store.checkpoints:read_offsets"],
        ),
        files(
            "kafka metadata log",
            lambda folder: cluster_configs(str(folder / "__cluster_metadata-0")),
            "__cluster_metadata-0/00000000000000000000.log",
            [(BROKER / "__cluster_metadata-0" / "00000000000000000000.log").read_bytes()[:8000]],
            ["kafka.cluster.metadata_log:cluster_configs"],
            seal=_seal_first_batch,
        ),
        reader(
            "kafka commit note",
            lambda data: decode_intent(data, "t-0"),
            [note],
            ["kafka.recovery.unfinished_swap:decode_intent"],
            extra=[b"null", b"1e999", b"[]", b"{}"],
        ),
        files(
            "set aside",
            lambda folder: read_quarantine(str(folder), NOTES),
            "lastwrite-uncleanable.json",
            [uncleanable],
            ["storage.quarantine:read_quarantine"],
        ),
    ]


def _seal_snapshot(data: bytearray) -> bytes:
    if len(data) >= 6:
        struct.pack_into(">I", data, 2, google_crc32c.value(bytes(data[6:])))
    return bytes(data)


def _seal_first_batch(data: bytearray) -> bytes:
    size = 12 + struct.unpack_from(">i", data, 8)[0] if len(data) >= 61 else 0
    if 61 <= size <= len(data):
        struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:size])))
    return bytes(data)


def _tiers() -> list[Target]:
    """Targets for the files beside a tier's segments, and for the records of its metadata topic."""
    chunks = sorted((CORPUS / "tiered" / "chunks").rglob("*.rsm-manifest"))
    stored = [(path.read_bytes(), path.with_suffix(".log").read_bytes()) for path in chunks]

    def manifest(rng: random.Random) -> tuple[bytes, Any]:
        content, log = rng.choice(stored)
        samples = [each for each, _ in stored]
        if rng.random() < 0.7:  # change a number or string in the JSON document
            content = _other_json(rng, content)
        else:
            content = harm(rng, content, samples, ())
        return content, log if rng.random() < 0.5 else harm(rng, log, [log], ())

    keys = StoreSettings(
        encryption_keys=tuple(
            (path.stem, str(path)) for path in (CORPUS / "tiered/chunks/keys").glob("*.pem")
        )
    )

    def check(data: bytes, log: bytes, rng: random.Random) -> str:
        def read() -> None:
            manifest = decode_manifest(data, "m")
            opened = SegmentChunks(manifest, cipher_of(manifest, "m", keys))
            assert opened.stored_bytes >= 0
            for number in range(min(4, -(-opened.size_bytes // PLAIN_LIMIT))):
                begin, end = opened.byte_range(number)
                if 0 <= begin <= end <= len(log):
                    opened.opened(number, log[begin:end])

        return outcome(read)

    told = []
    for path in (CORPUS / "tiered" / "local" / "__remote_log_metadata-0").glob("*.log"):
        for _, batch in iter_batches(path.read_bytes(), 0, PLAIN_LIMIT):
            told += [each.value for each in batch.records if each.value]
    return [
        Target("kafka tier's manifest", manifest, check),
        reader(
            "kafka tier's record",
            decode_segment_state,
            told,
            ["kafka.cluster.remote_log_metadata:decode_segment_state"],
        ),
    ]


def _other_json(rng: random.Random, content: bytes) -> bytes:
    """The document with one value replaced."""
    document = json.loads(content)
    place = document
    while True:
        key = rng.choice(sorted(place))
        if not isinstance(place[key], dict) or not place[key]:
            break
        place = place[key]
    others = (0, -1, 1, 2**31, 2**62, 2**70, None, "", "AAAA", [], {}, True, "variable", "fixed")
    place[key] = rng.choice(others)
    return json.dumps(document).encode()


def _position(data: bytes) -> None:
    is_commit(data)
    for read in (decode_group_partition, commit_of):
        with suppress(CorruptLog):
            read(data)


def _records() -> list[Target]:
    log = (BROKER / "__cluster_metadata-0" / "00000000000000000000.log").read_bytes()
    values, at = [], 0
    while at < len(log):
        batch = decode_batch(log, at)
        at += batch.header.size_bytes
        values += [
            record.value
            for record in batch.records
            if record.value and not batch.attributes.control
        ]
    rows = []
    for line in gzip.decompress(
        next(CORPUS.rglob("coordinator-records.jsonl.gz")).read_bytes()
    ).splitlines():
        row = json.loads(line)
        key = bytes.fromhex(row["key"] or "")
        rows.append((row["topic"], key, bytes.fromhex(row["value"])))
    topics = sorted([*RECORD_TYPES, names.METADATA_TOPIC])

    def own(data: bytes) -> None:  # topic, length of the key, key, value
        if len(data) >= 2:
            cut = 2 + data[1]
            decode_internal_record(topics[data[0] % len(topics)], data[2:cut], data[cut:])

    samples = [
        bytes([topics.index(topic), len(key)]) + key + value
        for topic, key, value in rows
        if len(key) < 256
    ]
    return [
        reader(
            "kafka metadata record",
            decode_metadata_record,
            values[:200],
            [
                "kafka.cluster.metadata_record:decode_metadata_record",
                "kafka.cluster.message:MessageReader",
            ],
        ),
        reader(
            "kafka record of its own",
            own,
            samples,
            [
                "kafka.cluster.internal_topics:decode_internal_record",
                "kafka.cluster.message:MessageSchema.decode",
            ],
            share=2,
        ),
        reader(
            "kafka position of a group",
            _position,
            [each for topic, *both in rows if topic == GROUPS_TOPIC for each in both],
            [
                "kafka.cluster.commits:decode_group_partition",
                "kafka.cluster.commits:commit_of",
                "kafka.cluster.internal_topics:is_commit",
            ],
        ),
    ]


# ---------------------------------------------------------------------- a whole round


def check_topic(data: bytes, folder: Path, rng: random.Random) -> str:
    """Compact a partition with this segment and an empty active one."""
    partition = folder / "t-0"
    partition.mkdir(parents=True)
    (partition / f"{0:020d}.log").write_bytes(data)
    for kind in ("index", "timeindex"):
        (partition / f"{0:020d}.{kind}").write_bytes(b"")
    (partition / f"{2**40:020d}.log").write_bytes(b"")
    before = contents(partition)
    report = lastwrite.compact(
        str(partition),
        now_ms=START + rng.choice([0, 99]),
        config={"delete.retention.ms": 10},
        spark=INLINE,
        drop_keyless=rng.random() < 0.8,
    )
    after = contents(partition)
    status = report.partitions[0].status
    assert not (report.partitions[0].is_keyless and status is not Status.SKIPPED)
    if status in (Status.DAMAGED, Status.SKIPPED, Status.UNCHANGED):
        assert after == before, f"{status}, yet changed"
        return str(status)
    assert status is Status.CLEANED, report.partitions[0].reason
    # Offsets far above a segment's base offset begin further segments.
    old, new = (
        decoded(data),
        decoded(b"".join(after[name] for name in sorted(after) if name.endswith(".log"))),
    )
    assert old is not None and new is not None
    if any(batch.attributes.transactional for batch in old):
        # aborted records are removed, which other tests check
        return f"{status}, with transactions"
    keyed = {r.key: r for batch in old for r in batch.records if r.key is not None}
    left = {r.key: r for batch in new for r in batch.records}
    horizons = {r.offset: batch.header.delete_horizon_ms for batch in old for r in batch.records}
    for key, record in keyed.items():
        if key not in left:
            horizon = horizons[record.offset]
            assert record.value is None and horizon is not None and horizon <= report.now_ms, (
                "a last write is lost"
            )
        else:
            assert left[key] == record
    return str(status)
