"""Producer snapshots: a broker's state of every producer below the offset in the file's name.

The smallest snapshot, without producers, is ``0001``, the CRC, ``00000000``. Each producer adds 46
bytes. The producers have no particular order, and no bytes follow them.

Source: Kafka 4.4 ``ProducerStateManager``, ``ProducerSnapshot.json``; docs/formats/kafka.md,
"Producer snapshot".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import google_crc32c

from lastwrite.encoding.layout import I16, I32, I64, U32, At, Buffer, layout
from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat

VERSION = 1
CRC_START = 6  # position of the first byte that the CRC covers


class SnapshotHeader(NamedTuple):
    """The header of a producer snapshot: the 10 bytes before the producers."""

    # fmt: off
    #                                      offset  type
    version:        Annotated[int, At(0, I16)]  # always 1
    crc:            Annotated[int, At(2, U32)]  # CRC-32C of byte 6 to the end
    producer_count: Annotated[int, At(6, I32)]
    # fmt: on


class ProducerEntry(NamedTuple):
    """A producer's entry in a snapshot: the broker's state of this producer."""

    # fmt: off
    #                                                offset  type
    producer_id:              Annotated[int, At(0,  I64)]
    producer_epoch:           Annotated[int, At(8,  I16)]
    last_sequence:            Annotated[int, At(10, I32)]  # -1 without a sequence
    # last offset of the producer's last data batch; -1 if the epoch has no data batch
    last_offset:              Annotated[int, At(14, I64)]
    # last offset minus base offset of the producer's last data batch
    offset_delta:             Annotated[int, At(22, I32)]
    timestamp_ms:             Annotated[int, At(26, I64)]  # timestamp of the last batch or marker
    coordinator_epoch:        Annotated[int, At(34, I32)]  # -1: no marker yet
    current_txn_first_offset: Annotated[int, At(38, I64)]  # -1: no open transaction
    # fmt: on


SNAPSHOT_HEADER = layout(SnapshotHeader, byte_order=">", size=10)
PRODUCER_ENTRY = layout(ProducerEntry, byte_order=">", size=46)


def decode_snapshot(data: Buffer) -> tuple[ProducerEntry, ...]:
    """All producers of a snapshot file, in the file's order.

    Raises:
        TruncatedLog: the file is shorter than its header, or than its producer count requires.
        UnsupportedFormat: the version is not 1.
        CorruptLog: the CRC is wrong, the count is negative, or bytes follow the last producer.
    """
    view = memoryview(data)
    if len(view) < SNAPSHOT_HEADER.size:
        raise TruncatedLog(f"the producer snapshot has only {len(view)} bytes", 0)
    header = SnapshotHeader._make(SNAPSHOT_HEADER.unpack_from(view))
    if header.version != VERSION:
        raise UnsupportedFormat(f"the producer snapshot has version {header.version}", 0)
    if header.producer_count < 0:
        raise CorruptLog(f"{header.producer_count} producers", 6)
    end = SNAPSHOT_HEADER.size + header.producer_count * PRODUCER_ENTRY.size
    if end > len(view):
        raise TruncatedLog(
            f"the producer snapshot counts {header.producer_count} producers, more than fit into "
            f"{len(view)} bytes",
            6,
        )
    if end < len(view):
        raise CorruptLog(f"{len(view) - end} bytes follow the last producer", end)
    crc = google_crc32c.value(bytes(view[CRC_START:]))
    if crc != header.crc:
        raise CorruptLog(
            f"the producer snapshot's header has CRC {header.crc:#010x}, but its bytes have CRC "
            f"{crc:#010x}",
            2,
        )
    return tuple(map(ProducerEntry._make, PRODUCER_ENTRY.iter_unpack(view[SNAPSHOT_HEADER.size :])))


def encode_snapshot(producers: Sequence[ProducerEntry]) -> bytes:
    """The bytes of a snapshot file. Without producers it has 10 bytes."""
    body = b"".join(PRODUCER_ENTRY.pack(*producer) for producer in producers)
    head = SNAPSHOT_HEADER.pack(VERSION, 0, len(producers))
    crc = int(google_crc32c.value(head[CRC_START:] + body))
    return head[:2] + crc.to_bytes(4, "big") + head[CRC_START:] + body
