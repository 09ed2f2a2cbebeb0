"""The stream records of all nodes that are only in write-ahead objects, not yet in data objects.

The objects are read before the metadata log, and stored in one file: a running cluster deletes them
as soon as their records are uploaded.

Source: AutoMQ f1ce98ec ``ObjectWALService``, ``RecoverIterator``, ``DefaultReader``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.kafka.automq.bucket_objects import ObjectVanished, in_parallel
from lastwrite.kafka.automq.names import COPY_AGAIN, WalKey, decode_wal_key, wal_prefix
from lastwrite.kafka.automq.wal_objects import TRIM_MARKER, WAL_RECORD, WalObject, decode_wal_object
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.storage.objects.address import is_address, join, store_at
from lastwrite.storage.run_folder import make_folder

_FILE = "write-ahead"
# Objects whose keys state an end begin at multiples of this offset.
_ALIGNMENT = 64 << 20
_HEADER_BYTES = 40  # size of the header of old objects, whose keys do not state an end
# An object may be missing only for a moment: a node uploads several at once, in any order.
_MORE_LOOKS, _PAUSE_SECONDS = 2, 0.25
_REMEDY = f"nothing was changed; {COPY_AGAIN}"


class _Listed(NamedTuple):
    key: str
    size_bytes: int
    wal: WalKey
    end_offset: int

    def is_followed_by(self, other: _Listed) -> bool:
        """Whether ``other`` is the next object of the node's log.

        If it is, no object is missing between the two.
        """
        return (self.wal.epoch, self.end_offset) == (other.wal.epoch, other.wal.start_offset) or (
            self.wal.epoch != other.wal.epoch
        )


@dataclass(slots=True)
class WalTail:
    """The records in write-ahead objects, by stream.

    ``records`` has arrays of WAL_RECORD, sorted by offset. Their positions are positions in the
    file ``path``, which the caller deletes with its folder.
    """

    path: str = ""
    records: dict[int, npt.NDArray[np.void]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    # for each problem, the lowest stream id that it can affect
    streams_from: list[int] = field(default_factory=list)

    def of_stream(self, stream_id: int) -> npt.NDArray[np.void]:
        """The records of a stream, in the order of their offsets."""
        return self.records.get(stream_id, np.empty(0, WAL_RECORD))

    def problems_of(self, stream_id: int) -> Iterator[Problem]:
        """The damage by which records of a stream may be lost."""
        for problem, first in zip(self.problems, self.streams_from, strict=True):
            if stream_id >= first:
                yield problem


def read_wal_tail(address: str, namespace: str, nodes: Iterable[int]) -> WalTail:
    """Read the write-ahead objects of ``nodes`` that may have records to upload.

    Raises:
        ObjectVanished: a node deleted an object that was listed.
        RemoteFailed, LogError: the store does not answer.
    """
    tail = WalTail()
    found: list[npt.NDArray[np.void]] = []
    tail.path = os.path.join(make_folder(), _FILE)
    with open(tail.path, "xb", buffering=1 << 20) as file:
        for node in sorted(nodes):
            for wal, data in _read_node(address, namespace, node, tail):
                wal["position"] += file.tell()
                found.append(wal)
                file.write(data)
    rows = np.concatenate(found) if found else np.empty(0, WAL_RECORD)
    rows = rows[np.lexsort((rows["base_offset"], rows["stream_id"]))]
    ids, firsts = np.unique(rows["stream_id"], return_index=True)
    for stream_id, part in zip(ids, np.split(rows, firsts[1:]), strict=False):
        tail.records[int(stream_id)] = part
    return tail


def _read_node(
    address: str, namespace: str, node: int, tail: WalTail
) -> Iterator[tuple[npt.NDArray[np.void], bytes]]:
    """Yield each needed write-ahead object of a node: its stream records, and its bytes."""
    store, _ = store_at(address)

    def read(each: _Listed) -> bytes:
        found = store.get(each.key)
        if found is None:
            raise ObjectVanished.of([each.key], join(store.address, each.key))
        return found[0]

    listed = _listed_whole(address, namespace, node)
    if not listed:  # a node always keeps its last object, so objects are missing
        words = (
            f"the bucket has no write-ahead object of node {node}: what the node wrote is read up "
            "to its last upload"
        )
        tail.problems.append(Problem(ProblemKind.OPEN, words, store.address, None, _REMEDY))
        tail.streams_from.append(-1)
        return
    newest = read(listed[-1])
    last = _decode(tail, listed[-1], newest, join(store.address, listed[-1].key))
    trim = -1 if last is None else last.trim_offset
    wanted = [each for each in listed[:-1] if each.end_offset > trim] + [listed[-1]]
    first, start = wanted[0].wal, -(-(trim + 1) // _ALIGNMENT) * _ALIGNMENT
    if first.end_offset is not None and first.start_offset > start:
        words = (
            f"the write-ahead log of node {node} has no object from offset {start} to "
            f"{first.start_offset}"
        )
        _report(tail, join(store.address, wanted[0].key), words, None, -1)
    for n, (before, each) in enumerate(pairwise(wanted), 1):
        if not before.is_followed_by(each):
            words = (
                f"the write-ahead log of node {node} has no object from offset "
                f"{before.end_offset} to {each.wal.start_offset}; {len(wanted) - n} objects after "
                "it were not read"
            )
            _report(tail, join(store.address, before.key), words, None, -1)
            wanted, last = wanted[:n], None
            break
    others = wanted if last is None else wanted[:-1]
    for each, data in zip(others, in_parallel(read, others), strict=True):
        wal = _decode(tail, each, data, join(store.address, each.key))
        if wal is not None:
            yield _remaining(wal, trim), data
    if last is not None:
        yield _remaining(last, trim), newest


def _remaining(wal: WalObject, trim: int) -> npt.NDArray[np.void]:
    rows = wal.records
    remaining: npt.NDArray[np.void] = rows[
        (rows["offset"] > trim) & (rows["stream_id"] != TRIM_MARKER)
    ]
    return remaining


def _decode(tail: WalTail, each: _Listed, data: bytes, path: str) -> WalObject | None:
    """Decode a write-ahead object, and report its damage. None if nothing in it can be read."""
    try:
        wal = decode_wal_object(data, each.wal.end_offset)
    except (CorruptLog, UnsupportedFormat) as error:
        _report(tail, path, error.problem, error.at, -1)
        return None
    if (wal.epoch, wal.start_offset) != (each.wal.epoch, each.wal.start_offset):
        words = f"the header states epoch {wal.epoch} and offset {wal.start_offset}, unlike the key"
        _report(tail, path, words, 0, -1)
        return None
    if wal.torn_at is not None:
        # records are sorted by stream: only this stream and later ones can have lost records
        first = int(wal.records["stream_id"][-1]) if len(wal.records) else -1
        words = (
            f"the write-ahead object ends here inside a record of stream {wal.torn_stream} from "
            f"stream offset {wal.torn_offset}"
            if wal.torn_stream is not None
            else "the write-ahead object ends here inside a record"
        )
        _report(tail, path, words, wal.torn_at, first)
    return wal


def _listed_whole(address: str, namespace: str, node: int) -> Sequence[_Listed]:
    """The write-ahead objects of a node.

    If an object is missing between two others in a bucket, the objects are listed again.
    """
    listed = _list(address, namespace, node)
    for _ in range(_MORE_LOOKS if is_address(address) else 0):
        if all(each.is_followed_by(after) for each, after in pairwise(listed)):
            break
        time.sleep(_PAUSE_SECONDS)
        listed = _list(address, namespace, node)
    return listed


def _list(address: str, namespace: str, node: int) -> Sequence[_Listed]:
    """The objects of a node's write-ahead log, by epoch and offset.

    Objects that the node wrote after it was fenced are left out.
    """
    store, prefix = store_at(address)
    above = wal_prefix(namespace, node)
    found: list[_Listed] = []
    for each in store.list(f"{prefix}/{above}" if prefix else above):
        key = each.key.removeprefix(f"{prefix}/") if prefix else each.key
        wal = decode_wal_key(key)
        if wal is None or wal.node != node:
            continue
        end = wal.end_offset
        if end is None:
            end = wal.start_offset + each.size_bytes - _HEADER_BYTES
        found.append(_Listed(each.key, each.size_bytes, wal, end))
    found.sort(key=lambda each: (each.wal.epoch, each.wal.start_offset))
    starts: dict[int, int] = {}  # start of each epoch's log
    for listed in found:
        starts.setdefault(listed.wal.epoch, listed.wal.start_offset)
    epochs = sorted(starts)
    limits = {epoch: starts[after] for epoch, after in pairwise(epochs)}
    return [
        each
        for each in found
        if each.wal.epoch not in limits or each.end_offset <= limits[each.wal.epoch]
    ]


def _report(tail: WalTail, path: str, message: str, at: int | None, streams_from: int) -> None:
    tail.problems.append(Problem(ProblemKind.DAMAGED, message, path, at, _REMEDY))
    tail.streams_from.append(streams_from)
