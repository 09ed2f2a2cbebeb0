"""A topic of Pulsar in an archive: the content of its manifest.

    ARCHIVE/pulsar/public/default/persistent/orders/manifest.json
            data/<round>-<attempt>/2f…-ledger-10            a raw ledger, as an offloader writes it
                                   2f…-ledger-10-index      its index
                                   2f…-ledger-10.survey     the result of one pass over it
            data/<round>-<attempt>/91…-ledger-13, …-index   a part of the compacted ledger

An object cannot be changed, so the workers' parts of a compacted ledger cannot be joined. Each part
is a ledger by itself, with entry ids from 0; the manifest lists them in their order. The manifest
can also reference a ledger in an offloader's bucket (``foreign``).

The manifest's ``log``::

    ledgers          raw ledgers, see ``StoredLedger``
    compacted        the fields of ``compacted.json`` in a topic folder, and the parts, or null
    metadata         the topic's own list of its ledgers as fetched, base64, or null;
                     ``metadata_is_json``: the list is a JSON export
    known            ``fetched.json`` as it was fetched, base64, or null
    gaps             pairs of positions, oldest first: the first entry that was lost between two
                     fetches, and the next one that exists; accepted with ``--accept-gap``
    compacted_gaps   the gaps below the horizon whose entries the compacted ledger lacks too,
                     because it was made from this archive
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import structs

from lastwrite.archive.gaps import gap_at, gap_sentence
from lastwrite.archive.layout import partitions_at, systems_at
from lastwrite.archive.manifest import DataObject
from lastwrite.archive.manifest import Manifest as ArchiveManifest
from lastwrite.archive.partition_store import MANIFEST
from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import CorruptLog, InvalidConfig
from lastwrite.model.log import Problem
from lastwrite.pulsar.format.names import INDEX_SUFFIX, SURVEY_SUFFIX, TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.manifest import CompactionManifest
from lastwrite.storage.objects.address import is_address

SYSTEM = "pulsar"


_Content = bytes  # an alias, because the field ``bytes`` of ``StoredLedger`` hides the type
SMALL_BYTES = 1024  # an index or survey up to this size is copied into the manifest


class StoredLedger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ledger stored as objects of an archived topic, or one part of its compacted ledger."""

    ledger: int
    key: str  # key of the data object below the topic; its full address if the object is foreign
    bytes: int
    etag: str = ""
    index_bytes: int
    survey_bytes: int = 0  # bytes of the survey object; 0 without a survey
    entries: int  # id of the last entry + 1
    stored: int  # number of entries in the data object
    length: int  # bytes of the stored entries
    first: str | None = None  # id of the first record; None for a raw ledger
    last: str | None = None
    mtime_ms: int
    is_foreign: bool = msgspec.field(default=False, name="foreign")
    # the contents of the index and of the survey, each if it is small, so that compaction need not
    # read these objects
    index: _Content = b""
    survey: _Content = b""

    def path(self, folder: str) -> str:
        """The address of the data object."""
        return self.key if self.is_foreign else f"{folder}/{self.key}"

    def objects(self) -> Iterable[DataObject]:
        """All objects of the ledger."""
        foreign = self.is_foreign
        yield DataObject(key=self.key, bytes=self.bytes, etag=self.etag, is_foreign=foreign)
        yield DataObject(key=self.key + INDEX_SUFFIX, bytes=self.index_bytes, is_foreign=foreign)
        if self.survey_bytes:
            yield DataObject(key=self.key + SURVEY_SUFFIX, bytes=self.survey_bytes)


def small(content: bytes) -> bytes:
    """Return ``content`` if it is small enough to be copied into a manifest, else empty bytes."""
    return content if len(content) <= SMALL_BYTES else b""


class StoredCompacted(msgspec.Struct, frozen=True, kw_only=True):
    """The compacted ledger of an archived topic.

    The fields are as in ``manifest.CompactionManifest``.
    """

    ledger: int
    first: str
    last: str
    horizon: str
    entries: int
    bytes: int
    messages: int
    order: str
    retain_null_key: bool
    chunks: bool
    read: int
    ledgers: tuple[int, ...]
    parts: tuple[StoredLedger, ...]

    @classmethod
    def of(cls, said: CompactionManifest, parts: tuple[StoredLedger, ...]) -> StoredCompacted:
        """Convert the manifest of a topic folder, and add the parts of the compacted ledger."""
        return cls(
            ledger=said.ledger,
            first=str(said.from_),
            last=str(said.to),
            horizon=str(said.horizon),
            entries=said.entries,
            bytes=said.size_bytes,
            messages=said.messages,
            order=said.order,
            retain_null_key=said.retain_null_key,
            chunks=said.parts,
            read=said.read,
            ledgers=said.ledgers,
            parts=parts,
        )

    def to_manifest(self, topic: str) -> CompactionManifest:
        """Convert to the manifest of a topic folder.

        The manifest names the object of the first part.
        """
        return CompactionManifest(
            topic=topic,
            ledger=self.ledger,
            object=os.path.basename(self.parts[0].key) if self.parts else "",
            from_=Position.parse(self.first),
            to=Position.parse(self.last),
            horizon=Position.parse(self.horizon),
            entries=self.entries,
            size_bytes=self.bytes,
            messages=self.messages,
            order=self.order,
            retain_null_key=self.retain_null_key,
            parts=self.chunks,
            read=self.read,
            ledgers=self.ledgers,
        )


