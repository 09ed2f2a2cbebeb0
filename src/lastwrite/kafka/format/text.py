r"""The small text files of a Kafka log directory.

An offset checkpoint of two entries, each a topic, a partition and an offset::

    0\n                 version
    2\n                 number of entries
    orders 0 4711\n
    orders 1 12\n

``leader-epoch-checkpoint`` also has a version and a number of entries; an entry is an epoch and the
first offset written in it. ``partition.metadata`` contains the topic id, and
``.kafka_cleanshutdown`` the broker epoch.

Lastwrite is stricter than Kafka: a negative offset or a duplicate entry is damage.

Source: Kafka 4.4 ``CheckpointFile``, ``LeaderEpochCheckpointFile``, ``LeaderEpochFileCache``,
``PartitionMetadataFile``, ``CleanShutdownFileHandler``; docs/formats/kafka.md, "Text files".
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat
from lastwrite.model.log import TopicPartition

_NUMBER = re.compile(rb"[0-9]{1,19}")
_SPACES = re.compile(rb"[ \t\v\f\r]+")
_MAX_I32 = (1 << 31) - 1
_MAX_I64 = (1 << 63) - 1


class LeaderEpoch(NamedTuple):
    """A leader epoch and its first offset, ``start_offset``.

    The epoch ends where the next epoch starts.
    """

    epoch: int
    start_offset: int


def decode_offset_checkpoint(text: bytes) -> dict[TopicPartition, int]:
    """The offset of each partition, in the file's order. An empty file has no entries.

    Raises:
        TruncatedLog: the file has fewer entries than its second line specifies.
        UnsupportedFormat: the version is not 0.
        CorruptLog: any other error. Its position is the start of the line.
    """
    offsets: dict[TopicPartition, int] = {}
    for at, (topic, partition, offset) in _entries(text, 3):
        try:
            name = TopicPartition(topic.decode("utf-8"), _number(partition, at, _MAX_I32))
        except UnicodeDecodeError:
            raise CorruptLog("the topic name is not UTF-8", at) from None
        if name in offsets:
            raise CorruptLog(f"partition {name} occurs twice", at)
        offsets[name] = _number(offset, at, _MAX_I64)
    return offsets


def encode_offset_checkpoint(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The text of an offset checkpoint, with entries in the order of ``offsets``.

    Raises:
        ValueError: a negative offset.
    """
    for name, offset in offsets.items():
        if offset < 0:
            raise ValueError(f"offset {offset} of {name}")
    return _framed(f"{name.topic} {name.partition} {offset}" for name, offset in offsets.items())


def decode_leader_epochs(text: bytes) -> tuple[LeaderEpoch, ...]:
    """The entries of ``leader-epoch-checkpoint``.

    Raises the errors of ``decode_offset_checkpoint``.
    """
    epochs: list[LeaderEpoch] = []
    for at, (epoch, start_offset) in _entries(text, 2):
        entry = LeaderEpoch(_number(epoch, at, _MAX_I32), _number(start_offset, at, _MAX_I64))
        if epochs and (
            entry.epoch <= epochs[-1].epoch or entry.start_offset <= epochs[-1].start_offset
        ):
            raise CorruptLog(
                f"leader epoch {entry.epoch} with start offset {entry.start_offset} is not above "
                "the entry before it",
                at,
            )
        epochs.append(entry)
    return tuple(epochs)


def encode_leader_epochs(epochs: Sequence[LeaderEpoch]) -> bytes:
    """The text of ``leader-epoch-checkpoint``.

    Raises:
        ValueError: a negative number, or epochs or offsets that do not rise.
    """
    if any(entry.epoch < 0 or entry.start_offset < 0 for entry in epochs):
        raise ValueError(f"a leader epoch or an offset is negative: {epochs}")
    if any(a.epoch >= b.epoch or a.start_offset >= b.start_offset for a, b in pairwise(epochs)):
        raise ValueError(f"leader epochs do not increase: {epochs}")
    return _framed(f"{entry.epoch} {entry.start_offset}" for entry in epochs)


def leader_epochs_from(epochs: Sequence[LeaderEpoch], log_start: int) -> tuple[LeaderEpoch, ...]:
    """The leader epochs of a log that starts at ``log_start``.

    The last entry at or below ``log_start`` gets ``log_start`` as its start offset. Earlier entries
    are dropped.
    """
    below = [entry for entry in epochs if entry.start_offset <= log_start]
    first = (LeaderEpoch(below[-1].epoch, log_start),) if below else ()
    return (*first, *epochs[len(below) :])


