"""Copy topics of Pulsar into an archive, and compact them there.

``fetch`` reads topic folders, or topics of another archive. ``fetch`` copies each raw ledger that
is not in the archive or has fewer entries there. It copies the compacted ledger if its horizon is
beyond the archive's horizon. Every entry is verified by its checksum and copied byte for byte.

A topic that does not continue the archived topic is not copied. Its ledgers then do not follow the
archive's last ledger, or a ledger has other entries than the archive's ledger of that number.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec import structs

from lastwrite.archive.manifest import Manifest as ArchiveManifest
from lastwrite.archive.partition_store import (
    PartitionStore,
    WriteTransaction,
    partition_store_at,
    read_versioned_manifest,
)
from lastwrite.archive.rounds import (
    ArchiveRounds,
    Outcome,
    conflict,
    map_concurrently,
    reject_damaged,
)
from lastwrite.engine.chunks import BatchWindows
from lastwrite.errors import CorruptLog, LogError, NotContinued
from lastwrite.model.attempts import Attempts
from lastwrite.model.log import PartitionLog, Problem, ProblemKind
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.model.work import Limits, ScanRange, SegmentOutput
from lastwrite.pulsar.fetched import FetchedLedger, FetchedTopic, FetchMethod, FetchReport
from lastwrite.pulsar.format.chunk import PulsarFormat
from lastwrite.pulsar.format.names import (
    FETCHED,
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    SURVEY_SUFFIX,
    TopicName,
)
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.rules.backlog import RawSegment
from lastwrite.pulsar.store import archived, lock, topic_log
from lastwrite.pulsar.store.archived import ArchivedTopic, StoredCompacted, StoredLedger
from lastwrite.pulsar.store.backlog import raw_ledgers
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.survey import survey_of
from lastwrite.pulsar.store.topic import Ledger, TopicFolder, list_topic, topic_of
from lastwrite.reports.fetching import HoldReason
from lastwrite.storage.objects.promises import reject_if_broken
from lastwrite.storage.problems import problem_of
from lastwrite.storage.reading import check_segments, read_small
from lastwrite.storage.throttle import Spend

Advance = Callable[[int], None]  # a function that is called with the number of written bytes

_AT_ONCE = 4  # number of threads; only kernels and requests run in parallel
_COPY_BYTES = 4 << 20
_END = (1 << 63) - 1
_ELSEWHERE = "the archive was left unchanged; fetch into another archive with another --to"
_GAP = (
    "the archive was left unchanged. If the topic was deleted and created again, fetch into "
    "another archive with another --to. Otherwise --accept-gap continues, and records the gap "
    "in the manifest"
)


# ---------------------------------------------------------------------- fetch


def fetch(
    folders: Sequence[str],
    to: str,
    progress: Progress | None = None,
    accepts_gap: bool = False,
) -> FetchReport:
    """Copy the topics in ``folders`` into the archive ``to``.

    If a topic is damaged, or does not continue the archived topic, the archive's copy stays
    unchanged. The other topics are copied. ``accepts_gap`` copies a topic that begins after the
    archive's end, and notes the gap.

    Raises:
        LogHeld: another run works on one of the topics.
        InvalidConfig: the object store lacks a guarantee that archives need.
    """
    reject_if_broken(to)
    for folder in folders:
        lock.reject_if_locked(folder)
    progress = progress or NoProgress()
    progress.stage("fetch", sum(map(_bytes_of, folders)))
    turn = Lock()

    def advance(done_bytes: int) -> None:
        with turn:
            progress.advance(done_bytes)

    topics = tuple(_fetched(folder, to, advance, accepts_gap) for folder in folders)
    return FetchReport(archive=to, topics=topics)


def _bytes_of(folder: str) -> int:
    """The maximum number of bytes that a copy of the topic transfers. 0 if listing it fails."""
    with contextlib.suppress(LogError):  # copying the topic reports this error
        return sum(each.size_bytes for each in list_topic(folder).all_ledgers)
    return 0


def _fetched(folder: str, to: str, advance: Advance, accepts_gap: bool) -> FetchedTopic:
    """Copy one topic, and repeat the copy if the topic or the archive changed meanwhile.

    ``Attempts`` limits the repetitions.
    """
    attempts = Attempts()
    try:
        topic = attempts.run(
            lambda: _ArchiveFetch(list_topic(folder), to, advance, accepts_gap).topic()
        )
    except (LogError, OSError) as error:
        name = name_of(folder)
        topic = FetchedTopic(
            topic=name.full,
            folder=archived.address_in(to, name),
            ledgers=(),
            problems=(refusal(error, folder),),
        )
    return structs.replace(topic, attempts=attempts.count)


def refusal(error: LogError | OSError, folder: str) -> Problem:
    if isinstance(error, CorruptLog):
        return problem_of(error, folder)
    remedy = error.remedy if isinstance(error, LogError) else None
    words = error.problem if isinstance(error, LogError) else str(error)
    return Problem(ProblemKind.UNSUPPORTED, words, folder, None, remedy)


class Incoming:
    """An archived topic, before ledgers of a source are added."""

    def __init__(self, name: TopicName, to: str) -> None:
        self.name = name
        self.folder = archived.address_in(to, name)
        self.store = partition_store_at(self.folder)
        self.current = self.store.read()
        self.before = ArchivedTopic()
        if self.current is not None:
            self.before = archived.contents_of(self.current.manifest, self.folder)
        # the gap before the new entries, if the user accepted one; None if there is no gap
        self.gap: tuple[str, str] | None = None
        self._here = {each.ledger: each for each in self.before.ledgers}

    def lacks(self, ledger: int, entries: int) -> bool:
        """Whether the archive has fewer than ``entries`` entries of the raw ledger."""
        there = self._here.get(ledger)
        return there is None or there.stored < entries

    def is_behind(self, horizon: Position | None) -> bool:
        """Whether the archive's horizon is below ``horizon``, or missing."""
        before = self.before.compacted
        return horizon is not None and (before is None or Position.parse(before.horizon) < horizon)

    def reject_other_topic(
        self,
        listed: Collection[int],
        sizes: Mapping[int, tuple[int, int | None]],
        source: str,
        *,
        has_list: bool,
        accepts_gap: bool = False,
    ) -> None:
        """Check that the ledgers of a source follow the archive's ledgers.

        ``listed`` has the ids of all ledgers of the topic, from the topic's own list if
        ``has_list``. ``sizes`` has the number of entries and, if known, their bytes by ledger. With
        ``accepts_gap``, lost ledgers are no error, and are recorded in ``before`` as a gap.

        Raises:
            NotContinued: the ledgers are another topic's, or ledgers in between are lost.
        """
        why = self._find_difference(listed, sizes)
        if accepts_gap and why is not None and why[0] is HoldReason.GAP:
            why, self.gap = None, self._gap_before(listed)
            self.before = structs.replace(self.before, gaps=(*self.before.gaps, self.gap))
        if has_list:
            why = why or self._find_recreation(listed, sizes) or self._untied(listed)
        if why is not None:
            error = NotContinued(
                f"the archive {self.folder} cannot be continued: {why[1]}",
                path=source,
                remedy=_GAP if why[0] is HoldReason.GAP else _ELSEWHERE,
            )
            error.held = why[0]
            raise error

    def _find_difference(
        self, listed: Collection[int], sizes: Mapping[int, tuple[int, int | None]]
    ) -> tuple[HoldReason, str] | None:
        for ledger, (entries, length) in sizes.items():
            there = self._here.get(ledger)
            if there is None or there.stored != entries or length is None:
                continue
            if there.length != length:
                return (
                    HoldReason.ANOTHER,
                    f"ledger {ledger} has {length} bytes of entries in the source, but "
                    f"{there.length} in the archive: the two are from different clusters",
                )
        last = max((each.ledger for each in self.before.ledgers if each.entries), default=None)
        if last is None or last in listed or max(listed, default=-1) < last:
            return None
        return (
            HoldReason.GAP,
            f"the archive ends with ledger {last}, which the topic no longer has. Entries of "
            "this ledger or of later ones may be lost, or the topic was deleted and created "
            "again",
        )

    def _gap_before(self, listed: Collection[int]) -> tuple[str, str]:
        """The range of lost entries: from the archive's end to the next existing ledger."""
        last = max(
            (each for each in self.before.ledgers if each.entries), key=lambda each: each.ledger
        )
        following = min(each for each in listed if each > last.ledger)
        return str(Position(last.ledger, last.entries)), str(Position(following, 0))

    def gap_note(self, after: ArchivedTopic) -> tuple[Problem, ...]:
        """The note about the accepted gap. Empty if there is none."""
        if self.gap is None:
            return ()
        return (archived.gaps_of(after, self.folder)[after.gaps.index(self.gap)],)

    def _find_recreation(
        self, listed: Collection[int], sizes: Mapping[int, tuple[int, int | None]]
    ) -> tuple[HoldReason, str] | None:
        """The reason why the source is another topic. None if it may be the same topic.

        The source is another topic if its list ends before the archive's last ledger, although it
        has entries that the archive lacks.
        """
        last, end = max(self._here, default=-1), max(listed, default=-1)
        lacking = [
            each for each, (entries, _) in sizes.items() if entries and self.lacks(each, entries)
        ]
        if end >= last or not lacking:
            return None
        return (
            HoldReason.ANOTHER,
            f"the topic's ledger list ends with ledger {end}, before the archive's ledger "
            f"{last}, but contains ledger {min(lacking)}, which the archive lacks. The list "
            "is from another cluster, or is out of date",
        )

    def _untied(self, listed: Collection[int]) -> tuple[HoldReason, str] | None:
        """The reason why an archive without a ledger list does not match the topic's list.

        None if it matches, or if the archive has a ledger list.
        """
        if self.before.metadata is not None:
            return None
        others = sorted(set(self._here) - set(listed))
        if not others:
            return None
        return (
            HoldReason.ANOTHER,
            f"the archive was fetched without a ledger list, and has ledger {others[0]}, "
            "which the topic's ledger list lacks. Retention deleted the ledger, or the topic "
            "was deleted and created again",
        )

    def commit(
        self,
        transaction: WriteTransaction,
        after: ArchivedTopic,
        raw: Sequence[StoredLedger],
        compacted: StoredCompacted | None,
    ) -> ArchivedTopic:
        """Commit ``after``, with new raw ledgers and, unless None, a new compacted ledger.

        Raises:
            CommitConflict: another run has committed meanwhile. The objects of this run are
                removed.
        """
        found = {each.ledger: each for each in (*after.ledgers, *raw)}
        after = structs.replace(
            after,
            ledgers=tuple(found[number] for number in sorted(found)),
            compacted=compacted or after.compacted,
        )
        seen = _new_manifest(self.name) if self.current is None else self.current.manifest
        self.store.commit(transaction, successor(seen, after))
        return after


