"""Records of ``__remote_log_metadata``: the state of each segment copied to tiered storage.

A record's value is a frame of three unsigned varints, followed by a flexible message. The varints
are the frame's version 1, the record's type, and the record's version 0. A segment's states are: 0
copy started, 1 copy finished, 2 deletion started, 3 deletion finished.

Source: Kafka 4.4 ``RemoteLogMetadataSerde``, ``RemoteLogSegmentMetadataRecord``; KIP-405; a real
broker's log in tests/corpus.
"""

from __future__ import annotations

from typing import NamedTuple

from lastwrite.encoding.layout import I8, I32, I64
from lastwrite.errors import UnsupportedFormat
from lastwrite.kafka.cluster.message import (
    BYTES,
    STRING,
    UUID,
    Array,
    MessageReader,
    MessageSchema,
    SchemaField,
    Struct,
)

TOPIC = "__remote_log_metadata"
FINISHED = 1
_FRAME_VERSION = 1
_ID = SchemaField(
    "id",
    Struct(
        (
            SchemaField(
                "partition",
                Struct(
                    (
                        SchemaField("topic", STRING),
                        SchemaField("topicId", UUID),
                        SchemaField("partition", I32),
                    )
                ),
            ),
            SchemaField("segmentId", UUID),
        )
    ),
)
_CUSTOM = SchemaField("customMetadata", BYTES)
_STATE = SchemaField("state", I8)
_COPIED = MessageSchema(
    "RemoteLogSegmentMetadata",
    flexible=0,
    fields=(
        _ID,
        SchemaField("startOffset", I64),
        SchemaField("endOffset", I64),
        SchemaField("brokerId", I32),
        SchemaField("maxTimestampMs", I64),
        SchemaField("eventTimestampMs", I64),
        SchemaField(
            "leaderEpochs",
            Array(Struct((SchemaField("epoch", I32), SchemaField("offset", I64)))),
        ),
        SchemaField("bytes", I32),
        _CUSTOM,
        _STATE,
    ),
)
_UPDATE = MessageSchema(
    "RemoteLogSegmentMetadataUpdate",
    flexible=0,
    fields=(
        _ID,
        SchemaField("brokerId", I32),
        SchemaField("eventTimestampMs", I64),
        _CUSTOM,
        _STATE,
    ),
)
_KINDS = {0: _COPIED, 1: _UPDATE}


class SegmentState(NamedTuple):
    """The state of one segment in tiered storage, as one record describes it.

    The ids have 22 characters, as in file names in tiered storage.
    """

    topic_id: str
    partition: int
    segment_id: str
    state: int
    end_offset: int  # offset after the segment's last record; -1 if unknown


def decode_segment_state(value: bytes) -> SegmentState | None:
    """Decode a segment's state. None if the record is not about a segment.

    Raises:
        UnsupportedFormat: the version of the frame or the record is unknown.
        TruncatedLog, CorruptLog: the value ends early, or does not decode.
    """
    fields = MessageReader(value)
    frame = fields.unsigned()
    if frame != _FRAME_VERSION:
        raise UnsupportedFormat(f"the remote log metadata record has frame version {frame}", 0)
    kind, version = fields.unsigned(), fields.unsigned()
    schema = _KINDS.get(kind)
    if schema is None:
        return None
    found, _ = schema.decode(value, version, fields.position)
    partition = found["id"]["partition"]
    return SegmentState(
        partition["topicId"],
        partition["partition"],
        found["id"]["segmentId"],
        found["state"],
        found.get("endOffset", -2) + 1,
    )
