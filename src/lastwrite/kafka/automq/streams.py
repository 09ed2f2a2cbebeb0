"""The bytes of a stream: which objects and write-ahead records contain which of its offsets.

Live objects follow each other without gaps. A gap is damage: an object is missing or damaged, or
the bucket and the metadata log were not copied together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat
from lastwrite.kafka.automq.bucket_objects import BucketObjects, ObjectIndex
from lastwrite.kafka.automq.cluster_image import ClusterImage, SetObject, Stream
from lastwrite.kafka.automq.stream_kernels import WAL_GAP_BYTES
from lastwrite.kafka.automq.wal_tail import WalTail

_ONE_BLOCK_BYTES = 1 << 20  # AutoMQ's compaction joins runs up to this size


class StreamRun(NamedTuple):
    """Consecutive stream records of one stream, stored without gaps in one object."""

    key: str  # empty for the file of write-ahead objects
    position: int
    size_bytes: int
    start_offset: int  # stream offset of the first record
    end_offset: int
    first: int  # stream offset; records that end here or before are not needed
    stop: int  # stream offset; records that begin here or later are not needed
    records: int
    is_one_block: bool
    wal_offset: int = -1  # position of the last record in the write-ahead log; -1 if none


class Gap(NamedTuple):
    """A range of stream offsets that are in no object or in several objects, with the causes."""

    start_offset: int
    end_offset: int
    causes: tuple[LogError, ...]


@dataclass(slots=True)
class StreamContents:
    """The runs of a stream in the order of its offsets, and the gaps between them."""

    stream_id: int
    start_offset: int
    runs: list[StreamRun] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    doubled: list[Gap] = field(default_factory=list)  # offsets in more than one object
    committed_end: int = 0  # end in data objects
    end_offset: int = 0
    # first stream offset of write-ahead records that do not continue the stream; None if all do
    dropped_from: int | None = None
    last_object: int | None = None

    def within(self, start: int, end: int) -> Iterator[StreamRun]:
        """The runs with offsets in a range, without the parts outside the range."""
        for run in self.runs:
            first, stop = max(run.first, start), min(run.stop, end)
            if first < stop:
                yield run._replace(first=first, stop=stop)

    def gaps_within(self, start: int, end: int) -> Iterator[Gap]:
        """The gaps in a range, without the parts outside the range."""
        for gap in self.gaps:
            if gap.start_offset < end and gap.end_offset > start:
                yield gap._replace(
                    start_offset=max(gap.start_offset, start), end_offset=min(gap.end_offset, end)
                )


def read_stream(
    stream_id: int, image: ClusterImage, objects: BucketObjects, wal: WalTail | None
) -> StreamContents:
    """The contents of a stream.

    Args:
        wal: the write-ahead records. None means that the stream ends with its last upload.

    Raises:
        ObjectVanished, RemoteFailed: an object does not exist, or the store does not answer.
        UnsupportedFormat: an object has an unknown format, or the write-ahead log has link records.
    """
    stream = image.streams[stream_id]
    contents = StreamContents(stream_id, stream.start_offset)
    next_offset = stream.start_offset
    parts, problems = _parts(stream_id, stream, image, objects)
    for part in parts:
        if part.end_offset <= stream.start_offset:
            continue
        if part.start_offset < next_offset and contents.runs:
            end = min(part.end_offset, next_offset)
            twice = LogError("the object has offsets of another object", path=part.path)
            contents.doubled.append(Gap(part.start_offset, end, (twice,)))
        if part.end_offset <= next_offset:
            continue
        if part.start_offset > next_offset:
            contents.gaps.append(Gap(next_offset, part.start_offset, problems))
            next_offset = part.start_offset
        for run in part.runs:
            if run.end_offset > next_offset:
                contents.runs.append(run._replace(first=max(run.first, next_offset)))
        next_offset, contents.last_object = part.end_offset, part.object_id
    contents.committed_end = contents.end_offset = next_offset
    committed = max(stream.end_offset, next_offset)
    if wal is not None:
        _append_wal(contents, wal.of_stream(stream_id), committed, problems)
    if contents.end_offset < committed and not _is_owed(image, stream_id, contents.end_offset):
        contents.gaps.append(Gap(contents.end_offset, committed, problems))
        contents.committed_end = contents.end_offset = committed
    return contents


def _is_owed(image: ClusterImage, stream_id: int, end_offset: int) -> bool:
    """Whether a node has not uploaded the offsets from ``end_offset`` on yet."""
    return any(
        owed[0] <= end_offset < owed[1]
        for (_, stream), owed in image.owed.items()
        if stream == stream_id
    )


class _StreamPart(NamedTuple):
    """The runs of a stream in one object, which have no gaps."""

    start_offset: int
    end_offset: int
    object_id: int
    path: str
    runs: list[StreamRun]


def _parts(
    stream_id: int, stream: Stream, image: ClusterImage, objects: BucketObjects
) -> tuple[list[_StreamPart], tuple[LogError, ...]]:
    """The parts of a stream by offset, and the problems of objects that may contain the stream."""
    own = {id: each for id, each in stream.objects.items() if image.is_live(id)}
    sets = sorted(
        (each for each in image.set_objects.values() if image.is_live(each.object_id)),
        key=lambda each: each.order_id,
    )
    sets = [each for each in sets if _may_contain(each, stream_id)]
    indexes = objects.indexes([*own, *(each.object_id for each in sets)])
    uploads = {each.object_id for each in sets if each.object_id == each.order_id}
    parts: list[_StreamPart] = []
    problems: list[LogError] = []
    for index in indexes:
        problems += index.problems
        found = _parts_in(index, stream_id, index.object_id in uploads, objects)
        parts += found
        stated = own.get(index.object_id)
        if stated is not None and found:
            if found[0].start_offset > stated.start_offset or (
                found[-1].end_offset < stated.end_offset
            ):
                problems.append(
                    CorruptLog(
                        f"the object has the stream offsets {found[0].start_offset} to "
                        f"{found[-1].end_offset - 1}, and the metadata log states "
                        f"{stated.start_offset} to {stated.end_offset - 1}",
                        path=found[0].path,
                    )
                )
    for each in sets:
        problems += _disagreements(each, stream_id, parts, objects)
    parts.sort(key=lambda each: (each.start_offset, -each.end_offset, each.object_id))
    return parts, tuple(problems)


def _may_contain(each: SetObject, stream_id: int) -> bool:
    return not each.ranges or any(part.stream_id == stream_id for part in each.ranges)


def _parts_in(
    index: ObjectIndex, stream_id: int, is_upload: bool, objects: BucketObjects
) -> list[_StreamPart]:
    parts: list[_StreamPart] = []
    for key, entry in sorted(index.of_stream(stream_id), key=lambda each: each[1].start_offset):
        end = entry.start_offset + entry.offset_count
        if end == entry.start_offset:
            continue
        run = StreamRun(
            key,
            entry.position,
            entry.size_bytes,
            entry.start_offset,
            end,
            entry.start_offset,
            end,
            entry.record_count,
            is_upload or entry.record_count == 1 or entry.size_bytes > _ONE_BLOCK_BYTES,
        )
        if parts and parts[-1].end_offset == entry.start_offset:
            parts[-1].runs.append(run)
            parts[-1] = parts[-1]._replace(end_offset=end)
        else:
            path = objects.path_of(objects.key_of(index.object_id))
            parts.append(_StreamPart(entry.start_offset, end, index.object_id, path, [run]))
    return parts


def _disagreements(
    each: SetObject, stream_id: int, parts: Sequence[_StreamPart], objects: BucketObjects
) -> list[LogError]:
    """A problem for each range of a stream in the metadata log that the object's index lacks."""
    found = {
        (part.start_offset, part.end_offset) for part in parts if part.object_id == each.object_id
    }
    return [
        CorruptLog(
            f"the metadata log states the stream offsets {stated.start_offset} to "
            f"{stated.start_offset + stated.offset_count - 1} of stream {stream_id}, and the "
            "object's index does not",
            path=objects.path_of(objects.key_of(each.object_id)),
        )
        for stated in each.ranges
        if stated.stream_id == stream_id
        and stated.offset_count
        and (stated.start_offset, stated.start_offset + stated.offset_count) not in found
    ]