class _ArchiveFetch:
    """Copies one topic from a folder into the archive."""

    def __init__(self, topic: TopicFolder, to: str, advance: Advance, accepts_gap: bool) -> None:
        self._topic = topic
        self._accepts_gap = accepts_gap
        self._into = Incoming(topic.name, to)
        self._advance = advance

    def topic(self) -> FetchedTopic:
        """Copy the topic, and report what was copied."""
        topic, into = self._topic, self._into
        reject_gaps(topic)
        listed = {each.id for each in topic.ledgers}
        if topic.info is not None:
            listed |= {each.ledger for each in topic.info.ledgers}
        sizes = {each.id: (each.stored_entries, each.metadata.length) for each in topic.ledgers}
        has_list = topic.info is not None
        stored = into.before
        into.reject_other_topic(
            listed, sizes, topic.folder, has_list=has_list, accepts_gap=self._accepts_gap
        )
        new = [each for each in topic.ledgers if into.lacks(each.id, each.stored_entries)]
        is_further = into.is_behind(topic.horizon)
        parts = list(topic.compacted or ()) if is_further else []
        after = _with_sides(into.before, topic.folder, new, is_further)
        if new or is_further or after != stored or into.current is None:
            after = self._with_fetched(after, new, parts, is_further)
        how = {ledger.id: FetchMethod.COPIED for ledger in (*new, *parts)}
        return FetchedTopic(
            topic=topic.name.full,
            folder=into.folder,
            horizon=None if after.compacted is None else after.compacted.horizon,
            ledgers=tuple(self._fetched_ledgers(after, how)),
            problems=(*topic.problems, *into.gap_note(after)),
        )

    def _with_fetched(
        self,
        after: ArchivedTopic,
        new: Sequence[Ledger],
        parts: Sequence[Ledger],
        is_further: bool,
    ) -> ArchivedTopic:
        into, manifest = self._into, self._topic.manifest
        transaction = into.store.begin(into.current)
        with into.store.abort_on_error(transaction):
            made = LedgerCopy(into.store, transaction, self._advance).all([*new, *parts])
            raw, compacted = made[: len(new)], None
            if is_further and manifest is not None:
                compacted = StoredCompacted.of(manifest, tuple(made[len(new) :]))
        return into.commit(transaction, after, raw, compacted)

    def _fetched_ledgers(
        self, after: ArchivedTopic, method: dict[int, FetchMethod]
    ) -> Iterator[FetchedLedger]:
        """The topic's ledgers in the archive, with the sources of the copied ledgers."""
        sources = {each.id: each for each in self._topic.all_ledgers}
        for stored in (*after.ledgers, *after.parts):
            source = sources.get(stored.ledger)
            came = method.get(stored.ledger, FetchMethod.PRESENT)
            is_open = source is not None and not source.metadata.is_closed
            yield FetchedLedger(
                ledger=stored.ledger,
                how=came,
                entries=stored.stored,
                size_bytes=stored.bytes,
                path=stored.path(self._into.folder),
                source=source.path if source is not None and came is FetchMethod.COPIED else "",
                is_open=is_open,
                is_compacted=stored in after.parts,
                missing=dict(self._topic.missing).get(stored.ledger, ()),
            )


