"""``verify`` of Pulsar's topic folders: is every byte what its place promises?

Of each ledger, raw and compacted: every entry by its checksum and every batch message by message; entry ids without a
gap; as many entries and bytes as the ledger's metadata say; and every block of the index where a block begins, with the
entry that the index names. Of the compacted ledger besides: what the manifest says of it, and no id beyond the horizon;
of one that we made no key twice, and no message without a key where the manifest says that such went.

Memory: a chunk, and of the compacted ledger sixteen bytes a message, up to a limit.

Source: Pulsar 4.2.4; spec/pulsar.md sections 7, 10, 22, 23.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from lastwrite.audit.pulsar_proof import compare
from lastwrite.errors import CorruptLog, LogError
from lastwrite.formats.fingerprint import SECRET_WORDS, secret_from
from lastwrite.formats.pulsar import kernels
from lastwrite.formats.pulsar.chunk import PulsarFormat
from lastwrite.formats.pulsar.names import INDEX_SUFFIX
from lastwrite.formats.pulsar.offload import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEAD_BYTES,
    parse_block_header,
)
from lastwrite.formats.pulsar.position import Position
from lastwrite.logstore.pulsar import lock
from lastwrite.logstore.pulsar.topic import (
    Ledger,
    Topic,
    find_topics,
    list_topic,
    name_of,
    partition_of,
)
from lastwrite.logstore.reading import SegmentReader
from lastwrite.model.columns import IS_TRANSACTIONAL, KEYLESS, TOMBSTONE, UInt64Array
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.model.verification import (
    Comparison,
    PartitionVerification,
    Transactions,
    VerifyReport,
    VerifyStatus,
    Violation,
)
from lastwrite.model.work import Limits, Piece
from lastwrite.pipeline.chunks import Chunks

_REMEDY = "bring the object once more from where it was offloaded to"
_AGAIN = "compact the topic anew: move the manifest away, if the raw ledgers are all here"
_MOST_KEYS = 1 << 24  # that are held at once to see that none comes twice
_MESSAGE_BYTES = 160  # that comparing takes
_LARGEST_BLOCK = 1 << 40
_COMMITTED, _ABORTED = 21, 22  # types of markers


def verify(
    path: str,
    before: str | None,
    topic: str | None,
    partition: int | None,
    limits: Limits,
    memory_bytes: int,
) -> VerifyReport:
    """Check the topic folders at ``path``, each against what it was at ``before``; see ``pulsar_proof``.

    Damage and broken promises do not raise: they stand in the report.

    Raises:
        NotALog: no topic lies there.
        LogHeld: a run holds one of them.
    """
    begin = time.perf_counter()
    pairs = _pairs(
        find_topics(path, topic, partition), before and find_topics(before, topic, partition)
    )
    for folder in (folder for pair in pairs for folder in pair if folder is not None):
        lock.refuse_if_held(folder)
    found = []
    for after, was in pairs:
        name = partition_of(name_of(after or was or ""))
        report = PartitionVerification(topic=name.topic, partition=name.partition)
        try:
            _verify(report, after, was, limits, memory_bytes)
        except (LogError, OSError) as error:
            is_damage = isinstance(error, LogError) and error.exit_status == 3
            report.worsen(VerifyStatus.DAMAGED if is_damage else VerifyStatus.FAILED, str(error))
        found.append(report)
    return VerifyReport(partitions=found, seconds=time.perf_counter() - begin)


def _pairs(after: list[str], before: list[str] | str | None) -> list[tuple[str | None, str | None]]:
    """(folder, folder as it was) of each topic; two single ones meet whatever they are called."""
    if not isinstance(before, list):
        return [(folder, None) for folder in after]
    if len(after) == len(before) == 1:
        return [(after[0], before[0])]
    now, was = ({name_of(folder): folder for folder in some} for some in (after, before))
    return [(now.get(name), was.get(name)) for name in sorted({*now, *was})]


def _verify(
    report: PartitionVerification,
    after: str | None,
    before: str | None,
    limits: Limits,
    memory_bytes: int,
) -> None:
    if after is None:
        report.comparison = Comparison(folder=before or "", violation_count=1)
        report.comparison.violations.append(
            Violation("partition", "the topic was there before and is missing", None, before)
        )
        report.worsen(VerifyStatus.BROKEN, str(report.comparison.violations[0]))
        return
    topic = list_topic(after)
    _verify_structure(report, topic, limits)
    if before is not None and report.status is VerifyStatus.VERIFIED:
        report.comparison, like_broker = compare(
            list_topic(before), topic, memory_bytes // _MESSAGE_BYTES
        )
        if like_broker:
            report.advice.append(
                f"{after}: compacted as a broker would, not by the rules of Lastwrite"
            )
        if report.comparison.violations:
            report.worsen(VerifyStatus.BROKEN, str(report.comparison.violations[0]))


def _verify_structure(report: PartitionVerification, topic: Topic, limits: Limits) -> None:
    for problem in topic.problems:
        _note(report, problem)
    seen = _Seen()
    if topic.compacted is not None:
        _verify_compacted(report, topic, topic.compacted, limits)
    for ledger in topic.ledgers:
        found = _read(ledger, limits, False)
        _count(report, ledger, found)
        _check_counts(found, ledger)
        for problem in found.problems:
            _note(report, problem)
        seen.join(found)
    if topic.ledgers:
        first, last = topic.ledgers[0], topic.ledgers[-1]
        report.log_start_offset = Position(first.id, 0).offset
        report.end_offset = Position(last.id, last.entries).offset
    if report.status is VerifyStatus.VERIFIED:
        open_ = seen.transactions - seen.committed - seen.aborted
        report.transactions = Transactions(
            open=len(open_),
            aborted=seen.aborted_markers,
            committed=seen.committed_markers,
            aborted_records=sum(
                n for number, n in seen.records_of.items() if number in seen.aborted
            ),
        )
    if seen.whole:
        report.advice.append(
            f"{seen.whole} batches cannot be read: compaction keeps them whole, whatever is in them"
        )
    for stray in topic.strays:
        report.advice.append(f"{stray.path}: a compacted ledger that no manifest names")


def _note(report: PartitionVerification, problem: Problem) -> None:
    report.problems.append(problem)
    if problem.kind is ProblemKind.DAMAGED:
        report.worsen(VerifyStatus.DAMAGED, str(problem))
    elif problem.kind is ProblemKind.UNSUPPORTED:
        report.worsen(VerifyStatus.UNSUPPORTED, str(problem))


def _damaged(
    message: str, path: str, position: int | None = None, remedy: str = _REMEDY
) -> Problem:
    return Problem(ProblemKind.DAMAGED, message, path, position, remedy)


def _count(report: PartitionVerification, ledger: Ledger, found: _Seen) -> None:
    report.segments += 1
    report.bytes += ledger.size_bytes
    report.batches += found.entries
    report.records += found.messages
    report.tombstones += found.tombstones
    report.keyless_records += found.keyless
    report.control_records += found.markers


# ---------------------------------------------------------------------- a ledger


@dataclass(slots=True)
class _Seen:
    """What one ledger holds, or several."""

    entries: int = 0
    bytes: int = 0  # of entries, without what the object adds
    messages: int = 0
    tombstones: int = 0
    keyless: int = 0
    markers: int = 0
    whole: int = 0  # batches that cannot be read
    committed_markers: int = 0
    aborted_markers: int = 0
    first_offset: int = -1
    next_offset: int = -1
    transactions: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    records_of: dict[int, int] = field(default_factory=dict)
    keys: list[UInt64Array] = field(default_factory=list)  # two words a key
    problems: list[Problem] = field(default_factory=list)

    def join(self, other: _Seen) -> None:
        """Take what several ledgers of a topic tell together."""
        self.whole += other.whole
        self.committed_markers += other.committed_markers
        self.aborted_markers += other.aborted_markers
        self.transactions |= other.transactions
        self.committed |= other.committed
        self.aborted |= other.aborted
        for number, records in other.records_of.items():
            self.records_of[number] = self.records_of.get(number, 0) + records


def _read(ledger: Ledger, limits: Limits, is_compacted: bool) -> _Seen:
    """Read a ledger whole, and its index's blocks."""
    seen = _Seen()
    try:
        _check_blocks(ledger)
        if ledger.size_bytes:
            _read_entries(ledger, limits, is_compacted, seen)
    except CorruptLog as error:
        seen.problems.append(
            _damaged(error.problem, error.path or ledger.path, error.at, error.remedy or _REMEDY)
        )
    except (LogError, OSError) as error:
        remedy = error.remedy if isinstance(error, LogError) else None
        seen.problems.append(
            Problem(ProblemKind.UNSUPPORTED, str(error), ledger.path, None, remedy)
        )
    return seen


