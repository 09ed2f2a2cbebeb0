"""A managed ledger: the ledgers of a topic and the positions of its cursors.

``/managed-ledgers/public/default/persistent/orders`` of the metadata store is a ManagedLedgerInfo,
for example with ledgers 10, 12 and 15. Ledger 10 is offloaded under a uuid. Ledger 15 is open, so
its number of entries is absent. ``…/orders/__compaction`` is a ManagedCursorInfo. While a broker
serves the topic, the node only names the cursor's ledger (``cursors_ledger``). The last entry of
that ledger, a PositionInfo, is valid instead. A cursor at 10:5 with property CompactedTopicLedger =
77 means: up to 10:5, read ledger 77.

Either node, and a PositionInfo, may be compressed: ``4778``, i32 length, a message with codec and
size, then the compressed bytes.

The same data exist as JSON in two forms. ``pulsar-admin topics info-internal`` prints the messages
with their field names. ``pulsar-admin topics stats-internal`` prints another form, without uuids.

Source: Pulsar 4.2.4 ``MLDataFormats.proto``, ``MetaStoreImpl``, ``ManagedCursorImpl``,
``ManagedLedgerInternalStats``; docs/formats/pulsar.md, "Managed ledger".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Annotated, Any
from uuid import UUID

from lastwrite.errors import CorruptLog, InvalidConfig, LogError, TruncatedLog
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs
from lastwrite.pulsar.format.names import COMPACTION_CURSOR, LEDGER_PROPERTY
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.protobuf import (
    BOOL,
    BYTES,
    INT32,
    INT64,
    STRING,
    ProtoField,
    ProtoMessage,
    signed,
)

COMPRESSED = b"\x47\x78"
_LIMIT_BYTES = 256 << 20  # maximum bytes of a decompressed node; real nodes are far smaller
_U64 = (1 << 64) - 1
# BookKeeper's metadata of a ledger in the text form that ``stats-internal --metadata`` prints.
_ENDED = re.compile(r"state=CLOSED, length=(?P<length>\d+), lastEntryId=(?P<last>-?\d+),")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionInfo(ProtoMessage):
    """The compression of a node: ManagedLedgerInfoMetadata or ManagedCursorInfoMetadata."""

    codec: Annotated[int, ProtoField(1, INT32, required=True)]
    uncompressed_size: Annotated[int, ProtoField(2, INT32, required=True)]


def unwrapped(data: bytes) -> bytes:
    """The message's bytes from a node that may be compressed.

    Raises:
        TruncatedLog, CorruptLog, UnsupportedFormat, OutOfMemoryBudget: a wrong head or broken data.
    """
    if data[:2] != COMPRESSED:
        return data
    size = int.from_bytes(data[2:6], "big", signed=True)
    if len(data) < 6 or size > len(data) - 6:
        raise TruncatedLog(
            f"the head of the compressed metadata has {size} bytes, but the metadata have only "
            f"{len(data)} bytes",
            2,
        )
    if size < 0:
        raise CorruptLog(f"the head of the compressed metadata has the invalid length {size}", 2)
    head = CompressionInfo.decode(data, 6, 6 + size)
    return PulsarCodecs().decompress(
        PulsarCodec.of(head.codec), data[6 + size :], head.uncompressed_size, _LIMIT_BYTES
    )


def wrapped(message: bytes, codec: PulsarCodec) -> bytes:
    """The bytes of a node that contains this message, compressed with this codec.

    With NONE the node is the bare message, as Pulsar writes it.
    """
    if codec is PulsarCodec.NONE:
        return message
    head = CompressionInfo(codec=int(codec), uncompressed_size=len(message)).encode()
    return (
        COMPRESSED + len(head).to_bytes(4, "big") + head + PulsarCodecs().compress(codec, message)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Property(ProtoMessage):
    """A name and a text value: Pulsar's KeyValue or StringProperty."""

    name: Annotated[str, ProtoField(1, STRING, required=True)]
    value: Annotated[str, ProtoField(2, STRING, required=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LongProperty(ProtoMessage):
    """A name and an integer value: Pulsar's LongProperty."""

    name: Annotated[str, ProtoField(1, STRING, required=True)]
    value: Annotated[int, ProtoField(2, INT64, required=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedPosition(ProtoMessage):
    """A ledger id and an entry id: Pulsar's NestedPositionInfo."""

    ledger: Annotated[int, ProtoField(1, INT64, required=True)]
    entry: Annotated[int, ProtoField(2, INT64, required=True)]

    @property
    def position(self) -> Position:
        return Position(self.ledger, self.entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverMetadata(ProtoMessage):
    """The object store of an offload, and the properties with which its driver reads the store."""

    name: Annotated[str, ProtoField(1, STRING, required=True)]
    properties: Annotated[tuple[Property, ...], ProtoField(2, Property, repeated=True)] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSegment(ProtoMessage):
    """The part of a ledger up to ``end_entry``, written by a streaming offloader."""

    # fmt: off
    uid_msb:         Annotated[int | None, ProtoField(1, INT64)] = None
    uid_lsb:         Annotated[int | None, ProtoField(2, INT64)] = None
    complete:        Annotated[bool | None, ProtoField(3, BOOL)] = None
    assigned_ms:     Annotated[int | None, ProtoField(4, INT64)] = None
    offloaded_ms:    Annotated[int | None, ProtoField(5, INT64)] = None
    end_entry:       Annotated[int | None, ProtoField(6, INT64)] = None
    driver:          Annotated[DriverMetadata | None, ProtoField(7, DriverMetadata)] = None
    # fmt: on

    @property
    def uuid(self) -> UUID | None:
        return _uuid(self.uid_msb, self.uid_lsb)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadContext(ProtoMessage):
    """One offload of a ledger: its object, and whether the offload is complete."""

    # fmt: off
    uid_msb:            Annotated[int | None, ProtoField(1, INT64)] = None
    uid_lsb:            Annotated[int | None, ProtoField(2, INT64)] = None
    complete:           Annotated[bool | None, ProtoField(3, BOOL)] = None
    bookkeeper_deleted: Annotated[bool | None, ProtoField(4, BOOL)] = None
    timestamp_ms:       Annotated[int | None, ProtoField(5, INT64)] = None
    driver:             Annotated[DriverMetadata | None, ProtoField(6, DriverMetadata)] = None
    segments: Annotated[
        tuple[OffloadSegment, ...], ProtoField(7, OffloadSegment, repeated=True)
    ] = ()
    # fmt: on

    @property
    def uuid(self) -> UUID | None:
        return _uuid(self.uid_msb, self.uid_lsb)

    @classmethod
    def of_uuid(cls, uuid: UUID, *, complete: bool = True) -> OffloadContext:
        """A complete offload whose objects have this uuid in their names."""
        return cls(
            uid_msb=signed(uuid.int >> 64), uid_lsb=signed(uuid.int & _U64), complete=complete
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo(ProtoMessage):
    """One ledger of a topic. An open ledger has no entry count, no size and no closing time."""

    # fmt: off
    ledger:     Annotated[int, ProtoField(1, INT64, required=True)]
    entries:    Annotated[int | None, ProtoField(2, INT64)] = None
    size_bytes: Annotated[int | None, ProtoField(3, INT64)] = None
    closed_ms:  Annotated[int | None, ProtoField(4, INT64)] = None
    offload:    Annotated[OffloadContext | None, ProtoField(5, OffloadContext)] = None
    properties: Annotated[tuple[Property, ...], ProtoField(6, Property, repeated=True)] = ()
    # fmt: on

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is closed: it has an entry count, and its closing time is not 0."""
        return bool(self.closed_ms) or (self.closed_ms is None and self.entries is not None)

    @property
    def offloaded_as(self) -> UUID | None:
        """The uuid in the names of the ledger's objects. None without a complete offload."""
        return self.offload.uuid if self.offload is not None and self.offload.complete else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedLedgerInfo(ProtoMessage):
    """The ledgers of a topic. The list may be unsorted; ``decode_node`` sorts it by ledger id."""

    # fmt: off
    ledgers:    Annotated[tuple[LedgerInfo, ...], ProtoField(1, LedgerInfo, repeated=True)] = ()
    terminated: Annotated[NestedPosition | None, ProtoField(2, NestedPosition)] = None
    properties: Annotated[tuple[Property, ...], ProtoField(3, Property, repeated=True)] = ()
    # fmt: on

    @classmethod
    def decode_node(cls, data: bytes) -> ManagedLedgerInfo:
        """Decode a node of the metadata store, compressed or not. The ledgers are sorted by id.

        Errors as ``decode`` and ``unwrapped``.
        """
        return cls.decode(unwrapped(data)).in_order

    @property
    def in_order(self) -> ManagedLedgerInfo:
        """This info with its ledgers sorted by id."""
        return replace(self, ledgers=tuple(sorted(self.ledgers, key=lambda one: one.ledger)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorInfo(ProtoMessage):
    """The node of a cursor: Pulsar's ManagedCursorInfo.

    If ``cursors_ledger`` is -1, the other fields are valid. Otherwise the last entry of that ledger
    replaces them.
    """

    # fmt: off
    cursors_ledger:     Annotated[int, ProtoField(1, INT64, required=True)]
    mark_delete_ledger: Annotated[int | None, ProtoField(2, INT64)] = None
    mark_delete_entry:  Annotated[int | None, ProtoField(3, INT64)] = None
    individual_deleted: Annotated[tuple[bytes, ...], ProtoField(4, BYTES, repeated=True)] = ()
    properties: Annotated[
        tuple[LongProperty, ...], ProtoField(5, LongProperty, repeated=True)
    ] = ()
    last_active_ms:     Annotated[int | None, ProtoField(6, INT64)] = None
    batch_deletions:    Annotated[tuple[bytes, ...], ProtoField(7, BYTES, repeated=True)] = ()
    cursor_properties:  Annotated[tuple[Property, ...], ProtoField(8, Property, repeated=True)] = ()
    # fmt: on

    @property
    def horizon(self) -> Position | None:
        """The mark-delete position, which is the compaction horizon. None if the node has none."""
        if self.mark_delete_ledger is None or self.mark_delete_entry is None:
            return None
        return Position(self.mark_delete_ledger, self.mark_delete_entry)

    @property
    def compacted_ledger(self) -> int | None:
        """The compacted ledger's id. None if the cursor has none."""
        return _ledger_of(self.properties)

    @classmethod
    def decode_node(cls, data: bytes) -> CursorInfo:
        """Decode a node of the metadata store. Errors as ``decode`` and ``unwrapped``."""
        return cls.decode(unwrapped(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionInfo(ProtoMessage):
    """A state of a cursor, as an entry of the cursor's ledger. Only the last entry is valid."""

    # fmt: off
    ledger:                    Annotated[int, ProtoField(1, INT64, required=True)]
    entry:                     Annotated[int, ProtoField(2, INT64, required=True)]
    individual_deleted: Annotated[
        tuple[bytes, ...], ProtoField(3, BYTES, repeated=True)
    ] = ()
    properties: Annotated[
        tuple[LongProperty, ...], ProtoField(4, LongProperty, repeated=True)
    ] = ()
    batch_deletions: Annotated[
        tuple[bytes, ...], ProtoField(5, BYTES, repeated=True)
    ] = ()
    individual_deleted_ranges: Annotated[
        tuple[bytes, ...], ProtoField(6, BYTES, repeated=True)
    ] = ()
    # fmt: on

    @property
    def horizon(self) -> Position:
        """The mark-delete position, which is the compaction horizon."""
        return Position(self.ledger, self.entry)

    @property
    def compacted_ledger(self) -> int | None:
        """The compacted ledger's id. None if the cursor has none."""
        return _ledger_of(self.properties)

    @classmethod
    def decode_node(cls, data: bytes) -> PositionInfo:
        """Decode an entry of a cursor's ledger. Errors as ``decode`` and ``unwrapped``."""
        return cls.decode(unwrapped(data))


def _ledger_of(properties: tuple[LongProperty, ...]) -> int | None:
    return next((item.value for item in properties if item.name == LEDGER_PROPERTY), None)


def _uuid(msb: int | None, lsb: int | None) -> UUID | None:
    if msb is None or lsb is None:
        return None
    return UUID(int=(msb & _U64) << 64 | lsb & _U64)


# ---------------------------------------------------------------- JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTopic:
    """The content of a topic's JSON export. A value that the export lacks is None."""

    info: ManagedLedgerInfo
    horizon: Position | None = None  # mark-delete position of the cursor __compaction
    compacted_ledger: int | None = None
    compacted_entries: int | None = None  # number of entries of the compacted ledger
    # position of the last entry; entry -1 in an empty ledger
    last_confirmed: Position | None = None
    # ledgers whose entry count is from BookKeeper's ledger metadata
    ended: frozenset[int] = frozenset()


def from_json(text: str) -> ExportedTopic:
    """Parse a managed ledger from JSON.

    The document has a list ``ledgerInfo`` with the fields of the protobuf messages, or a list
    ``ledgers`` as printed by ``info-internal`` and ``stats-internal``. Only ``info-internal`` has
    the uuids of offloaded ledgers. Only ``stats-internal`` has the compaction horizon and the
    compacted ledger.

    Raises:
        CorruptLog: not JSON, or a field of another type.
        InvalidConfig: the JSON has neither list.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptLog(f"the exported metadata are not JSON: {error}") from None
    if not isinstance(document, dict) or not ({"ledgerInfo", "ledgers"} & document.keys()):
        raise InvalidConfig(
            "the exported metadata contain no ledger list",
            remedy="export the metadata with pulsar-admin topics info-internal TOPIC, or "
            "stats-internal TOPIC",
        )
    try:
        return _of_messages(document) if "ledgerInfo" in document else _of_admin(document)
    except LogError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise CorruptLog(
            f"a field of the exported metadata is missing or has a wrong type: {error!r}"
        ) from None


def _of_messages(document: dict[str, Any]) -> ExportedTopic:
    return _exported(document, [_ledger_of_messages(item) for item in document["ledgerInfo"]])


def _ledger_of_messages(item: dict[str, Any]) -> LedgerInfo:
    offload = item.get("offloadContext")
    context = None
    if offload is not None:
        driver = offload.get("driverMetadata")
        context = OffloadContext(
            uid_msb=_number(offload.get("uidMsb")),
            uid_lsb=_number(offload.get("uidLsb")),
            complete=_flag(offload.get("complete")),
            bookkeeper_deleted=_flag(offload.get("bookkeeperDeleted")),
            timestamp_ms=_number(offload.get("timestamp")),
            driver=None
            if driver is None
            else DriverMetadata(
                name=str(driver["name"]), properties=_properties(driver.get("properties"))
            ),
            segments=tuple(
                OffloadSegment(
                    uid_msb=_number(part.get("uidMsb")),
                    uid_lsb=_number(part.get("uidLsb")),
                    complete=_flag(part.get("complete")),
                    assigned_ms=_number(part.get("assignedTimestamp")),
                    offloaded_ms=_number(part.get("offloadedTimestamp")),
                    end_entry=_number(part.get("endEntryId")),
                )
                for part in offload.get("offloadSegment", [])
            ),
        )
    return LedgerInfo(
        ledger=_id(item["ledgerId"]),
        entries=_number(item.get("entries")),
        size_bytes=_number(item.get("size")),
        closed_ms=_number(item.get("timestamp")),
        offload=context,
        properties=_properties(item.get("properties")),
    )


def _of_admin(document: dict[str, Any]) -> ExportedTopic:
    """Parse the output of ``info-internal`` or ``stats-internal``.

    ``info-internal`` has times and uuids, ``stats-internal`` the entry counts of all closed
    ledgers.
    """
    is_stats = "state" in document or "lastConfirmedEntry" in document
    count = len(document["ledgers"])
    ledgers, ended = [], set()
    for n, item in enumerate(document["ledgers"]):
        uuid = item.get("offloadedContextUuid")
        entries, size = _number(item.get("entries")), _number(item.get("size"))
        # ``stats-internal`` prints no times. The last ledger is open unless the topic is closed.
        is_last = n == count - 1 and not entries
        if is_stats and is_last and document.get("state") != "ClosedLedger":
            entries, size = None, None
        own = _ENDED.search(str(item.get("metadata")))
        if own is not None:
            entries, size = int(own["last"]) + 1, int(own["length"])
            ended.add(_id(item["ledgerId"]))
        offloaded = bool(item.get("isOffloaded", item.get("offloaded")))
        context = None
        if uuid:
            context = OffloadContext.of_uuid(UUID(str(uuid)), complete=offloaded)
        elif offloaded:
            context = OffloadContext(complete=True)
        ledgers.append(
            LedgerInfo(
                ledger=_id(item["ledgerId"]),
                entries=entries,
                size_bytes=size,
                closed_ms=_number(item.get("timestamp")),
                offload=context,
                properties=_properties(item.get("properties")),
            )
        )
    return replace(_exported(document, ledgers), ended=frozenset(ended))


def _exported(document: dict[str, Any], ledgers: list[LedgerInfo]) -> ExportedTopic:
    """The exported topic, from ``ledgers`` and the fields that both JSON forms have."""
    terminated = document.get("terminatedPosition")
    info = ManagedLedgerInfo(
        ledgers=tuple(ledgers),
        terminated=None if terminated is None else _nested(terminated),
        properties=_properties(document.get("properties")),
    )
    cursor = (document.get("cursors") or {}).get(COMPACTION_CURSOR) or {}
    mark = cursor.get("markDeletePosition") or cursor.get("markDelete")
    horizon = None
    if isinstance(mark, str):
        horizon = Position.parse(mark)
    elif mark is not None:
        horizon = _nested(mark).position
    ledger = _number((cursor.get("properties") or {}).get(LEDGER_PROPERTY))
    last, told = document.get("lastConfirmedEntry"), document.get("compactedLedger")
    count = None
    if isinstance(told, dict) and told.get("ledgerId") == ledger is not None:
        count = told.get("entries")
    return ExportedTopic(
        info=info.in_order,
        horizon=horizon,
        compacted_ledger=ledger,
        compacted_entries=count if isinstance(count, int) and count >= 0 else None,
        last_confirmed=None if last is None else Position.parse(str(last)),
    )


def _nested(item: dict[str, Any]) -> NestedPosition:
    return NestedPosition(ledger=_id(item["ledgerId"]), entry=_id(item["entryId"]))


def _id(value: Any) -> int:
    number = _number(value)
    if number is None:
        raise TypeError("an id is null")
    return number


def _number(value: Any) -> int | None:
    """A JSON value as an integer. Also accepts text, since protobuf's JSON has int64 as text."""
    if value is None or isinstance(value, bool):
        return None
    number = int(value)
    if not -(1 << 63) <= number < 1 << 63 or number != value and not isinstance(value, str):
        raise ValueError(f"{value} is not a 64-bit integer")
    return number


def _flag(value: Any) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{value!r} is not true or false")
    return value


def _properties(value: Any) -> tuple[Property, ...]:
    """Read properties from a JSON object, or from a list of objects with key and value."""
    if value is None:
        return ()
    if isinstance(value, dict):
        return tuple(Property(name=str(name), value=str(text)) for name, text in value.items())
    return tuple(Property(name=str(item["key"]), value=str(item["value"])) for item in value)
