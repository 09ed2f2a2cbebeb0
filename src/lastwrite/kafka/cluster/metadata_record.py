r"""Records of KRaft's own log, ``__cluster_metadata``: those that say which settings a topic or a
broker has.

A record's value is a frame of three unsigned varints and the fields of the record behind them. The
smallest that matters to us::

    01              version of the frame
    04 00           what it is (4: a setting), and in which version
    02              of what: 2 a topic, 4 a broker
    07 orders       of which; a text is preceded by its length and one more, 0 is null
    0f cleanup.policy
    08 compact
    00              no tagged fields

All other kinds of records pass as ``None``: their fields are not looked at.

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


class Topic(NamedTuple):
    """A topic was created; ``topic_id`` has 16 bytes."""

    name: str
    topic_id: bytes


class RemovedTopic(NamedTuple):
    """A topic was deleted with all its settings."""

    topic_id: bytes


class TopicSetting(NamedTuple):
    """A setting of a topic got a value; None: it has none of its own any more."""

    topic: str
    name: str
    value: str | None


class BrokerSetting(NamedTuple):
    """A dynamic setting of a broker got a value; None: it has none any more (KIP-226).

    ``broker`` is a node id in digits; empty: all brokers have it.
    """

    broker: str
    name: str
    value: str | None


class Transaction(Enum):
    """What lies between BEGIN and END counts from END on, between BEGIN and ABORT never."""

    BEGIN = 23
    END = 24
    ABORT = 25


MetadataRecord = Topic | RemovedTopic | TopicSetting | BrokerSetting | Transaction


def decode_metadata_record(value: bytes) -> MetadataRecord | None:
    """What the record says of topics and their settings; None for all other kinds.

    Raises:
        TruncatedLog: the value stops early.
        UnsupportedFormat: a frame, or a record that we need, of a version that we do not know.
        CorruptLog: a text that is none.
    """
    fields = MessageReader(value)
    frame = fields.unsigned()
    if frame != _FRAME_VERSION:
        raise UnsupportedFormat(f"metadata record in a frame of version {frame}", 0)
    kind, version = fields.unsigned(), fields.unsigned()
    if kind in (member.value for member in Transaction):
        return Transaction(kind)
    if kind not in (_TOPIC, _CONFIG, _REMOVE_TOPIC):
        return None
    if version != 0:
        raise UnsupportedFormat(f"metadata record of kind {kind}, version {version}", 1)
    if kind == _TOPIC:
        return Topic(_text(fields) or "", fields.take(_ID_BYTES))
    if kind == _REMOVE_TOPIC:
        return RemovedTopic(fields.take(_ID_BYTES))
    of_what = fields.take(1)[0]
    whose, name, setting = _text(fields), _text(fields), _text(fields)
    if of_what == _OF_TOPIC:
        return TopicSetting(whose or "", name or "", setting)
    return BrokerSetting(whose or "", name or "", setting) if of_what == _OF_BROKER else None


def _text(fields: MessageReader) -> str | None:
    length = fields.unsigned()
    return None if length == 0 else fields.text(length - 1)
