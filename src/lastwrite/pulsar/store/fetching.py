"""``fetch``: copy the ledgers of topics into topic folders of an archive.

Every ledger becomes an object in the object-store offloader's layout::

    a bucket's objects     linked (or copied) unchanged
    MapFiles               each rewritten as an object, under the same uuid
    bookies' files         rewritten; the uuid is derived from the topic and the ledger, so that a
                           second fetch finds the object of the first

The topic's own list of ledgers has the number of entries of each closed ledger. Without a list, the
topic consists of the offloaded ledgers whose metadata name it, in the order of their ids. Entry
logs name no topic, so they need the list. The open ledger's entries are only on bookies. Entries
that a writer had confirmed are copied. Later entries belong to the ledger only if its recovery
finds them, so they are copied on request.

Damaged and missing entries are skipped, and all intact entries around them are copied. The object's
index lists the gaps, and ``fetched.json`` has the full number of entries (see ``known``). So every
command recognizes an incomplete topic.

The compacted ledger is never offloaded. If bookies are among the sources, the compacted ledger is
copied too, and the manifest is written, so that the next compaction continues after the cluster's
last compaction. A second fetch adds new entries and leaves existing objects unchanged.

Source: Pulsar 4.2.4, BookKeeper 4.17.3; docs/formats/pulsar.md; docs/formats/pulsar-compaction.md,
"The commit".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from lastwrite.errors import CorruptLog, InvalidConfig, NotALog
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.pulsar.fetched import FetchedLedger, FetchedTopic, FetchMethod, FetchReport
from lastwrite.pulsar.format.compacted import decode_record, ledger_custom_metadata
from lastwrite.pulsar.format.ledger_metadata import (
    Digest,
    LedgerMetadata,
    LedgerState,
    custom_items,
)
from lastwrite.pulsar.format.managed_ledger import LedgerInfo
from lastwrite.pulsar.format.missing import EntryRange, describe_ids, entries_in, ranges_of
from lastwrite.pulsar.format.names import (
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    TopicName,
    parse_object_name,
)
from lastwrite.pulsar.format.offload import IndexObject
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.bookies import NOTHING, BookieFolders, BookieLedger, is_bookie
from lastwrite.pulsar.store.exported_metadata import ExportedMetadata, find_exported, read_exported
from lastwrite.pulsar.store.folders import (
    MANAGED_LEDGER_NAME,
    Form,
    Offloaded,
    find_offloaded,
    map_file_entries,
    named_by,
    object_entries,
    write_map_file,
)
from lastwrite.pulsar.store.known import TopicFacts, expected_entries, without_list
from lastwrite.pulsar.store.mirror import Mirror, mirror_folder, mirroring
from lastwrite.pulsar.store.objects import checked_index
from lastwrite.pulsar.store.topic import list_topic

_NEED_LIST = (
    "give --metadata with the output of pulsar-admin topics stats-internal TOPIC, or with the "
    "metadata store's node"
)
_NEED_END = (
    "fetch again with --metadata, the output of pulsar-admin topics stats-internal --metadata "
    "TOPIC, which contains the end of each ledger; if the cluster is lost, add --recover to "
    "include these entries"
)
_OTHER_SOURCE = "give more sources: the bucket's folder, the bookies' folders and their journals"


def fetch(
    sources: Sequence[str],
    to: str,
    topic: str | None = None,
    metadata: str | None = None,
    cursor: str | None = None,
    copies: bool = False,
    recover: bool = False,
    lists: Mapping[TopicName, ExportedMetadata] | None = None,
) -> FetchReport:
    """Copy topics from ``sources`` into the archive ``to``.

    Args:
        sources: folders of a bucket's objects, of MapFiles, or of bookies (``current`` or a folder
            above it).
        topic: only this topic; all its partitions if it names none.
        metadata, cursor: files of this topic, or a folder of many topics; see
            ``exported_metadata``.
        copies: copy objects instead of linking them.
        recover: include entries beyond the last confirmed entry, as BookKeeper's ledger recovery
            would.
        lists: the ledger lists from a live cluster, instead of ``metadata`` and ``cursor``.

    Raises:
        NotALog: a source has no data of Pulsar.
        InvalidConfig: the sources need a ledger list, and none is given.
        LogHeld: another run works on a topic.
        LogError: a file cannot be read or written. Damage is in the report instead.
    """
    run = _FetchContext(sources, os.path.abspath(to), copies, recover, lists or {})
    plans = run.plans(None if topic is None else TopicName.parse(topic), metadata, cursor)
    run.find_on_bookies(plans)
    return FetchReport(
        archive=run.archive,
        topics=tuple(_fetch_topic(run, plan) for plan in plans),
        problems=(*run.problems, *(run.bookies.problems if run.bookies else ())),
    )


def objects_of(archive: str, name: TopicName) -> set[tuple[str, int]]:
    """The data objects of a namespace's topics: their paths, and their modification times in ns."""
    namespace = os.path.dirname(mirror_folder(archive, name))
    return {
        (path, os.stat(path).st_mtime_ns)
        for folder, _, names in os.walk(namespace)
        for path in (
            os.path.join(folder, file) for file in names if parse_object_name(file) is not None
        )
    }


