"""``verify`` of Pulsar's topic folders: checks every byte.

For each ledger, raw and compacted, it checks every entry by its checksum and every batch message by
message. Entry ids must have no gap, and the counts of entries and bytes must equal the ledger's
metadata. Every block must begin at its position in the index, with the entry that the index states.
The compacted ledger is also compared with its manifest and may have no id beyond the horizon. If
Lastwrite made it, no key may occur twice, and messages without a key may occur only if the manifest
keeps them.

Memory: one chunk, and sixteen bytes for each message of the compacted ledger, up to a limit.

Source: Pulsar 4.2.4; docs/formats/pulsar.md; docs/formats/pulsar-compaction.md, "Batches".
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.engine.chunks import BatchWindows
from lastwrite.errors import CorruptLog, LogError, located
from lastwrite.model.columns import IS_TRANSACTIONAL, KEYLESS, TOMBSTONE, UInt64Array
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.model.work import Limits, ScanRange
from lastwrite.pulsar.format import kernels
from lastwrite.pulsar.format.chunk import PulsarFormat
from lastwrite.pulsar.format.names import INDEX_SUFFIX
from lastwrite.pulsar.format.offload import BLOCK_HEADER_BYTES, ENTRY_HEAD_BYTES, parse_block_header
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.format.survey import ABORT_MARKER, COMMIT_MARKER
from lastwrite.pulsar.look.comparison import compare
from lastwrite.pulsar.store import lock
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.topic import Ledger, TopicFolder, list_topic, partition_of
from lastwrite.pulsar.system import PULSAR
from lastwrite.reports.verification import (
    Comparison,
    PartitionVerification,
    Transactions,
    VerifyStatus,
    Violation,
)
from lastwrite.verification.proof import Pair, Proof, ProofTools, Question

_AGAIN = (
    "restore the compacted ledger and its manifest from a backup. Only if the folder has "
    "every raw ledger of the topic since its first, move the manifest to another folder and "
    "compact the topic again"
)
_MOST_KEYS = 1 << 24  # maximum number of keys that are checked for duplicates
_MESSAGE_BYTES = 160  # bytes of memory per message in a comparison
_LARGEST_BLOCK = 1 << 40


class PulsarProof(Proof):
    """Checks every byte of topic folders in this process. ``comparison`` compares two states."""

    system = PULSAR
    noun = "topic"
    needs_workers = False
    governs_keyless = "the manifest"

    def check_config(self, config: Mapping[str, object]) -> None:
        """Does nothing, because a verification uses the settings in the manifest."""

    def reject_if_locked(self, folder: str) -> None:
        lock.reject_if_locked(folder)

    def check(
        self, pairs: Sequence[Pair], question: Question, means: ProofTools
    ) -> Iterator[PartitionVerification]:
        for after, was in pairs:
            name = partition_of(name_of(after or was or ""))
            report = PartitionVerification(topic=name.topic, partition=name.partition)
            try:
                _verify(report, after, was, means.limits, means.worker_bytes)
            except (LogError, OSError) as error:
                is_damage = isinstance(error, LogError) and error.exit_status == 3
                status = VerifyStatus.DAMAGED if is_damage else VerifyStatus.FAILED
                report.raise_status(status, str(error))
            yield report


def _verify(
    report: PartitionVerification,
    after: str | None,
    before: str | None,
    limits: Limits,
    memory_bytes: int,
) -> None:
    if after is None:
        words = "the topic is missing, although it existed before"
        broken = Violation("partition", words, None, before)
        report.comparison = Comparison(folder=before or "", violation_count=1, violations=[broken])
        report.raise_status(VerifyStatus.BROKEN, str(broken))
        return
    topic = list_topic(after)
    _verify_structure(report, topic, limits)
    if before is not None and report.status is VerifyStatus.VERIFIED:
        most = memory_bytes // _MESSAGE_BYTES
        report.comparison, like_broker = compare(list_topic(before), topic, most)
        if like_broker:
            report.advice.append(
                f"{after}: the topic was compacted by the broker's rules, not by those of Lastwrite"
            )
        if report.comparison.violations:
            report.raise_status(VerifyStatus.BROKEN, str(report.comparison.violations[0]))


def _verify_structure(report: PartitionVerification, topic: TopicFolder, limits: Limits) -> None:
    for problem in topic.problems:
        _note(report, problem)
    seen = _LedgerFacts()
    if topic.compacted is not None:
        _verify_compacted(report, topic, topic.compacted, limits)
    for ledger in topic.ledgers:
        found = _read(report, ledger, limits, False, _new_secret())
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
            aborted_records=sum(seen.records_of.get(number, 0) for number in seen.aborted),
        )
    if seen.whole:
        report.advice.append(
            f"{seen.whole} batches cannot be read, so compaction keeps all their messages"
        )
    for stray in topic.strays:
        report.advice.append(f"{stray.path}: no manifest names this compacted ledger")


def _note(report: PartitionVerification, problem: Problem) -> None:
    report.problems.append(problem)
    if problem.kind is ProblemKind.DAMAGED:
        report.raise_status(VerifyStatus.DAMAGED, str(problem))
    elif problem.kind is ProblemKind.UNSUPPORTED:
        report.raise_status(VerifyStatus.UNSUPPORTED, str(problem))


# ---------------------------------------------------------------------- a ledger


@dataclass(slots=True)
class _LedgerFacts:
    """Counts and keys of one or more ledgers."""

    entries: int = 0
    bytes: int = 0  # bytes of entries, without the object's framing
    messages: int = 0
    tombstones: int = 0
    keyless: int = 0
    markers: int = 0
    whole: int = 0  # unreadable batches
    committed_markers: int = 0
    aborted_markers: int = 0
    first_offset: int = -1
    next_offset: int = -1
    transactions: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    aborted: set[int] = field(default_factory=set)
    records_of: dict[int, int] = field(default_factory=dict)
    keys: list[UInt64Array] = field(default_factory=list)  # two words per key
    problems: list[Problem] = field(default_factory=list)
    path: str = ""

    def join_part(self, other: _LedgerFacts) -> None:
        """Add the next part of a compacted ledger."""
        self.problems += other.problems
        if not other.entries:
            return
        if self.entries and other.first_offset < self.next_offset:
            words = (
                f"a part begins with entry {Position.of(other.first_offset)}, and the part before "
                "ends with "
            )
            words += str(Position.of(self.next_offset - 1))
            self.problems.append(Problem(ProblemKind.DAMAGED, words, other.path, None, _AGAIN))
        self.first_offset = self.first_offset if self.entries else other.first_offset
        self.next_offset = other.next_offset
        self.entries += other.entries
        self.bytes += other.bytes
        self.messages += other.messages
        self.tombstones += other.tombstones
        self.keyless += other.keyless
        self.keys += other.keys

    def join(self, other: _LedgerFacts) -> None:
        """Add the counts and transactions of another ledger, for the checks of the whole topic."""
        self.whole += other.whole
        self.committed_markers += other.committed_markers
        self.aborted_markers += other.aborted_markers
        self.transactions |= other.transactions
        self.committed |= other.committed
        self.aborted |= other.aborted
        for number, records in other.records_of.items():
            self.records_of[number] = self.records_of.get(number, 0) + records


def _read(
    report: PartitionVerification,
    ledger: Ledger,
    limits: Limits,
    is_compacted: bool,
    secret: UInt64Array,
) -> _LedgerFacts:
    """Read a ledger and the blocks of its index, count it, and compare it with its metadata."""
    seen = _LedgerFacts(path=ledger.path)
    try:
        _check_blocks(ledger)
        if ledger.size_bytes:
            _read_entries(ledger, limits, is_compacted, seen, secret)
        for what, there, said in (
            ("entries", seen.entries, ledger.stored_entries),
            ("bytes of entries", seen.bytes, ledger.metadata.length),
        ):
            if there != said:
                raise CorruptLog(f"the ledger has {there} {what}, but its metadata state {said}")
    except CorruptLog as error:
        place, remedy = error.path or ledger.path, error.remedy or RESTORE
        damage = Problem(ProblemKind.DAMAGED, error.problem, place, error.at, remedy)
        seen.problems.append(damage)
    except (LogError, OSError) as error:
        cause = error.remedy if isinstance(error, LogError) else None
        unread = Problem(ProblemKind.UNSUPPORTED, str(error), ledger.path, None, cause)
        seen.problems.append(unread)
    report.segments += 1
    report.bytes += ledger.size_bytes
    report.batches += seen.entries
    report.records += seen.messages
    report.tombstones += seen.tombstones
    report.keyless_records += seen.keyless
    report.control_records += seen.markers
    return seen


def _read_entries(
    ledger: Ledger, limits: Limits, is_compacted: bool, facts: _LedgerFacts, secret: UInt64Array
) -> None:
    for first, stop, begin, end in ledger.runs():
        offset = None if is_compacted else Position(ledger.id, first).offset
        _read_run(ledger, (begin, end), offset, limits, facts, secret)
        if ledger.missing and facts.next_offset != Position(ledger.id, stop).offset:
            words = f"entry {ledger.id}:{stop - 1} is missing or in the wrong place"
            raise CorruptLog(words, end, ledger.path, RESTORE)


def _read_run(
    ledger: Ledger,
    place: tuple[int, int],
    first: int | None,
    limits: Limits,
    facts: _LedgerFacts,
    secret: UInt64Array,
) -> None:
    """Read a run of adjacent entries, and add the counts to the ledger's results, ``facts``.

    ``first`` is the offset of the first entry, or None in a compacted ledger.
    """
    form = PulsarFormat(limits.plain_bytes)
    is_compacted, lowest = first is None, first or 0
    end = Position(ledger.id + 1, 0).offset
    start, stop = place
    piece = ScanRange.of(
        ledger.segment(lowest),
        number=0,
        place=0,
        start=start,
        end=stop,
        end_offset=end,
        keyed=True,
    )
    following = lowest
    for chunk in BatchWindows(limits).of(form, piece):
        table = chunk.table
        base = table["base_offset"]
        if not is_compacted:
            expected = following + np.arange(len(table))
            if not np.array_equal(base, expected):
                n = int(np.argmax(base != expected))
                words = f"entry {Position.of(int(expected[n]))} is missing or in the wrong place"
                at = chunk.shift + int(table["origin"][n])
                raise CorruptLog(words, at, ledger.path, RESTORE)
            following = int(table["next_offset"][-1])
        facts.first_offset = int(base[0]) if facts.first_offset < 0 else facts.first_offset
        facts.next_offset = int(table["next_offset"][-1])
        facts.entries += len(table)
        facts.bytes += chunk.origin_bytes - ENTRY_HEAD_BYTES * len(table)
        _count_transactions(form, table, facts)
        for run in form.opened(chunk.buffer, table):
            records = int(table["records"][run.first : run.last].sum())
            states = np.empty(records, dtype=np.uint8)
            entries = np.empty((records, 2), dtype=np.uint64)
            filled = form.walk(run, table, secret, 0, states, entries, 0)
            facts.messages += records
            facts.tombstones += int(np.count_nonzero(states & TOMBSTONE))
            facts.keyless += int(np.count_nonzero(states & KEYLESS))
            if is_compacted and sum(map(len, facts.keys)) <= _MOST_KEYS:
                lanes = entries[:filled].copy()
                lanes[:, 1] >>= np.uint64(32)
                facts.keys.append(lanes)
        kinds = form.entries["kind"][: len(table)]
        facts.whole += int(np.count_nonzero(kinds == kernels.WHOLE))


def _count_transactions(form: PulsarFormat, table: np.ndarray, facts: _LedgerFacts) -> None:
    markers = form.entries["marker"][: len(table)]
    is_marker = markers >= 0
    facts.markers += int(np.count_nonzero(is_marker))
    of_transaction = table["flags"] & IS_TRANSACTIONAL != 0
    producers = table["producer_id"]
    committed, aborted = (producers[markers == kind] for kind in (COMMIT_MARKER, ABORT_MARKER))
    facts.committed.update(committed.tolist())
    facts.aborted.update(aborted.tolist())
    facts.committed_markers += len(committed)
    facts.aborted_markers += len(aborted)
    data = of_transaction & ~is_marker
    for number, records in zip(
        producers[data].tolist(), table["records"][data].tolist(), strict=True
    ):
        facts.transactions.add(number)
        facts.records_of[number] = facts.records_of.get(number, 0) + records


def _check_blocks(ledger: Ledger) -> None:
    """Compare each block of the index with the data object.

    Raises:
        CorruptLog: no block begins at a position of the index, or its entries or length differ.
    """
    index = ledger.index
    expected = 0
    head = np.empty(BLOCK_HEADER_BYTES, dtype=np.uint8)
    with ledger.reader() as reader:
        for block in index.blocks:
            if block.offset != expected:
                words = (
                    f"the index places a block at byte {block.offset}, but the block begins at "
                    f"byte {expected}"
                )
                _reject_index(ledger, words)
            if block.offset + BLOCK_HEADER_BYTES > ledger.size_bytes:
                _reject_index(
                    ledger,
                    f"the index places a block at byte {block.offset}, beyond the object's end",
                )
            reader.read_into(head, block.offset)
            with located(ledger.path, block.offset):
                found = parse_block_header(head.tobytes(), 0, _LARGEST_BLOCK)
            if found.first_entry != block.first_entry:
                words = f"the block at byte {block.offset} begins with entry {found.first_entry}, "
                _reject_index(ledger, words + f"but the index states entry {block.first_entry}")
            expected = block.offset + found.block_bytes
    if expected != ledger.size_bytes:
        _reject_index(
            ledger,
            f"the blocks end at byte {expected}, but the object ends at byte {ledger.size_bytes}",
        )


def _reject_index(ledger: Ledger, message: str) -> None:
    raise CorruptLog(message, path=ledger.path + INDEX_SUFFIX, remedy=RESTORE)


# ---------------------------------------------------------------------- the compacted ledger


def _verify_compacted(
    report: PartitionVerification, topic: TopicFolder, parts: Sequence[Ledger], limits: Limits
) -> None:
    manifest = topic.manifest
    assert manifest is not None
    found, secret = _LedgerFacts(), _new_secret()
    for part in parts:
        found.join_part(_read(report, part, limits, True, secret))
    wrong, is_ours = found.problems, all(part.is_ours for part in parts)
    place = parts[0].path if parts else topic.folder

    def damaged(message: str) -> None:
        wrong.append(Problem(ProblemKind.DAMAGED, message, place, None, _AGAIN))

    if not wrong:
        told: list[tuple[str, object, object]] = [
            ("entries", found.entries, manifest.entries),
            ("bytes", found.bytes, manifest.size_bytes),
            *(("topic", part.metadata.compacted_topic, manifest.topic) for part in parts),
        ]
        # The number of messages is only compared for Lastwrite's ledgers. In a broker's ledger, an
        # encrypted batch may count as several messages.
        if is_ours:
            told.append(("messages", found.messages, manifest.messages))
        for what, there, said in told:
            if there != said:
                damaged(
                    f"the {what} of the compacted ledger: {there}, but the manifest states {said}"
                )
        if found.entries:
            first, last = Position.of(found.first_offset), Position.of(found.next_offset - 1)
            if last > manifest.horizon:
                damaged(f"entry {last} is beyond the compaction horizon {manifest.horizon}")
            if (first, last) != (manifest.from_, manifest.to):
                by = f"but the manifest states {manifest.from_} to {manifest.to}"
                damaged(f"the compacted ledger has the entries {first} to {last}, {by}")
        # Tombstones are no damage here: a broker detects them by the stated length, which some
        # clients omit.
        if found.tombstones:
            report.advice.append(
                f"{place}: the compacted ledger contains {found.tombstones} tombstones"
            )
        for broken in _promises(found, manifest.retain_null_key):
            if is_ours:
                damaged(f"{broken}, which compaction always removes")
            # This is no damage: a broker wrote the ledger, perhaps with other settings or in an
            # older release.
            else:
                report.advice.append(f"{place}: {broken}, which Lastwrite would remove")
        if sum(map(len, found.keys)) > _MOST_KEYS:
            report.advice.append(
                f"{place}: the compacted ledger has too many keys to check for duplicates"
            )
    for problem in wrong:
        _note(report, problem)


def _new_secret() -> UInt64Array:
    return secret_from(secrets.token_bytes(8 * SECRET_WORDS))


def _promises(found: _LedgerFacts, retain_null_key: bool) -> Sequence[str]:
    """A text for each rule of compaction that the compacted ledger violates."""
    broken = []
    if found.keyless and not retain_null_key:
        broken.append(f"the compacted ledger contains {found.keyless} messages without a key")
    lanes = np.concatenate(found.keys) if found.keys else np.empty((0, 2), dtype=np.uint64)
    if len(lanes) <= _MOST_KEYS:
        twice = len(lanes) - len(np.unique(lanes, axis=0))
        if twice:
            broken.append(f"the compacted ledger contains {twice} superseded messages")
    return broken


PROOF = PulsarProof()