def _read_entries(ledger: Ledger, limits: Limits, is_compacted: bool, seen: _Seen) -> None:
    form = PulsarFormat(limits.plain_bytes)
    secret = secret_from(secrets.token_bytes(8 * SECRET_WORDS))
    lowest = 0 if is_compacted else Position(ledger.id, 0).offset
    end = Position(ledger.id + 1, 0).offset
    piece = Piece(
        0,
        0,
        ledger.path,
        0,
        ledger.size_bytes,
        ledger.size_bytes,
        ledger.mtime_ns,
        lowest,
        end,
        True,
    )
    for chunk in Chunks(limits).of(form, piece):
        table = chunk.table
        base = table["base_offset"]
        if not is_compacted:
            expected = lowest + seen.entries + np.arange(len(table))
            if not np.array_equal(base, expected):
                n = int(np.argmax(base != expected))
                raise CorruptLog(
                    f"entry {Position.of(int(expected[n]))} is not where it should be",
                    chunk.shift + int(table["origin"][n]),
                    ledger.path,
                    _REMEDY,
                )
        seen.first_offset = int(base[0]) if seen.first_offset < 0 else seen.first_offset
        seen.next_offset = int(table["next_offset"][-1])
        seen.entries += len(table)
        seen.bytes += int(table["origin_size"].sum()) - ENTRY_HEAD_BYTES * len(table)
        _tell_transactions(form, table, seen)
        for run in form.opened(chunk.buffer, table):
            records = int(table["records"][run.first : run.last].sum())
            states, entries = (
                np.empty(records, dtype=np.uint8),
                np.empty((records, 2), dtype=np.uint64),
            )
            filled = form.walk(run, table, secret, 0, states, entries, 0)
            seen.messages += records
            seen.tombstones += int(np.count_nonzero(states & TOMBSTONE))
            seen.keyless += int(np.count_nonzero(states & KEYLESS))
            if is_compacted and sum(map(len, seen.keys)) <= _MOST_KEYS:
                lanes = entries[:filled].copy()
                lanes[:, 1] >>= np.uint64(32)
                seen.keys.append(lanes)
        kinds = form.entries["kind"][: len(table)]
        seen.whole += int(np.count_nonzero(kinds == kernels.WHOLE))