def describe(
    archive: str, name: TopicName, source: str, former: Collection[tuple[str, int]] = ()
) -> FetchedTopic:
    """A report on a topic's folder after a fetch from ``source``.

    ``former`` is the earlier result of ``objects_of``.
    """
    topic = list_topic(mirror_folder(archive, name))
    ledgers = []
    for one in topic.all_ledgers:
        was_there = (one.path, one.mtime_ns) in former
        ledgers.append(
            FetchedLedger(
                ledger=one.id,
                how=FetchMethod.PRESENT if was_there else FetchMethod.WRITTEN,
                entries=one.stored_entries,
                size_bytes=one.size_bytes,
                path=one.path,
                source="" if was_there else source,
                is_open=not one.metadata.is_closed,
                is_compacted=one.is_compacted,
                missing=dict(topic.missing).get(one.id, ()),
            )
        )
    return FetchedTopic(
        topic=name.full,
        folder=topic.folder,
        horizon=None if topic.horizon is None else str(topic.horizon),
        ledgers=tuple(ledgers),
        problems=topic.problems,
    )


@dataclass(slots=True)
class _Plan:
    """One topic to fetch: its exported metadata and the offloaded ledgers in the sources."""

    name: TopicName
    exported: ExportedMetadata
    offloaded: list[Offloaded]

    def ledgers(self) -> list[LedgerInfo]:
        """The expected raw ledgers, in the log's order."""
        if self.exported.info is not None:
            return list(self.exported.info.ledgers)
        return [
            LedgerInfo(ledger=number)
            for number in sorted({each.ledger for each in self.offloaded if not each.is_compacted})
        ]

    def offloads(self, info: LedgerInfo) -> list[Offloaded]:
        """The offloads of a raw ledger, including incomplete ones."""
        return [
            each for each in self.offloaded if each.ledger == info.ledger and not each.is_compacted
        ]

    def candidates(self, info: LedgerInfo) -> list[Offloaded]:
        """The complete offloads of a raw ledger.

        The offload in the topic's metadata is the first.
        """
        found = [each for each in self.offloads(info) if each.damage is None]
        # Accept offloads with more entries than the topic's list states: all entries are read.
        if info.entries:
            found = [each for each in found if each.last_entry + 1 >= info.entries]
        return sorted(found, key=lambda each: each.uuid != info.offloaded_as)


