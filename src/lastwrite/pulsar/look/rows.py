"""Pulsar entries as rows for ``dump`` and ``read``: one row per message.

Existing field names never change.

Ids are numbers as upstream has them; ``batch_index`` is -1 outside of batches. Times are
milliseconds, bytes are base64, keys are text as in Pulsar. A binary key is base64, and
``key_b64_encoded`` is then true.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from lastwrite.errors import CorruptLog, InvalidConfig, LogError
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.pulsar.format.codecs import PulsarCodec
from lastwrite.pulsar.format.entry import (
    EncryptionKey,
    Entry,
    Metadata,
    PulsarMessage,
    decode_properties,
    messages_of,
)
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.remedy import RESTORE
from lastwrite.pulsar.rules.horizon import NOT_BATCHED, LogPart
from lastwrite.reports.table import Row
from lastwrite.storage.problems import DAMAGE_REMEDY

VALUE_LIMIT_BYTES = 256 << 20  # maximum decompressed bytes of an entry

# names for the numbers in the field marker_type
MARKERS = {
    0: "unknown",
    10: "replicated subscription snapshot request",
    11: "replicated subscription snapshot response",
    12: "replicated subscription snapshot",
    13: "replicated subscription update",
    20: "transaction committing",
    21: "transaction commit",
    22: "transaction abort",
}


_OF_A_MESSAGE = tuple(
    "batch_index message_id value event_time null_value null_key stored_value compacted_out".split()
)
_MESSAGE_ID = re.compile(
    r"(\d{1,10}:(?:-1|\d{1,10}))(?::(?:-1|\d{1,10})(?::(-1|\d{1,9}))?)?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """A message id: an entry, and the index of the message in its batch.

    The index is None outside of batches.
    """

    position: Position
    index: int | None = None

    @classmethod
    def parse(cls, text: str) -> MessagePlace:
        """Parse an id as clients print it, ``LEDGER:ENTRY[:PARTITION[:INDEX]]``.

        Raises:
            InvalidConfig: another text.
            UnsupportedFormat: an id above the supported maximum.
        """
        found = _MESSAGE_ID.fullmatch(text)
        if found is None:
            remedy = "give LEDGER:ENTRY[:PARTITION[:INDEX]], for example 10:5"
            raise InvalidConfig(f"{text!r} is not a message id", remedy=remedy)
        position = Position.parse(found[1])
        position.offset  # noqa: B018  that it fits one is checked here
        return cls(position, None if found[2] in (None, "-1") else int(found[2]))


@dataclass(frozen=True, slots=True)
class EntryPointer:
    """The file that contains an entry, and the entry's first byte in the file."""

    name: TopicName | None
    file: str
    position: int
    source: LogPart


def marker_name(number: int) -> str:
    return MARKERS.get(number, str(number))