def reject_gaps(topic: TopicFolder) -> None:
    """Check that no file of the topic is damaged, missing or unsupported.

    Raises:
        CorruptLog: a file or entry of the topic is damaged or missing.
        LogError: a file of the topic is not supported.
    """
    damage = next((problem for problem in topic.problems if not problem.is_note), None)
    if damage is not None:
        kind = CorruptLog if damage.kind is ProblemKind.DAMAGED else LogError
        words = f"this object is damaged and was not fetched: {damage.message}"
        raise kind(words, damage.position, damage.path, damage.remedy)


class LedgerCopy:
    """Copies ledgers to the objects of one write transaction."""

    def __init__(
        self, place: PartitionStore, transaction: WriteTransaction, advance: Advance
    ) -> None:
        self._store, self._transaction, self._advance = place, transaction, advance

    def all(self, ledgers: Sequence[Ledger]) -> list[StoredLedger]:
        """Copy ledgers in parallel. The results are in the order of ``ledgers``."""
        found = []
        with ThreadPoolExecutor(_AT_ONCE, "ledgers") as pool:
            for made in pool.map(self.one, ledgers):
                self._store.renew(self._transaction)
                found.append(made)
        return found

    def one(self, ledger: Ledger) -> StoredLedger:
        """Copy one ledger, and verify every entry."""
        first, last = prove(ledger)
        # Each ledger gets a folder, because all parts of a compacted ledger have the same file
        # name.
        folder = f"{self._transaction.prefix}{uuid.uuid4().hex[:12]}"
        place, key = self._store, f"{folder}/{os.path.basename(ledger.path)}"
        mtime_ms = ledger.mtime_ns // 1_000_000
        writer = place.store.writer(place.key(key))
        try:
            with ledger.reader() as reader:
                buffer = np.empty(min(_COPY_BYTES, ledger.size_bytes), dtype=np.uint8)
                for at in range(0, ledger.size_bytes, _COPY_BYTES):
                    part = buffer[: min(_COPY_BYTES, ledger.size_bytes - at)]
                    reader.read_into(part, at)
                    writer.write(part)
                    self._advance(len(part))
                reader.check_unchanged()
            found = writer.close()
        except BaseException:
            writer.abandon()
            raise
        index = ledger.index.encode()
        place.put(key + INDEX_SUFFIX, index)
        survey = b""
        if not ledger.is_compacted:
            survey = survey_of(ledger).encode(ledger.size_bytes, mtime_ms * 1_000_000)
            place.put(key + SURVEY_SUFFIX, survey)
        return StoredLedger(
            ledger=ledger.id,
            key=key,
            bytes=ledger.size_bytes,
            etag=found.version.etag,
            index_bytes=len(index),
            survey_bytes=len(survey),
            entries=ledger.entries,
            stored=ledger.stored_entries,
            length=ledger.metadata.length,
            first=_id_of(first) if ledger.is_compacted else None,
            last=_id_of(last) if ledger.is_compacted else None,
            mtime_ms=mtime_ms,
            index=archived.small(index),
            survey=archived.small(survey),
        )