class _FetchContext:
    """State of one call of ``fetch``: its sources, and the ledgers found there."""

    def __init__(
        self,
        sources: Sequence[str],
        archive: str,
        copies: bool,
        recover: bool,
        lists: Mapping[TopicName, ExportedMetadata],
    ) -> None:
        self.archive, self.copies, self.recover = archive, copies, recover
        self._lists = lists
        self.problems: list[Problem] = []
        self.stored: dict[int, BookieLedger] = {}
        self.is_of_one = False  # whether all sources belong to one topic
        self._offloaded: list[Offloaded] = []
        bookies = []
        for source in sources:
            path = os.path.abspath(source)
            if not os.path.isdir(path):
                raise NotALog(
                    "no such folder",
                    path=source,
                    remedy="give folders that contain ledgers",
                )
            if is_bookie(path):
                bookies.append(path)
                continue
            found, problems = find_offloaded(path)
            if not found and not problems:
                raise NotALog(
                    "the folder contains no Kafka log, RocketMQ store or Pulsar ledger",
                    path=source,
                    remedy="give a Kafka log root or a RocketMQ store; for Pulsar give a folder "
                    "of offloaded objects or MapFiles, or a bookie's folder with its entry "
                    "logs",
                )
            self._offloaded += found
            self.problems += problems
        self.bookies = BookieFolders(bookies) if bookies else None

    def plans(
        self, topic: TopicName | None, metadata: str | None, cursor: str | None
    ) -> list[_Plan]:
        """The topics to copy, sorted."""
        said = self._exported_metadata(topic, metadata, cursor)
        names = {each.topic for each in self._offloaded if each.topic is not None} | said.keys()
        if topic is not None:
            names = {n for n in names if topic in (n, n.with_partition(-1))}
            if self._completed(topic, None).info is not None:
                names.add(topic)
        if not names:
            has_nameless = any(each.topic is None for each in self._offloaded)
            if topic is not None and has_nameless or self.bookies is not None:
                raise InvalidConfig("the topic's ledger list is missing", remedy=_NEED_LIST)
            if topic is None:
                raise NotALog(
                    "no object in the sources contains the name of its topic", remedy=_NEED_LIST
                )
            raise NotALog(f"the sources contain no ledger of {topic.full}", remedy=_NEED_LIST)
        self.is_of_one = len(names) == 1
        return [self._plan(name, self._completed(name, said.get(name))) for name in sorted(names)]

    def unreadable(self, topic: TopicName) -> Iterator[int]:
        """The topic's ledgers whose size is unknown, because one of their files is damaged."""
        for problem in self.problems:
            named = named_by(problem.path) if problem.kind is ProblemKind.DAMAGED else None
            if named is not None and (named[0] == topic or (named[0] is None and self.is_of_one)):
                yield named[1]

    def _exported_metadata(
        self, topic: TopicName | None, metadata: str | None, cursor: str | None
    ) -> dict[TopicName, ExportedMetadata]:
        if metadata is not None and os.path.isdir(metadata):
            if cursor is not None:
                raise InvalidConfig(
                    "--cursor is for one topic, but --metadata contains several topics",
                    remedy="leave out --cursor, and put the file into the topic's metadata "
                    "folder under the name __compaction",
                )
            return dict(find_exported(metadata))
        if metadata is None and cursor is None:
            return dict(self._lists)
        if topic is None:
            raise InvalidConfig(
                "--metadata was given without a topic", remedy="add --topic TENANT/NAMESPACE/TOPIC"
            )
        said = ExportedMetadata() if metadata is None else read_exported(metadata)
        return {topic: said if cursor is None else said.with_cursor(cursor)}

    def _completed(self, name: TopicName, said: ExportedMetadata | None) -> ExportedMetadata:
        """Add the ledger list that an earlier fetch stored in the archive, if none was given."""
        if said is not None and said.info is not None:
            return said
        kept = self._stored_metadata(name)
        if kept is None or said is None:
            return kept or said or ExportedMetadata()
        return replace(said, info=kept.info, content=kept.content, is_json=kept.is_json)

    def _stored_metadata(self, name: TopicName) -> ExportedMetadata | None:
        """The metadata that an earlier fetch stored in the archive."""
        folder = os.path.join(self.archive, name.managed_ledger)
        for file in (MANAGED_LEDGER, MANAGED_LEDGER_JSON):
            path = os.path.join(folder, file)
            if os.path.exists(path):
                return read_exported(path)
        return None

    def foreign(self, plan: _Plan, present: Iterable[int]) -> list[int]:
        """Ledgers in the topic's folder that may be of another topic of the same name.

        These ledgers are in neither the topic's ledger list nor the list of an earlier fetch.
        Retention may have deleted them, or the topic was deleted and created again.
        """
        if plan.exported.info is None:
            return []
        kept = None
        with contextlib.suppress(CorruptLog):
            kept = self._stored_metadata(plan.name)
        listed = {each.ledger for each in plan.exported.info.ledgers}
        before = {each.ledger for each in kept.info.ledgers} if kept and kept.info else set()
        tied = before if before & listed else set()
        return [ledger for ledger in present if ledger not in listed | tied]

    def _plan(self, name: TopicName, said: ExportedMetadata) -> _Plan:
        listed = {info.ledger: info for info in said.info.ledgers} if said.info is not None else {}
        offloaded = [
            each
            for each in self._offloaded
            if each.topic == name
            or (
                each.topic is None
                and each.ledger in listed
                and listed[each.ledger].offloaded_as == each.uuid
            )
        ]
        return _Plan(name, said, offloaded)

    def find_on_bookies(self, plans: Sequence[_Plan]) -> None:
        """Find on bookies the ledgers that were not offloaded, and the compacted ledgers."""
        if self.bookies is None:
            return
        wanted = {
            info.ledger for plan in plans for info in plan.ledgers() if not plan.candidates(info)
        }
        told = ((plan.exported.cursors_ledger, plan.exported.compacted_ledger) for plan in plans)
        wanted |= {number for pair in told for number in pair if number is not None}
        self.stored = self.bookies.find(wanted)
        for plan in plans:
            number = plan.exported.cursors_ledger
            if number is None:
                continue
            entries = self.stored.get(number)
            if entries is None or not len(entries.rows) or entries.broken:
                continue
            if entries.end == len(entries.rows):
                last = self.bookies.entry(entries, int(entries.rows["entry"][-1]))
                plan.exported = plan.exported.with_position(last)
        compacted = {plan.exported.compacted_ledger for plan in plans} - {None} - wanted
        self.stored |= self.bookies.find(n for n in compacted if n is not None)