Gap = tuple[str, str]  # positions of the first lost entry, and of the next existing entry


class ArchivedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an archived topic's manifest, as described in this module."""

    ledgers: tuple[StoredLedger, ...] = ()
    compacted: StoredCompacted | None = None
    metadata: bytes | None = None
    metadata_is_json: bool = False
    known: bytes | None = None
    gaps: tuple[Gap, ...] = ()
    compacted_gaps: tuple[Gap, ...] = ()

    @property
    def parts(self) -> tuple[StoredLedger, ...]:
        """The parts of the compacted ledger."""
        return () if self.compacted is None else self.compacted.parts

    def compacted_manifest(self, name: TopicName) -> CompactionManifest | None:
        """The compacted ledger as a topic folder's manifest. None if there is none."""
        return None if self.compacted is None else self.compacted.to_manifest(name.full)

    def objects(self) -> tuple[DataObject, ...]:
        """Every object that the manifest references."""
        return tuple(each for ledger in (*self.parts, *self.ledgers) for each in ledger.objects())


def gaps_of(topic: ArchivedTopic, folder: str) -> tuple[Problem, ...]:
    """A problem note for each gap of the topic."""
    return tuple(gap_at(folder, _gap_words(gap, topic)) for gap in topic.gaps)


def _gap_words(gap: Gap, topic: ArchivedTopic) -> str:
    """A sentence about a gap of the topic."""
    first, end = gap
    compacted = topic.compacted
    if (
        compacted is not None
        and gap not in topic.compacted_gaps
        and _is_below(gap, compacted.horizon)
    ):
        return (
            f"the entries {first} to before {end} were lost before they were fetched; the "
            f"compacted ledger up to {compacted.horizon} has the last write of each key in them"
        )
    return gap_sentence(f"the entries {first} to before {end}")


def _is_below(gap: Gap, horizon: str) -> bool:
    return Position.parse(horizon).ledger >= Position.parse(gap[1]).ledger


def with_compacted(topic: ArchivedTopic, made: StoredCompacted) -> ArchivedTopic:
    """The topic after a compaction, with the new compacted ledger ``made``.

    Gaps that are now below its horizon are added to ``compacted_gaps``.
    """
    before = topic.compacted
    new = (
        gap
        for gap in topic.gaps
        if _is_below(gap, made.horizon)
        and not (before is not None and _is_below(gap, before.horizon))
    )
    return structs.replace(topic, compacted=made, compacted_gaps=(*topic.compacted_gaps, *new))


def gaps_outside(gaps: Iterable[Gap], present: Sequence[StoredLedger]) -> Iterator[Gap]:
    """The parts of ``gaps`` outside the range of entries of the raw ledgers ``present``."""
    begin = end = None
    if stored := sorted((each for each in present if each.entries), key=lambda each: each.ledger):
        begin = Position(stored[0].ledger, 0)
        end = Position(stored[-1].ledger, stored[-1].entries)
    for gap in gaps:
        first, until = map(Position.parse, gap)
        if begin is None or end is None:
            yield gap
            continue
        if first < begin:
            yield str(first), str(min(until, begin))
        if until > end:
            yield str(max(first, end)), str(until)


def is_archived(folder: str) -> bool:
    """Whether a topic's folder is in an archive: it contains an archive's manifest."""
    return is_address(folder) or os.path.exists(os.path.join(folder, MANIFEST))


def holds_archived(path: str) -> bool:
    """Whether the path contains one or more topics of an archive."""
    return is_archived(path) or SYSTEM in systems_at(path)


def address_in(archive: str, name: TopicName) -> str:
    """The address of the topic in an archive."""
    base = archive.rstrip("/") if is_address(archive) else os.path.abspath(archive)
    return f"{base}/{SYSTEM}/{name.managed_ledger}"


def archive_of(folder: str) -> str:
    """The archive that contains a topic's folder."""
    return folder.rstrip("/").rsplit("/", 5)[0]


def root_of(folder: str) -> str:
    """The folder of all Pulsar topics in the archive that contains this topic's folder."""
    return f"{archive_of(folder)}/{SYSTEM}"


def find(path: str) -> list[str]:
    """The addresses of Pulsar's topics in the archive at ``path``."""
    return partitions_at(path, SYSTEM)


def contents_of(manifest: ArchiveManifest, folder: str) -> ArchivedTopic:
    """Decode Pulsar's part of a manifest.

    Raises:
        CorruptLog: the manifest is not a Pulsar topic's.
    """
    try:
        found = decode_struct(manifest.log, ArchivedTopic)
        if found.compacted is not None:
            found.compacted.to_manifest(manifest.topic)
    except (msgspec.MsgspecError, InvalidConfig) as error:
        raise CorruptLog(
            f"the file is not the manifest of a Pulsar topic: {error}", 0, folder
        ) from error
    return found