def decode_partition_metadata(text: bytes) -> str:
    """The topic id in ``partition.metadata``: 16 bytes as 22 characters of URL-safe base 64.

    Raises:
        UnsupportedFormat: the version is not 0.
        TruncatedLog: the second line is missing.
        CorruptLog: a line is malformed, or the topic id is invalid or all zero.
    """
    lines = text.split(b"\n", 1)
    version = _property(lines[0], b"version", 0)
    if not _NUMBER.fullmatch(version):
        raise CorruptLog("the version is not a number", 0)
    if int(version) != 0:
        raise UnsupportedFormat(f"the partition metadata has version {int(version)}", 0)
    at = len(lines[0]) + 1
    if len(lines) == 1:
        raise TruncatedLog("the topic id is missing", len(text))
    topic_id = _property(lines[1].removesuffix(b"\n"), b"topic_id", at).decode("ascii", "replace")
    try:
        topic_id_bytes(topic_id)
    except ValueError as error:
        raise CorruptLog(str(error), at) from None
    return topic_id


def encode_partition_metadata(topic_id: str) -> bytes:
    """The text of ``partition.metadata``, without a final newline.

    Raises:
        ValueError: ``topic_id`` is not a topic id.
    """
    topic_id_bytes(topic_id)
    return f"version: 0\ntopic_id: {topic_id}".encode()


def topic_id_bytes(topic_id: str) -> bytes:
    """The 16 bytes of a topic id.

    Raises:
        ValueError: not 22 characters of URL-safe base 64, or all zero.
    """
    try:
        raw = base64.b64decode(topic_id + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16 or not any(raw) or topic_id_text(raw) != topic_id:
        raise ValueError(f"{topic_id!r} is not a topic id")
    return raw


def topic_id_text(raw: bytes) -> str:
    """The 22 characters of a topic id, from its 16 bytes."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def decode_clean_shutdown(text: bytes) -> int | None:
    """The broker epoch in ``.kafka_cleanshutdown``, or None if it cannot be read.

    Raises nothing: the file's existence means a clean shutdown, whatever its content.
    """
    try:
        content = json.loads(text)
        epoch = content["brokerEpoch"] if content["version"] == 0 else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return epoch if isinstance(epoch, int) and not isinstance(epoch, bool) else None


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """The text of ``.kafka_cleanshutdown``."""
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def _entries(text: bytes, width: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the entries of a checkpoint file, each with its position, as fields.

    First checks that the file has as many entries as its second line specifies.
    """
    if not text:
        return
    lines: list[tuple[int, bytes]] = []
    at = 0
    for line in text.removesuffix(b"\n").split(b"\n"):
        lines.append((at, line.rstrip(b"\r")))
        at += len(line) + 1
    version = _number(lines[0][1], 0, _MAX_I32)
    if version != 0:
        raise UnsupportedFormat(f"the checkpoint has version {version}", 0)
    if len(lines) == 1:
        raise TruncatedLog("the checkpoint has no number of entries", len(text))
    count = _number(lines[1][1], lines[1][0], _MAX_I32)
    if len(lines) - 2 < count:
        raise TruncatedLog(
            f"the checkpoint's number of entries is {count}, but it has {len(lines) - 2} entries",
            len(text),
        )
    if len(lines) - 2 > count:
        raise CorruptLog(
            f"the checkpoint's number of entries is {count}, but it has {len(lines) - 2} entries",
            lines[2 + count][0],
        )
    for at, line in lines[2:]:
        fields = _SPACES.split(line)
        if len(fields) != width or not all(fields):
            shown = line.decode("utf-8", "replace")
            raise CorruptLog(f"the line {shown!r} does not have {width} fields", at)
        yield at, fields


def _framed(entries: Iterable[str]) -> bytes:
    lines = list(entries)
    return "".join(f"{line}\n" for line in ("0", str(len(lines)), *lines)).encode()


def _number(digits: bytes, at: int, limit: int) -> int:
    if not _NUMBER.fullmatch(digits) or int(digits) > limit:
        shown = digits.decode("utf-8", "replace")
        raise CorruptLog(f"{shown!r} is not a number from 0 to {limit}", at)
    return int(digits)


def _property(line: bytes, name: bytes, at: int) -> bytes:
    key, colon, content = line.rstrip(b"\r").partition(b":")
    if not colon or key != name:
        raise CorruptLog(f"the line {line!r} is not the property {name.decode()}", at)
    return content.strip(b" \t")