def _fetch_topic(run: _FetchContext, plan: _Plan) -> FetchedTopic:
    with mirroring(run.archive, plan.name) as mirror:
        return _FolderFetch(run, plan, mirror).topic()


class _FolderFetch:
    """Copies one topic into its folder."""

    def __init__(self, run: _FetchContext, plan: _Plan, mirror: Mirror) -> None:
        self._run, self._plan, self._exported, self._mirror = run, plan, plan.exported, mirror
        self._folder = mirror.folder
        self._problems: list[Problem] = []
        self._horizon: Position | None = None  # horizon of the compacted ledger that the folder has
        self._facts = TopicFacts()

    def topic(self) -> FetchedTopic:
        """Copy the topic, and report what was copied."""
        foreign = self._run.foreign(self._plan, self._mirror.raw_ledgers)
        if foreign:
            words = f"{self._plan.name}: {_ledgers(foreign)} in the folder, but not in the topic's "
            words += (
                "ledger list. Retention deleted the ledgers, or the topic was deleted and created "
            )
            words += "again. Nothing was fetched"
            self._problem(ProblemKind.UNSUPPORTED, words, "fetch into a new folder (--to)")
            name = self._plan.name.full
            return FetchedTopic(
                topic=name, folder=self._folder, ledgers=(), problems=tuple(self._problems)
            )
        self._facts = self._collect_facts()
        self._mirror.write_facts(self._facts)
        if self._exported.info is not None:
            self._mirror.write_metadata(self._exported.content, self._exported.is_json)
        if self._exported.cursors_ledger is not None:
            number = self._exported.cursors_ledger
            words = (
                f"ledger {number}, which contains the compaction horizon, is incomplete in the "
                "sources"
            )
            self._problem(ProblemKind.DAMAGED, words, _OTHER_SOURCE)
        compacted = None
        if self._exported.compacted_ledger is not None and self._exported.horizon is not None:
            compacted = self._compacted(self._exported.compacted_ledger, self._exported.horizon)
        manifest = self._mirror.manifest
        self._horizon = None if manifest is None else manifest.horizon
        ledgers = [
            found for info in self._plan.ledgers() if (found := self._ledger(info)) is not None
        ]
        if self._exported.info is None:
            self._problems.append(without_list([each.ledger for each in ledgers], self._folder))
        if compacted is not None:
            ledgers.append(compacted)
        return FetchedTopic(
            topic=self._plan.name.full,
            folder=self._folder,
            ledgers=tuple(ledgers),
            horizon=None if self._horizon is None else str(self._horizon),
            problems=tuple(self._problems),
        )

    # ---------------------------------------------------------------- expected entries

    def _is_open(self, info: LedgerInfo) -> bool:
        return self._exported.info is not None and not info.is_closed

    def _collect_facts(self) -> TopicFacts:
        """The content of ``fetched.json``, from the sources, the metadata and an earlier fetch."""
        said, former = self._exported, self._mirror.facts
        entries: dict[int, int | None] = expected_entries(said.info, said.last_confirmed, former)
        damaged = dict(former.damaged) if said.info is None else {}
        if said.info is None:
            damaged |= {
                ledger: (EntryRange(0, 0),)
                for ledger in self._run.unreadable(self._plan.name)
                if ledger not in entries
            }
        for info in self._plan.ledgers():
            damaged.pop(info.ledger, None)
            stored = self._run.stored.get(info.ledger, NOTHING)
            counts = [entries.get(info.ledger)]
            if stored is not NOTHING and info.ledger not in said.ended:
                counts.append(stored.confirmed + 1)
            whole = self._plan.candidates(info)
            counts += [
                each.last_entry + 1
                for each in (self._plan.offloads(info) if said.info is None else whole)
            ]
            count = entries[info.ledger] = max(
                (each for each in counts if each is not None), default=None
            )
            lost = self._damaged_beyond(stored, former.damaged.get(info.ledger, ()), count or 0)
            if info.is_closed:
                lost = ()
                if not whole and info.ledger not in said.ended:
                    lost = self._unsettled(info, stored, entries)
            if lost:
                damaged[info.ledger] = lost
        known, cursor = former.compacted, former.cursor
        if said.cursors_ledger is not None:
            cursor = said.cursors_ledger
        elif said.horizon is not None or said.compacted_ledger is not None:
            cursor = None
        if said.compacted_ledger is not None and said.horizon is not None:
            known = (said.compacted_ledger, said.horizon)
        return TopicFacts(
            topic=self._plan.name.full,
            damaged=damaged,
            compacted=known,
            cursor=cursor,
            entries={ledger: count for ledger, count in entries.items() if count is not None},
        )

    def _unsettled(
        self, info: LedgerInfo, stored: BookieLedger, entries: dict[int, int | None]
    ) -> tuple[EntryRange, ...]:
        """Find entries on bookies after the known end of a closed ledger.

        Without BookKeeper's ledger metadata it is unknown whether these entries belong to the
        ledger. With ``recover`` the entries are copied.
        """
        end = entries[info.ledger] or 0
        if self._run.recover:
            end = entries[info.ledger] = stored.end_beyond(end)
        left = stored.rows["entry"][stored.rows["entry"] >= end].tolist()
        if not left:
            return ()
        ranges = ranges_of(left)
        words = (
            f"bookies have {describe_ids(info.ledger, ranges)} beyond the end ({end}) that "
            "the topic's "
            "ledger list states for this closed ledger. "
        )
        words += "The sources do not show which end is right. "
        words += "The entries beyond the stated end were left out"
        self._problem(ProblemKind.DAMAGED, words, _NEED_END)
        return ranges

    @staticmethod
    def _damaged_beyond(
        stored: BookieLedger, former: Iterable[EntryRange], end: int
    ) -> tuple[EntryRange, ...]:
        """Entries from ``end`` on that have only damaged copies.

        A damaged copy may have any entry id, so ids that cannot follow the intact entries are
        ignored.
        """
        most = max(end, int(stored.rows["entry"].max(initial=-1)) + 1) + len(stored.broken)
        told = {entry for entry in stored.broken if end <= entry < most}
        told |= {entry for each in former for entry in range(max(each.first, end), each.last + 1)}
        told -= set(stored.rows["entry"].tolist())
        return ranges_of(sorted(told))

    # ---------------------------------------------------------------- raw ledgers

    def _ledger(self, info: LedgerInfo) -> FetchedLedger | None:
        """Copy one ledger. Returns None if it has no entry."""
        stored, is_open = self._run.stored.get(info.ledger), self._is_open(info)
        end = self._facts.entries.get(info.ledger, 0)
        if info.is_closed and not end:
            return None
        if is_open and stored is not None:
            end = self._end_of_open(info.ledger, stored, end)
        for path, entries in self._mirror.present(info.ledger):
            if entries and entries >= end and (is_open or not end or entries == end):
                self._mirror.drop_parts(info.ledger, path)
                return self._fetched(info.ledger, FetchMethod.PRESENT, path, "", is_open)
        for found in self._plan.candidates(info):
            try:
                return self._take(found)
            except CorruptLog as error:
                self._note(error, found.path)
        damaged = () if stored is None else stored.damaged
        if stored is not None and 0 < end <= stored.end:
            self._problems += damaged
            return self._write_stored(stored, end, self._custom(), is_open)
        made = self._rescued(info, end, is_open) if end else None
        # The damage has no effect: an earlier fetch copied these entries.
        if made is not None and not made.missing:
            kind = ProblemKind.RECOVERED
            self._problems += [structs.replace(each, kind=kind, remedy=None) for each in damaged]
            return made
        self._problems += damaged
        if made is None:
            return self._missing(info, end, is_open)
        self._report_missing_ledgers(info.ledger, end, made)
        return made

    def _rescued(self, info: LedgerInfo, end: int, is_open: bool) -> FetchedLedger | None:
        """Copy the intact entries of a damaged ledger, and its entries from earlier fetches.

        Returns None if there are no such entries.
        """
        stored = self._run.stored.get(info.ledger, NOTHING)
        present = list(self._mirror.indexes(info.ledger))
        offloads = self._plan.offloads(info)
        sources = [e for e in offloads if e.form is Form.MAP_FILE or e.damage is not None]
        there = set(stored.rows["entry"][stored.rows["entry"] < end].tolist())
        for each in sources:
            there |= {entry for entry, _ in self._whole_of(each) if entry < end}
        if len(present) == 1 and there <= _entries_of(present[0][1]) <= set(range(end)):
            path = present[0][0]
            return self._fetched(info.ledger, FetchMethod.PRESENT, path, "", is_open, end=end)
        found = [self._whole_of(each) for each in sources]
        if stored is not NOTHING:
            assert self._run.bookies is not None
            found.insert(0, self._run.bookies.entries(stored, end))
        metadata = self._metadata(self._custom(), is_open)
        note = partial(self._note, path=self._folder)
        merged = self._mirror.merge(info.ledger, metadata, found, end, note)
        if merged is None:
            return None
        return self._fetched(
            info.ledger, FetchMethod.WRITTEN, merged, "all intact copies", is_open, end=end
        )

    @staticmethod
    def _whole_of(found: Offloaded) -> Iterator[tuple[int, bytes]]:
        """The intact entries of a damaged offload. The caller has reported its first damage."""
        return (
            map_file_entries(found, lambda error: None)
            if found.form is Form.MAP_FILE
            else object_entries(found)
        )

    def _report_missing_ledgers(self, ledger: int, end: int, made: FetchedLedger) -> None:
        ranges = [EntryRange(*each) for each in made.missing]
        count = entries_in(ranges)
        words = f"{describe_ids(ledger, ranges)} {'is' if count == 1 else 'are'} in none of the "
        words += f"sources; the other {end - count} of {end} entries were fetched"
        self._report_missing(words, Position(ledger, ranges[-1].last))

    def _report_missing(self, text: str, last: Position) -> None:
        """Report missing entries. ``last`` is the position of the last one."""
        kind = ProblemKind.DAMAGED
        if self._horizon is not None and last <= self._horizon:
            kind = ProblemKind.RECOVERED
            text += ": compaction no longer needs the entries, but readers of the backlog do"
        self._problem(kind, text, _OTHER_SOURCE)

    def _take(self, found: Offloaded, is_compacted: bool = False) -> FetchedLedger:
        if found.form is Form.MAP_FILE:
            path = self._mirror.write(
                found.ledger, found.metadata, partial(write_map_file, found), found.uuid
            )
            return self._fetched(found.ledger, FetchMethod.WRITTEN, path, found.path)
        path = self._mirror.link(found.ledger, found.path, self._run.copies)
        how = FetchMethod.LINKED if os.path.samefile(path, found.path) else FetchMethod.COPIED
        return self._fetched(found.ledger, how, path, found.path, is_compacted=is_compacted)

    def _end_of_open(self, ledger: int, stored: BookieLedger, confirmed: int) -> int:
        """The id after the last entry to copy from an open ledger.

        ``confirmed`` is the id after the last confirmed entry.
        """
        there = stored.end_beyond(confirmed)
        if self._run.recover:
            return there
        left = int(np.count_nonzero(stored.rows["entry"] >= confirmed))
        if left:
            words = (
                f"{left} entries of ledger {ledger} were left out: they follow entry "
                f"{confirmed - 1}, the last add confirmed"
            )
            remedy = (
                "close the ledger with pulsar-admin topics unload TOPIC and fetch again, or "
                "include the entries with --recover"
            )
            self._problem(ProblemKind.RECOVERED, words, remedy)
        return confirmed

    def _custom(self) -> dict[str, bytes]:
        """The custom metadata of a raw ledger."""
        return {
            "application": b"pulsar",
            "component": b"managed-ledger",
            MANAGED_LEDGER_NAME: self._plan.name.managed_ledger.encode(),
        }

    @staticmethod
    def _metadata(
        custom: dict[str, bytes], is_open: bool, is_compacted: bool = False
    ) -> LedgerMetadata:
        return LedgerMetadata(
            quorum=1,
            ensemble=1,
            length=0,
            state=LedgerState.OPEN if is_open else LedgerState.CLOSED,
            digest=Digest.CRC32 if is_compacted else Digest.CRC32C,
            password=b"",
            ack_quorum=1,
            custom_items=custom_items(custom),
        )

    def _write_stored(
        self,
        stored: BookieLedger,
        end: int,
        custom: dict[str, bytes],
        is_open: bool = False,
        is_compacted: bool = False,
    ) -> FetchedLedger:
        assert self._run.bookies is not None
        metadata = self._metadata(custom, is_open, is_compacted)
        path = self._mirror.write(
            stored.ledger, metadata, partial(self._run.bookies.write, stored, end)
        )
        return self._fetched(
            stored.ledger, FetchMethod.WRITTEN, path, "bookies", is_open, is_compacted, end
        )

    def _missing(self, info: LedgerInfo, end: int, is_open: bool) -> FetchedLedger | None:
        if is_open and not end:
            if self._run.bookies is None and info.ledger not in self._facts.entries:
                words = f"ledger {info.ledger} is open, and only bookies have its entries"
                self._problem(ProblemKind.RECOVERED, words)
            return None
        words = f"ledger {info.ledger} is in none of the sources"
        self._report_missing(words, Position(info.ledger, end - 1))
        missing = ((0, end - 1),) if end else ()
        return _none_of(info.ledger, entries=end, is_open=is_open, missing=missing)

    # ---------------------------------------------------------------- the compacted ledger

    def _compacted(self, number: int, horizon: Position) -> FetchedLedger | None:
        """Copy the compacted ledger with its manifest, unless the folder has a later horizon."""
        manifest = self._mirror.manifest
        if manifest is not None and manifest.horizon >= horizon:
            if manifest.ledger == number:
                path = os.path.join(self._folder, manifest.object)
                return self._fetched(number, FetchMethod.PRESENT, path, "", is_compacted=True)
            words = f"the archive is already compacted up to {manifest.horizon}, "
            words += f"so the cluster's compacted ledger {number} was not fetched"
            self._problem(ProblemKind.RECOVERED, words)
            return None
        made = self._take_compacted(number)
        words = f"the compacted ledger {number} (up to {horizon}) is "
        if made is None:
            words += (
                "in none of the sources: only this ledger has the values that the topic's raw "
                "ledgers have lost"
            )
            self._problem(ProblemKind.DAMAGED, words, _OTHER_SOURCE)
            return _none_of(number, is_compacted=True)
        if made.missing:
            ranges = [EntryRange(*each) for each in made.missing]
            words += f"incomplete: the sources lack {describe_ids(number, ranges)}. "
            words += "The rest was fetched, but without a manifest. Only this ledger has the "
            words += "values that the topic's raw ledgers have lost"
            self._problem(ProblemKind.DAMAGED, words, _OTHER_SOURCE, made.path)
            return made
        self._mirror.is_compacted(number, horizon)
        return made

    def _take_compacted(self, number: int) -> FetchedLedger | None:
        for found in self._plan.offloaded:
            if found.is_compacted and found.ledger == number and found.damage is None:
                return self._take(found, is_compacted=True)
        stored = self._run.stored.get(number)
        if (
            stored is None
            and self._exported.compacted_entries == 0
            and self._run.bookies is not None
        ):
            stored = NOTHING  # not missing: a ledger without entries is in no entry log
        if stored is None:
            return None
        stored = replace(stored, ledger=number)
        self._problems += stored.damaged
        last = max(
            int(stored.rows["entry"].max(initial=-1)), stored.end_beyond(0) - 1, *_following(stored)
        )
        end = (
            last + 1
            if self._exported.compacted_entries is None
            else self._exported.compacted_entries
        )
        whole = stored.rows["entry"][stored.rows["entry"] < end]
        if end and not len(whole):
            return None
        if self._exported.compacted_entries is None:
            words = f"the end of the compacted ledger {number} is unknown: "
            words += f"all {end} entries in the sources were fetched"
            remedy = (
                "give the folders of all bookies, or --metadata with the output of "
                "pulsar-admin topics stats-internal TOPIC"
            )
            self._problem(ProblemKind.RECOVERED, words, remedy)
        to = Position(-1, -1)
        if end:
            assert self._run.bookies is not None
            to = decode_record(self._run.bookies.entry(stored, int(whole[-1])))[0]
        custom = ledger_custom_metadata(self._plan.name.full, to, self._plan.name.partition)
        return self._write_stored(stored, end, custom, is_compacted=True)

    # ---------------------------------------------------------------- results

    def _fetched(
        self,
        number: int,
        method: FetchMethod,
        path: str,
        source: str,
        is_open: bool = False,
        is_compacted: bool = False,
        end: int = 0,
    ) -> FetchedLedger:
        """The report on a copied ledger. ``end`` is the id after the last known entry."""
        index = checked_index(path)
        last, missing = index.metadata.last_entry, index.missing
        stored = 0 if last is None else last + 1
        if end > stored:
            missing = (*missing, EntryRange(stored, end - 1))
        return FetchedLedger(
            ledger=number,
            how=method,
            entries=max(end, stored) - entries_in(missing),
            size_bytes=os.path.getsize(path),
            path=path,
            source=source,
            is_open=is_open,
            is_compacted=is_compacted,
            missing=missing,
        )

    def _note(self, error: CorruptLog, path: str) -> None:
        where = error.path or path
        self._problems.append(
            Problem(ProblemKind.DAMAGED, error.problem, where, error.at, error.remedy)
        )

    def _problem(
        self, kind: ProblemKind, message: str, remedy: str | None = None, path: str | None = None
    ) -> None:
        """Report a problem of the topic's folder, or of the file at ``path``."""
        self._problems.append(Problem(kind, message, path or self._folder, None, remedy))


def _none_of(number: int, entries: int = 0, **others: Any) -> FetchedLedger:
    """The report on a ledger from which no entry was fetched."""
    how = FetchMethod.MISSING
    return FetchedLedger(
        ledger=number, how=how, entries=entries, size_bytes=0, path="", source="", **others
    )


def _ledgers(numbers: Sequence[int]) -> str:
    """The start of a sentence about ledgers, such as "ledgers 10, 12 are"."""
    if len(numbers) == 1:
        return f"ledger {numbers[0]} is"
    return f"ledgers {', '.join(map(str, numbers))} are"


def _entries_of(index: IndexObject) -> set[int]:
    """The ids of an object's entries, according to its index."""
    last = index.metadata.last_entry
    found = set() if last is None else set(range(last + 1))
    for each in index.missing:
        found -= set(range(each.first, each.last + 1))
    return found


def _following(stored: BookieLedger) -> list[int]:
    """The ids of damaged entries that directly follow the intact entries."""
    end = int(stored.rows["entry"].max(initial=-1)) + 1
    return [
        entry for n, entry in enumerate(e for e in stored.broken if e >= end) if entry == end + n
    ]