def _tell_transactions(form: PulsarFormat, table: np.ndarray, seen: _Seen) -> None:
    markers = form.entries["marker"][: len(table)]
    is_marker = markers >= 0
    seen.markers += int(np.count_nonzero(is_marker))
    of_transaction = table["flags"] & IS_TRANSACTIONAL != 0
    producers = table["producer_id"]
    for kind, known in ((_COMMITTED, seen.committed), (_ABORTED, seen.aborted)):
        those = producers[markers == kind].tolist()
        known.update(those)
        if kind == _COMMITTED:
            seen.committed_markers += len(those)
        else:
            seen.aborted_markers += len(those)
    data = of_transaction & ~is_marker
    for number, records in zip(
        producers[data].tolist(), table["records"][data].tolist(), strict=True
    ):
        seen.transactions.add(number)
        seen.records_of[number] = seen.records_of.get(number, 0) + records


def _check_blocks(ledger: Ledger) -> None:
    """Hold each block that the index names against the data object.

    Raises:
        CorruptLog: no block begins there, or one of other entries, or of another length.
    """
    index = ledger.index
    expected = 0
    head = np.empty(BLOCK_HEADER_BYTES, dtype=np.uint8)
    with SegmentReader(ledger.path, ledger.size_bytes, ledger.mtime_ns) as reader:
        for block in index.blocks:
            if block.offset != expected:
                _refuse(
                    ledger, f"the index names byte {block.offset}, and a block begins at {expected}"
                )
            if block.offset + BLOCK_HEADER_BYTES > ledger.size_bytes:
                _refuse(ledger, f"the index names byte {block.offset}, beyond the object's end")
            reader.read_into(head, block.offset)
            try:
                found = parse_block_header(head.tobytes(), 0, _LARGEST_BLOCK)
            except LogError as error:
                raise error.located(ledger.path, block.offset) from error
            if found.first_entry != block.first_entry:
                _refuse(
                    ledger,
                    f"the block at {block.offset} begins with entry {found.first_entry}, by the index with "
                    f"{block.first_entry}",
                )
            expected = block.offset + found.block_bytes
    if expected != ledger.size_bytes:
        _refuse(ledger, f"its blocks end at byte {expected}, the object at {ledger.size_bytes}")


