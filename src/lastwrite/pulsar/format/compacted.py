"""An entry of a compacted ledger: the id of the original entry, and that entry.

``u32 id length, MessageIdData, u32 body length, body``. The body is a framed entry (``entry.py``),
copied or rebuilt. Its id has no batch index. For example, ``0000000f 080a 1004
18ffffffffffffffffff01 0000004e 0e01…`` is the record of entry 4 of ledger 10 in a topic without
partitions. The lengths must fill the record exactly.

The first bytes distinguish it from a raw entry. Raw entries begin with ``0e01`` or ``0e02``. Raw
entries of very old producers begin with the length of their metadata, whose first field is a name
(tag ``0a``). A MessageIdData begins with its ledger (tag ``08``).

Source: Pulsar 4.2.4 ``RawMessageImpl``, ``AbstractTwoPhaseCompactor``; docs/formats/pulsar.md,
"Compacted ledger".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, TruncatedLog
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.format.protobuf import (
    BYTES,
    INT32,
    INT64,
    UINT64,
    ProtoField,
    ProtoMessage,
    signed,
)

SMALLEST_RECORD_BYTES = 4 + 4 + 4  # minimum bytes of a record: two lengths, and an id of two fields

# Names of the custom metadata by which orphaned compacted ledgers are recognized.
APPLICATION = "application"
APPLICATION_PULSAR = b"pulsar"
COMPONENT = "component"
COMPONENT_COMPACTED = b"compacted-ledger"
COMPACTED_TOPIC = "pulsar/compactedTopic"
COMPACTED_TO = "pulsar/compactedTo"

_FRAME_MARK = 0x0E
_LEDGER_TAG = 0x08


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageId(ProtoMessage):
    """Pulsar's protobuf message MessageIdData: the id of a message."""

    # fmt: off
    ledger_id:              Annotated[int, ProtoField(1, UINT64, required=True)]
    entry_id:               Annotated[int, ProtoField(2, UINT64, required=True)]
    partition:              Annotated[int | None, ProtoField(3, INT32)] = None
    batch_index:            Annotated[int | None, ProtoField(4, INT32)] = None
    ack_set:                Annotated[tuple[int, ...], ProtoField(5, INT64, repeated=True)] = ()
    batch_size:             Annotated[int | None, ProtoField(6, INT32)] = None
    first_chunk_message_id: Annotated[bytes | None, ProtoField(7, BYTES)] = None
    # fmt: on

    @property
    def position(self) -> Position:
        return Position(signed(self.ledger_id), signed(self.entry_id))


def is_record(data: Buffer) -> bool:
    """Whether the bytes are a record of a compacted ledger and not a raw entry.

    The bytes may be damaged.
    """
    return len(data) > 4 and data[4] == _LEDGER_TAG and data[0] != _FRAME_MARK


def encode_record(position: Position, partition: int | None, body: bytes) -> bytes:
    """The record of the framed entry ``body``, whose original position was ``position``.

    A broker writes -1 as the partition of a topic without partitions. None omits the partition.
    """
    found = MessageId(
        ledger_id=position.ledger, entry_id=position.entry, partition=partition
    ).encode()
    return len(found).to_bytes(4, "big") + found + len(body).to_bytes(4, "big") + body


def decode_record(data: Buffer) -> tuple[Position, int | None, bytes]:
    """The position, the partition (None if absent) and the framed entry of a record.

    Raises:
        TruncatedLog: the bytes end before the stated lengths.
        CorruptLog: bytes follow the body, or the id is missing or below 0.
    """
    if len(data) < 4:
        raise TruncatedLog(f"the record of the compacted ledger has only {len(data)} bytes", 0)
    id_bytes = int.from_bytes(bytes(data[:4]), "big")
    if id_bytes > len(data) - 8:
        raise TruncatedLog(
            f"the id's length is {id_bytes} bytes, in a compacted record of {len(data)} bytes", 0
        )
    found = MessageId.decode(data, 4, 4 + id_bytes)
    position = found.position
    if min(position) < 0:
        raise CorruptLog(f"the compacted record has the invalid entry id {position}", 4)
    at = 8 + id_bytes
    body_bytes = int.from_bytes(bytes(data[at - 4 : at]), "big")
    if body_bytes > len(data) - at:
        raise TruncatedLog(
            f"the body's length is {body_bytes} bytes, but only {len(data) - at} bytes follow",
            at - 4,
        )
    if body_bytes < len(data) - at:
        raise CorruptLog(
            f"{len(data) - at - body_bytes} extra bytes follow the body of the compacted record",
            at + body_bytes,
        )
    return position, found.partition, bytes(data[at:])


def ledger_custom_metadata(topic: str, to: Position, partition: int = -1) -> dict[str, bytes]:
    """The custom metadata of a compacted ledger, as a broker writes them.

    ``topic`` is the full name of the topic. ``to`` is the id of the ledger's last record.
    ``partition`` -1 means that the topic has no partitions; the field is then omitted.
    """
    last = MessageId(
        ledger_id=to.ledger,
        entry_id=to.entry,
        partition=partition if partition >= 0 else None,
        batch_size=0,
    )
    return {
        APPLICATION: APPLICATION_PULSAR,
        COMPONENT: COMPONENT_COMPACTED,
        COMPACTED_TOPIC: topic.encode(),
        COMPACTED_TO: last.encode(),
    }