def prove(ledger: Ledger) -> tuple[int | None, int | None]:
    """Read every entry of a ledger and verify its checksum. Returns the first and the last offset.

    Raises:
        CorruptLog: an entry is damaged or out of order.
    """
    limits = Limits()
    lowest_of_all = highest = None
    for first, end, start, stop in ledger.runs():
        lowest = 0 if ledger.is_compacted else Position(ledger.id, first).offset
        piece = ScanRange.of(
            ledger.segment(lowest),
            number=0,
            place=0,
            start=start,
            end=stop,
            end_offset=_END if ledger.is_compacted else Position(ledger.id, end).offset,
            keyed=False,
        )
        for chunk in BatchWindows(limits).of(PulsarFormat(limits.plain_bytes), piece):
            base = chunk.table["base_offset"]
            lowest_of_all = int(base[0]) if lowest_of_all is None else lowest_of_all
            highest = int(base[-1])
    return lowest_of_all, highest


def _id_of(offset: int | None) -> str | None:
    return None if offset is None else str(Position.of(offset))


def _with_sides(
    before: ArchivedTopic, source: str, copied: Sequence[Ledger], is_further: bool
) -> ArchivedTopic:
    """Replace the topic's ledger list and ``fetched.json`` by those in the folder ``source``.

    If the folder lacks one of the two, the topic's own stays. ``copied`` are the raw ledgers that
    are copied from there. ``is_further`` means that the compacted ledger is copied too.
    """
    if archived.is_archived(source):
        there = archived.contents_of(read_versioned_manifest(source).manifest, source)
        metadata, is_json, known = there.metadata, there.metadata_is_json, there.known
        before = _with_gaps_of(before, there, copied, is_further)
    else:
        if is_further:
            before = structs.replace(before, compacted_gaps=())
        is_json = not os.path.exists(os.path.join(source, MANAGED_LEDGER))
        name = MANAGED_LEDGER_JSON if is_json else MANAGED_LEDGER
        metadata, known = _side(source, name), _side(source, FETCHED)
    if metadata is not None:
        before = structs.replace(before, metadata=metadata, metadata_is_json=is_json)
    return before if known is None else structs.replace(before, known=known)