def _refuse(ledger: Ledger, message: str) -> None:
    raise CorruptLog(message, path=ledger.path + INDEX_SUFFIX, remedy=_REMEDY)


def _check_counts(found: _Seen, ledger: Ledger) -> None:
    if found.problems:
        return
    if found.entries != ledger.entries:
        found.problems.append(
            _damaged(
                f"{found.entries} entries, by the ledger's metadata {ledger.entries}", ledger.path
            )
        )
    elif found.bytes != ledger.metadata.length:
        found.problems.append(
            _damaged(
                f"{found.bytes} bytes of entries, by the ledger's metadata {ledger.metadata.length}",
                ledger.path,
            )
        )


# ---------------------------------------------------------------------- the compacted one


def _verify_compacted(
    report: PartitionVerification, topic: Topic, ledger: Ledger, limits: Limits
) -> None:
    manifest = topic.manifest
    assert manifest is not None
    found = _read(ledger, limits, True)
    _count(report, ledger, found)
    _check_counts(found, ledger)
    wrong = found.problems
    if not wrong:
        told: list[tuple[str, object, object]] = [
            ("entries", found.entries, manifest.entries),
            ("bytes", found.bytes, manifest.size_bytes),
            ("topic", ledger.metadata.compacted_topic, manifest.topic),
        ]
        if (
            ledger.is_ours
        ):  # of a broker's, who wrote the manifest may have counted what an encrypted batch claims
            told.append(("messages", found.messages, manifest.messages))
        for what, there, said in told:
            if there != said:
                wrong.append(
                    _damaged(f"{what}: {there}, by the manifest {said}", ledger.path, None, _AGAIN)
                )
        if found.entries:
            first, last = Position.of(found.first_offset), Position.of(found.next_offset - 1)
            if last > manifest.horizon:
                wrong.append(
                    _damaged(
                        f"entry {last} lies beyond the horizon, {manifest.horizon}",
                        ledger.path,
                        None,
                        _AGAIN,
                    )
                )
            if (first, last) != (manifest.from_, manifest.to):
                wrong.append(
                    _damaged(
                        f"from {first} to {last}, by the manifest from {manifest.from_} to {manifest.to}",
                        ledger.path,
                        None,
                        _AGAIN,
                    )
                )
        if found.tombstones:  # by a broker's rules the length tells, which some clients leave out
            report.advice.append(f"{ledger.path}: {found.tombstones} deletes are in it")
        for broken in _promises(found, manifest.retain_null_key):
            if ledger.is_ours:
                wrong.append(
                    _damaged(f"{broken}: no compaction leaves that", ledger.path, None, _AGAIN)
                )
            else:  # a broker's: of an older release, or with settings that nobody wrote down
                report.advice.append(f"{ledger.path}: {broken}, and Lastwrite would not leave that")
        if sum(map(len, found.keys)) > _MOST_KEYS:
            report.advice.append(f"{ledger.path}: too many keys to see whether one comes twice")
    for problem in wrong:
        _note(report, problem)


def _promises(found: _Seen, retain_null_key: bool) -> Sequence[str]:
    """What compaction promises of the messages themselves, and does not hold."""
    broken = []
    if found.keyless and not retain_null_key:
        broken.append(f"{found.keyless} messages without a key are in it")
    lanes = np.concatenate(found.keys) if found.keys else np.empty((0, 2), dtype=np.uint64)
    if len(lanes) <= _MOST_KEYS:
        twice = len(lanes) - len(np.unique(lanes, axis=0))
        if twice:
            broken.append(f"{twice} messages have the key of another one")
    return broken
