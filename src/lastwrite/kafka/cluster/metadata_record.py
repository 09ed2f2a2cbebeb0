"""Records of the metadata log, ``__cluster_metadata``, that create topics or set settings.

A record's value is a frame of three unsigned varints followed by the record's fields. Example::

    01              version of the frame
    04 00           the record's type (4: a setting) and version
    02              resource type: 2 a topic, 4 a broker
    07 orders       resource name; a string is preceded by its length plus one, 0 is null
    0f cleanup.policy
    08 compact
    00              no tagged fields

All other record types decode to ``None``; their fields are not read.

Source: Kafka 4.4 ``MetadataRecordSerde``, ``TopicRecord``, ``ConfigRecord``, ``RemoveTopicRecord``,
``BeginTransactionRecord``; KIP-631, KIP-868; a real broker's log in tests/corpus.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from lastwrite.errors import UnsupportedFormat
from lastwrite.kafka.cluster.message import MessageReader

_FRAME_VERSION = 1
_TOPIC, _CONFIG, _REMOVE_TOPIC = 2, 4, 9
_OF_TOPIC, _OF_BROKER = 2, 4
_ID_BYTES = 16


class TopicRecord(NamedTuple):
    """A record that creates a topic. ``topic_id`` has 16 bytes."""

    name: str
    topic_id: bytes


class RemoveTopicRecord(NamedTuple):
    """A record that deletes a topic and all its settings."""

    topic_id: bytes


class TopicConfigRecord(NamedTuple):
    """A record that sets a topic's setting. The value None removes the setting."""

    topic: str
    name: str
    value: str | None


class BrokerConfigRecord(NamedTuple):
    """A record that sets a broker's dynamic setting (KIP-226). The value None removes the setting.

    ``broker`` is a node id in digits. Empty means all brokers.
    """

    broker: str
    name: str
    value: str | None


class Transaction(Enum):
    """A record that begins, ends or aborts a transaction of metadata records."""

    BEGIN = 23
    END = 24
    ABORT = 25


MetadataRecord = (
    TopicRecord | RemoveTopicRecord | TopicConfigRecord | BrokerConfigRecord | Transaction
)


def decode_metadata_record(value: bytes) -> MetadataRecord | None:
    """Decode a record about topics, settings or a transaction. None for all other types.

    Raises:
        TruncatedLog: the value ends early.
        UnsupportedFormat: the version of the frame, or of a record that is decoded, is unknown.
        CorruptLog: a string is not UTF-8.
    """
    fields = MessageReader(value)
    frame = fields.unsigned()
    if frame != _FRAME_VERSION:
        raise UnsupportedFormat(f"the metadata record has frame version {frame}", 0)
    kind, version = fields.unsigned(), fields.unsigned()
    if kind in (member.value for member in Transaction):
        return Transaction(kind)
    if kind not in (_TOPIC, _CONFIG, _REMOVE_TOPIC):
        return None
    if version != 0:
        raise UnsupportedFormat(f"the metadata record has type {kind} and version {version}", 1)
    if kind == _TOPIC:
        return TopicRecord(_text(fields) or "", fields.take(_ID_BYTES))
    if kind == _REMOVE_TOPIC:
        return RemoveTopicRecord(fields.take(_ID_BYTES))
    of_what = fields.take(1)[0]
    whose, name, setting = _text(fields), _text(fields), _text(fields)
    if of_what == _OF_TOPIC:
        return TopicConfigRecord(whose or "", name or "", setting)
    return BrokerConfigRecord(whose or "", name or "", setting) if of_what == _OF_BROKER else None


def _text(fields: MessageReader) -> str | None:
    length = fields.unsigned()
    return None if length == 0 else fields.text(length - 1)