def _append_wal(
    contents: StreamContents,
    rows: npt.NDArray[np.void],
    committed: int,
    problems: tuple[LogError, ...],
) -> None:
    """Append the write-ahead records that continue the stream."""
    for row in rows:
        start, count = int(row["base_offset"]), int(row["offset_count"])
        if count < 0 and start >= contents.end_offset:
            raise UnsupportedFormat(
                f"stream {contents.stream_id} has link records (automq.zonerouter.channels) from "
                f"stream offset {start} on, which Lastwrite does not read",
                remedy="the partition was not read; read it when its write-ahead log was "
                "uploaded, for example after the brokers were stopped",
            )
        if start < contents.end_offset or count < 0:
            continue
        if contents.end_offset < committed == start:
            contents.gaps.append(Gap(contents.end_offset, committed, problems))
            contents.end_offset = committed
        if start > contents.end_offset:
            contents.dropped_from = start
            return
        _append_record(contents, row)


def _append_record(contents: StreamContents, row: npt.NDArray[np.void]) -> None:
    start, end = int(row["base_offset"]), int(row["base_offset"] + row["offset_count"])
    position, size = int(row["position"]), int(row["size_bytes"])
    last = contents.runs[-1] if contents.runs else None
    offset = int(row["offset"])
    if (
        last is not None
        and not last.key
        and (
            last.position + last.size_bytes + WAL_GAP_BYTES == position and last.end_offset == start
        )
    ):
        contents.runs[-1] = last._replace(
            size_bytes=last.size_bytes + WAL_GAP_BYTES + size,
            end_offset=end,
            stop=end,
            records=last.records + 1,
            wal_offset=offset,
        )
    else:
        contents.runs.append(StreamRun("", position, size, start, end, start, end, 1, True, offset))
    contents.end_offset = end