def base64_of(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode("ascii")


def has_key(key: bytes | None, is_b64: bool, wanted: bytes) -> bool:
    """Whether a message has the key ``wanted``, which is text or the bytes of a Base64 key.

    The Base64 text itself, which Java's ``getKey`` returns, matches too.
    """
    return key is not None and (key == wanted or (is_b64 and key == base64.b64encode(wanted)))


def message_rows(
    entry: Entry, size: int, place: EntryPointer, whole: bool = False, key: bytes | None = None
) -> Iterator[Row]:
    """The messages of an entry of ``size`` bytes, with placeholders. A marker is one row.

    With ``key``, only the messages with that key and unreadable entries are returned. With
    ``whole``, an unreadable entry is one row, with the reason in ``problem`` and its payload in
    ``stored_value``; otherwise it raises.

    Raises:
        CorruptLog, UnsupportedFormat, OutOfMemoryBudget: the payload cannot be read. Positions are
            bytes of the file in ``place``.
    """
    meta = entry.metadata
    if meta.is_marker:
        if key is not None:
            return
        yield entry_row(entry, size, place) | {"marker": marker_name(meta.marker_type or 0)}
        return
    try:
        found = messages_of(entry, VALUE_LIMIT_BYTES)
        if key is not None:
            found = [each for each in found if has_key(each.key, each.is_b64, key)]
        yield from (message_row(entry, message, size, place) for message in found)
    except LogError as error:
        if not whole:
            raise type(error)(error.problem, place.position, place.file, error.remedy) from error
        row = entry_row(entry, size, place)
        yield row | {
            "key": _text(meta.partition_key),
            "stored_value": base64_of(entry.payload),
            "problem": error.problem,
        }


def is_of(entry: Entry, row: Row, key: bytes) -> bool:
    """Whether a row of ``message_rows`` has the key ``key``.

    If the entry is unreadable, the key in its metadata must match.
    """
    meta = entry.metadata
    is_b64 = bool(meta.partition_key_b64_encoded)
    return row["problem"] is None or has_key(meta.partition_key, is_b64, key)


def message_row(entry: Entry, message: PulsarMessage, size: int, place: EntryPointer) -> Row:
    """The row of one message of an entry."""
    meta = entry.metadata
    index = NOT_BATCHED if message.index is None else message.index
    count = meta.num_messages_in_batch or 1
    row = entry_row(entry, size, place)
    if row["index"] is not None and message.index is not None:
        row["index"] += message.index - (count - 1)
    return row | {
        "batch_index": index,
        "message_id": message_id(entry, place.name, index),
        "key": _text(message.key),
        "value": None
        if message.is_null or message.is_encrypted or message.compacted_out
        else base64_of(message.value),
        "properties": dict(message.properties),
        "event_time": message.event_time,
        "sequence_id": meta.sequence_id if message.sequence_id is None else message.sequence_id,
        "null_value": message.is_null,
        "null_key": message.null_key,
        "key_b64_encoded": message.is_b64,
        "ordering_key": base64_of(message.ordering_key),
        "stored_value": base64_of(entry.payload) if message.is_encrypted else None,
        "compacted_out": message.compacted_out,
    }


def entry_row(entry: Entry, size: int, place: EntryPointer) -> Row:
    """A row with the fields of the message's entry. The message's own fields are empty."""
    meta = entry.metadata
    return {
        "topic": None if place.name is None else place.name.base,
        "partition": None if place.name is None else place.name.partition,
        "ledger": entry.ledger,
        "entry": entry.entry,
        "batch_index": NOT_BATCHED,
        "message_id": message_id(entry, place.name, NOT_BATCHED),
        "key": None,
        "value": None,
        "properties": {},
        "event_time": 0,
        "publish_time": meta.publish_time,
        "sequence_id": meta.sequence_id,
        "producer": meta.producer_name,
        "null_value": False,
        "null_key": False,
        "key_b64_encoded": False,
        "ordering_key": None,
        "schema_version": base64_of(meta.schema_version),
        "schema_id": base64_of(meta.schema_id),
        "replicated_from": meta.replicated_from,
        "deliver_at_time": meta.deliver_at_time,
        "compression": compression_of(meta),
        "batch_size": meta.num_messages_in_batch,
        "compacted_out": False,
        "encryption": _encryption(meta),
        "stored_value": None,
        "transaction": _transaction(meta),
        "chunk": _chunk(meta),
        "marker": None,
        "broker_timestamp": None if entry.broker is None else entry.broker.broker_timestamp,
        "index": None if entry.broker is None else entry.broker.index,
        "size": size,
        "source": str(place.source),
        "file": place.file,
        "position": place.position,
        "problem": _crc_problem(entry),
    }


def batch_row(entry: Entry, size: int, place: EntryPointer) -> Row:
    """The row of an entry whose messages are not read."""
    meta = entry.metadata
    row = entry_row(entry, size, place)
    for name in _OF_A_MESSAGE:
        del row[name]
    return row | {
        "key": _text(meta.partition_key),
        "properties": dict(decode_properties(meta.property_fields)),
        "records": None if meta.is_marker else meta.num_messages_in_batch or 1,
        "compacted_batch_indexes": list(meta.compacted_batch_indexes),
        "highest_sequence_id": meta.highest_sequence_id,
        "uncompressed_size": meta.uncompressed_size,
        "payload_bytes": len(entry.payload),
        "checksum": entry.checksum,
        "marker": None if meta.marker_type is None else marker_name(meta.marker_type),
    }


def row_problem(entry: Entry, row: Row) -> Problem:
    """The problem in a row's field ``problem``, as a ``Problem``.

    An unreadable payload with a matching checksum is not damage: the producer sent it like this,
    and compaction keeps it.
    """
    is_damaged = entry.crc_holds is False
    kind = ProblemKind.DAMAGED if is_damaged else ProblemKind.RECOVERED
    remedy = DAMAGE_REMEDY if row["topic"] is None else RESTORE
    return Problem(
        kind, row["problem"], row["file"], row["position"], remedy if is_damaged else None
    )


def message_id(entry: Entry, name: TopicName | None, index: int) -> str:
    """A message id as Pulsar's clients print it: ledger, entry, partition, index in a batch."""
    partition = -1 if name is None else name.partition
    text = f"{entry.ledger}:{entry.entry}:{partition}"
    return text if index == NOT_BATCHED else f"{text}:{index}"


def compression_of(meta: Metadata) -> str:
    number = meta.compression or 0
    try:
        return PulsarCodec(number).name
    except ValueError:
        return f"unknown ({number})"


def key_text(key: bytes) -> str:
    """A key as Java's client returns it: invalid UTF-8 becomes the replacement character."""
    return key.decode("utf-8", "replace")


def _text(key: bytes | None) -> str | None:
    return None if key is None else key_text(key)


def _encryption(meta: Metadata) -> Row | None:
    if not meta.is_encrypted:
        return None
    wrapped: list[Row] = []
    for data in meta.encryption_keys:
        name, value, more = "?", None, {}
        with suppress(CorruptLog):
            key = EncryptionKey.decode(data, 0, len(data))
            name, value = key.key, base64_of(key.value)
            more = {item.key: item.value for item in key.metadata}
        wrapped.append({"name": name, "value": value, "metadata": more})
    return {
        "keys": [each["name"] for each in wrapped],
        "algorithm": meta.encryption_algo,
        "param": base64_of(meta.encryption_param),
        "wrapped_keys": wrapped,
    }


def _transaction(meta: Metadata) -> Row | None:
    found = meta.transaction
    return None if found is None else {"most_bits": found[0], "least_bits": found[1]}


def _chunk(meta: Metadata) -> Row | None:
    if not meta.is_chunk:
        return None
    return {
        "uuid": meta.uuid,
        "id": meta.chunk_id or 0,
        "count": meta.num_chunks_from_msg,
        "total_size": meta.total_chunk_msg_size,
    }


def _crc_problem(entry: Entry) -> str | None:
    return f"the checksum {entry.checksum:08x} does not match" if entry.crc_holds is False else None
