"""Fetch responses: encoded frames with byte ranges of files. Records are not decoded.

A response is planned completely before its first byte is sent, because it starts with its size. A
response has tagged fields from version 12 on, topic names before 13 and topic ids from 13 on::

    throttle ms 0 · [error · session 0] · topics: name or id · partitions:
        number · error · high watermark · last stable offset · [log start] ·
        aborted transactions: producer, first offset; null for read_uncommitted ·
        [preferred replica -1] · records

Sessions are not supported: the response has id 0, so that clients name all partitions each time
(KIP-227). A request that continues a session gets the error of a broker that has dropped it.

Source: Kafka 4.4 ``FetchResponse.json``, ``ReplicaManager.readFromLog``; KIP-74, KIP-98, KIP-227,
KIP-320, KIP-516; docs/decisions/serving.md.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from lastwrite.encoding.varint import encode_unsigned
from lastwrite.errors import CommitConflict, LogError
from lastwrite.kafka.look.served import ByteRange, OutOfRange, SegmentMissing
from lastwrite.server.authorized_catalog import AuthorizedCatalog
from lastwrite.server.catalog import ServedPartition, ServedTopic
from lastwrite.server.errors import Code
from lastwrite.server.messages import ClientRequest, answer_head

_FLEXIBLE, _BY_ID = 12, 13
_NO_SESSION, _NEW_SESSION = -1, 0  # session epochs of requests that list all of their partitions
_MOST_BYTES = 64 << 20
_MOST_WAIT_S = 60.0
_TRIES = 3


class PartitionResponse(NamedTuple):
    """One partition of a Fetch response."""

    number: int
    error: int
    high_watermark: int = -1
    last_stable: int = -1
    log_start: int = -1
    stretch: ByteRange | None = None
    # (producer id, first offset) of each aborted transaction; None for read_uncommitted
    aborted: tuple[tuple[int, int], ...] | None = None
    # If the client's log diverges: the last leader epoch that both logs have, and its end offset.
    diverging: tuple[int, int] | None = None


class PartitionRequest(NamedTuple):
    """One partition of a Fetch request, which may name a partition that does not exist."""

    partition: ServedPartition | None
    unknown: int  # the error code if the partition does not exist
    of: Any  # the part of kio's request for this partition


class PendingFetch(NamedTuple):
    """A Fetch request whose partitions were looked up, by name or id of the topic."""

    topics: list[tuple[bytes, list[PartitionRequest]]]
    is_committed: bool
    min_bytes: int
    max_bytes: int
    until: float  # time.monotonic until which the request waits for records

    def partitions(self) -> Iterator[ServedPartition]:
        for _, asked in self.topics:
            for each in asked:
                if each.partition is not None:
                    yield each.partition


def found_for(request: ClientRequest, body: Any, catalog: AuthorizedCatalog) -> PendingFetch:
    """Look up the partitions of a Fetch request."""
    topics = []
    for each in body.topics:
        if request.version >= _BY_ID:
            id = bytes(16) if each.topic_id is None else each.topic_id.bytes
            topic, name = catalog.of_id(id), id
            unknown = Code.NONE if topic is not None else catalog.unknown_id(id)
        else:
            topic, name = catalog.topic(each.topic), _name(request.version, each.topic)
            unknown = Code.NONE if topic is not None else catalog.unknown(each.topic)
        topics.append(
            (name, [_decode_partition(catalog, topic, part, unknown) for part in each.partitions])
        )
    wait_s = min(max(body.max_wait.total_seconds(), 0.0), _MOST_WAIT_S)
    return PendingFetch(
        topics,
        body.isolation_level == 1,
        body.min_bytes,
        min(body.max_bytes, _MOST_BYTES),
        time.monotonic() + wait_s,
    )


def _decode_partition(
    catalog: AuthorizedCatalog, topic: ServedTopic | None, part: Any, unknown: int
) -> PartitionRequest:
    found = catalog.partition(topic, part.partition)
    if found is None and topic is not None:
        unknown = Code.UNKNOWN_TOPIC_OR_PARTITION
    return PartitionRequest(found, unknown, part)


class FetchPlan(NamedTuple):
    """A planned Fetch response. ``size`` is the number of bytes of records.

    ``error`` is the error code of the whole request.
    """

    topics: list[tuple[bytes, list[PartitionResponse]]]
    size: int
    has_error: bool
    error: int = Code.NONE


def error_response(body: Any) -> FetchPlan | None:
    """The error response to a Fetch request that continues a session.

    None for any other request.
    """
    if getattr(body, "session_epoch", _NO_SESSION) in (_NO_SESSION, _NEW_SESSION):
        return None
    return FetchPlan([], 0, True, Code.FETCH_SESSION_ID_NOT_FOUND)


def planned(waiting: PendingFetch) -> FetchPlan:
    """Plan the Fetch response with the records that are available now.

    The first partition with records returns at least one complete batch, whatever its size. The
    other partitions return the batches that fit.
    """
    left, size, has_error = waiting.max_bytes, 0, False
    topics = []
    for name, asked in waiting.topics:
        parts = []
        for each in asked:
            part = _part(each, left, waiting.is_committed, size == 0)
            parts.append(part)
            has_error = has_error or part.error != Code.NONE or part.diverging is not None
            if part.stretch is not None:
                size += part.stretch.size
                left = max(left - part.stretch.size, 0)
        topics.append((name, parts))
    return FetchPlan(topics, size, has_error)


def _part(
    request: PartitionRequest, left: int, is_committed: bool, is_first: bool
) -> PartitionResponse:
    of = request.of
    if request.partition is None:
        return PartitionResponse(of.partition, request.unknown, aborted=())
    for tries in range(1, _TRIES + 1):
        try:
            log = request.partition.log() if tries == 1 else request.partition.reread()
            wrong = epoch_error(log.epoch, max(getattr(of, "current_leader_epoch", -1), -1))
            if wrong:
                return PartitionResponse(of.partition, wrong)
            bounds = log.log.high_watermark, log.log.last_stable_offset, log.log.log_start
            fetched = getattr(of, "last_fetched_epoch", -1)
            if fetched >= 0:
                epoch, end = log.end_of_epoch(fetched)
                if epoch < 0:
                    return PartitionResponse(of.partition, Code.OFFSET_OUT_OF_RANGE)
                if epoch < fetched or end < of.fetch_offset:
                    return PartitionResponse(
                        of.partition, Code.NONE, *bounds, diverging=(epoch, end)
                    )
            most = min(of.partition_max_bytes, left)
            stretch = log.stretch(of.fetch_offset, most, is_committed, is_first)
            aborted = None if stretch is None else stretch.aborted
            if aborted is None and is_committed:
                aborted = ()
            return PartitionResponse(
                of.partition, Code.NONE, *bounds, stretch=stretch, aborted=aborted
            )
        except OutOfRange:
            return PartitionResponse(of.partition, Code.OFFSET_OUT_OF_RANGE)
        except CommitConflict:
            continue
        except SegmentMissing:  # reading the partition has already reported this error
            break
        except LogError as error:
            request.partition.report(error)
            break
    return PartitionResponse(of.partition, Code.KAFKA_STORAGE_ERROR)


def epoch_error(ours: int, theirs: int) -> int:
    """The error code for the leader epoch ``theirs`` in a request. -1 means no epoch.

    ``ours`` is the partition's epoch.
    """
    if theirs in (-1, ours):
        return Code.NONE
    return Code.UNKNOWN_LEADER_EPOCH if theirs > ours else Code.FENCED_LEADER_EPOCH


def encode_fetched(request: ClientRequest, answer: FetchPlan) -> list[bytes | ByteRange]:
    """The response as bytes and byte ranges of files, without the frame's size field."""
    version = request.version
    out: list[bytes | ByteRange] = []
    head = [answer_head(request), struct.pack(">i", 0)]
    if version >= 7:
        head.append(struct.pack(">hi", answer.error, 0))
    head.append(_count(version, len(answer.topics)))
    for name, parts in answer.topics:
        head += [name, _count(version, len(parts))]
        for part in parts:
            head.append(_head_of(version, part))
            if part.stretch is not None:
                stretch = part.stretch
                out += [
                    b"".join(head),
                    stretch.converted if stretch.converted is not None else stretch,
                ]
                head = []
            if version >= _FLEXIBLE:
                head.append(_tags_of(part))
        if version >= _FLEXIBLE:
            head.append(b"\0")
    if version >= _FLEXIBLE:
        head.append(b"\0")
    out.append(b"".join(head))
    return out