def _with_gaps_of(
    before: ArchivedTopic, source: ArchivedTopic, copied: Sequence[Ledger], is_further: bool
) -> ArchivedTopic:
    """Add the source's gaps between the copied and the archived ledgers.

    Gaps whose entries are in the archive are not added.
    """
    ids = [each.id for each in copied if each.entries]
    present = [each for each in before.ledgers if each.entries]
    ids += [each.ledger for each in present] if ids else []
    found = [
        gap
        for gap in archived.gaps_outside(source.gaps, present)
        if ids and min(ids) < Position.parse(gap[1]).ledger <= max(ids)
    ]
    found += source.compacted_gaps if is_further else ()
    return structs.replace(
        before,
        gaps=tuple(sorted({*before.gaps, *found}, key=lambda gap: Position.parse(gap[0]))),
        compacted_gaps=source.compacted_gaps if is_further else before.compacted_gaps,
    )


def _side(folder: str, name: str) -> bytes | None:
    path = os.path.join(folder, name)
    return read_small(path) if os.path.exists(path) else None


def successor(manifest: ArchiveManifest, after: ArchivedTopic) -> ArchiveManifest:
    """The next manifest of a topic, with the content ``after``.

    ``PartitionStore.commit`` sets the fields that distinguish versions.
    """
    return structs.replace(
        manifest, log=msgspec.Raw(msgspec.json.encode(after)), objects=after.objects()
    )


def _new_manifest(name: TopicName) -> ArchiveManifest:
    return ArchiveManifest(system=archived.SYSTEM, topic=name.base, partition=name.partition)


# ---------------------------------------------------------------------- compaction


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCompacted:
    """The new compacted ledger of a topic. The commit assigns its number."""

    parts: tuple[StoredLedger, ...]
    horizon: Position
    messages: int
    order: str
    retain_null_key: bool
    chunks: bool
    read: int  # number of messages read
    ledgers: tuple[int, ...]  # ids of the raw ledgers that the compaction read

    def numbered(self, ledger: int) -> StoredCompacted:
        """The compacted ledger with this number."""
        parts = tuple(structs.replace(part, ledger=ledger) for part in self.parts)
        return StoredCompacted(
            ledger=ledger,
            first=(parts[0].first if parts else None) or str(self.horizon),
            last=(parts[-1].last if parts else None) or str(self.horizon),
            horizon=str(self.horizon),
            entries=sum(part.entries for part in parts),
            bytes=sum(part.length for part in parts),
            messages=self.messages,
            order=self.order,
            retain_null_key=self.retain_null_key,
            chunks=self.chunks,
            read=self.read,
            ledgers=self.ledgers,
            parts=parts,
        )


class _Read(NamedTuple):
    """The result of one read of a topic: values from its manifest and its ledgers' indexes."""

    nonce: str  # nonce of the manifest
    highest_ledger: int
    raw_ledgers: list[RawSegment]


class PulsarRounds(ArchiveRounds):
    """Compactions of Pulsar topics in an archive; see ``archive.rounds``."""

    def __init__(self) -> None:
        super().__init__()
        # result of the last read of each topic folder; removed after the topic was reported
        self._read: dict[str, _Read] = {}

    def read(self, folder: str, spend: Spend | None) -> PartitionLog:
        """Read the topic's log as its current manifest describes it."""
        manifest = self.now(folder).manifest
        topic = topic_of(manifest, folder, reads_small=False)
        self._read[folder] = _Read(manifest.nonce, topic.highest_ledger, raw_ledgers(topic))
        return topic_log.log_of(topic, spend)

    def _drop_oldest(self) -> None:
        super()._drop_oldest()
        self._read = {folder: self._read[folder] for folder in self._read.keys() & self._manifests}

    def raw_ledgers(self, folder: str) -> list[RawSegment]:
        """The topic's raw ledgers, which compaction does not change.

        Uses the result of the last ``read``.
        """
        found = self._read.pop(folder, None)
        return raw_ledgers(list_topic(folder)) if found is None else found.raw_ledgers

    def contents(self, folder: str) -> ArchivedTopic:
        """The content of the manifest that was read last."""
        return archived.contents_of(self.manifest_of(folder).manifest, folder)

    def address_in(self, to: str, log: PartitionLog) -> str:
        return archived.address_in(to, name_of(log.folder))

    def swap(self, wave: Sequence[tuple[PartitionLog, NewCompacted | None]]) -> list[Outcome]:
        """Commit each topic's new compacted ledger. Returns the error of each, or None."""
        return self.commit_each(lambda one: self._swap(*one), wave)

    def _swap(self, log: PartitionLog, new: NewCompacted | None) -> None:
        folder = log.folder
        if new is None:
            transaction = self.take(folder)
            if transaction is not None:
                partition_store_at(folder).abandon(transaction)
            return
        manifest = self.base(folder).manifest
        before = archived.contents_of(manifest, folder)
        named = {each.path(folder) for each in (*before.parts, *before.ledgers)}
        if any(segment.path not in named for segment in log.segments):
            raise conflict(folder, "topic")
        last = self._read.get(folder)
        if last is None or last.nonce != manifest.nonce:
            highest = topic_of(manifest, folder).highest_ledger
        else:
            highest = last.highest_ledger
        after = archived.with_compacted(before, new.numbered(highest + 1))
        self.commit(folder, successor(manifest, after))

    def publish(
        self, copies: Sequence[tuple[PartitionLog, NewCompacted | None]], to: str
    ) -> list[Outcome]:
        """Create the copies as topics in the archive ``to``. Returns an error or None for each."""
        return map_concurrently(lambda copy: self._publish(*copy, to), copies)

    def _publish(self, log: PartitionLog, new: NewCompacted | None, to: str) -> None:
        reject_damaged(log, to)
        self.output_folder(log, to)
        topic, folder = list_topic(log.folder), archived.address_in(to, name_of(log.folder))
        transaction = self.take(folder)
        assert transaction is not None
        place = partition_store_at(folder)
        with place.abort_on_error(transaction):
            check_segments(log)
            horizon = topic.horizon if new is None else new.horizon
            beyond = [ledger for ledger in topic.ledgers if ledger.is_beyond(horizon)]
            parts = list(topic.compacted or ()) if new is None else []
            made = LedgerCopy(place, transaction, lambda written: None).all([*beyond, *parts])
            after = _with_sides(ArchivedTopic(), log.folder, topic.ledgers, True)
            if topic.manifest is not None:
                parts_made = tuple(made[len(beyond) :])
                compacted = StoredCompacted.of(topic.manifest, parts_made)
                after = structs.replace(after, compacted=compacted)
            if new is not None:
                after = archived.with_compacted(after, new.numbered(topic.highest_ledger + 1))
            after = structs.replace(after, ledgers=tuple(made[: len(beyond)]))
        place.commit(transaction, successor(_new_manifest(topic.name), after))

    def discard_part(self, part: SegmentOutput) -> None:
        """Remove the objects of one part of a compacted ledger."""
        for stored in part.stored if isinstance(part.stored, tuple) else ():
            folder = part.log_path.rpartition("/data/")[0]
            self.discard(folder, [each.key for each in stored.objects()])