def _head_of(version: int, part: PartitionResponse) -> bytes:
    parts = [struct.pack(">ihqq", part.number, part.error, part.high_watermark, part.last_stable)]
    if version >= 5:
        parts.append(struct.pack(">q", part.log_start))
    end = b"\0" if version >= _FLEXIBLE else b""
    parts.append(_count(version, -1 if part.aborted is None else len(part.aborted)))
    parts += [struct.pack(">qq", *each) + end for each in part.aborted or ()]
    if version >= 11:
        parts.append(struct.pack(">i", -1))
    parts.append(_count(version, 0 if part.stretch is None else part.stretch.size))
    return b"".join(parts)


def _tags_of(part: PartitionResponse) -> bytes:
    if part.diverging is None:
        return b"\0"
    body = struct.pack(">iq", *part.diverging) + b"\0"
    return bytes([1, 0, len(body)]) + body


def _name(version: int, topic: str) -> bytes:
    name = topic.encode()
    if version >= _FLEXIBLE:
        return encode_unsigned(len(name) + 1) + name
    return struct.pack(">h", len(name)) + name


def _count(version: int, count: int) -> bytes:
    """A number of elements or bytes, encoded for the request's version. -1 means null."""
    return encode_unsigned(count + 1) if version >= _FLEXIBLE else struct.pack(">i", count)
