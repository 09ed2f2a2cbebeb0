"""New segments for a log, and the checks before they replace old ones."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lastwrite.errors import CommitConflict, LogError
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.format.index import MAX_RELATIVE_OFFSET
from lastwrite.kafka.format.names import SEGMENT_KINDS, KafkaFileKind, classify
from lastwrite.kafka.recovery.unfinished_swap import crash_state
from lastwrite.kafka.recovery.walking import end_offset_of
from lastwrite.model.log import PartitionLog, Segment
from lastwrite.storage import files
from lastwrite.storage.files import to_log_error
from lastwrite.storage.reading import AGAIN, check_segments

# The files that every segment has, in the order in which all of a segment's files are renamed.
ALWAYS = (KafkaFileKind.LOG, KafkaFileKind.INDEX, KafkaFileKind.TIME_INDEX)


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A new segment under temporary names, and its sources: the old segments that it replaces.

    Sources are adjacent, oldest first. A segment without sources is a continuation: it shares the
    sources of the previous output. A continuation is needed because an index cannot store an offset
    2^31 or more above the base offset.
    """

    # base offset of the first source; for a continuation, of its first batch
    base_offset: int
    sources: tuple[Segment, ...]
    log_path: str
    index_path: str
    time_index_path: str
    # None or empty if the new segment has no aborted transactions
    transaction_index_path: str | None = None

    @property
    def files(self) -> tuple[tuple[KafkaFileKind, str], ...]:
        """The new segment's files as (kind, path), in the order in which they are renamed."""
        paths = (self.log_path, self.index_path, self.time_index_path, self.transaction_index_path)
        return tuple((kind, path) for kind, path in zip(SEGMENT_KINDS, paths, strict=True) if path)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for _, path in self.files)


def in_order(outputs: Iterable[NewSegment]) -> list[tuple[NewSegment, tuple[Segment, ...]]]:
    """The new segments by base offset, each with the old segments that it replaces."""
    found: list[tuple[NewSegment, tuple[Segment, ...]]] = []
    for output in sorted(outputs, key=lambda output: output.base_offset):
        sources = output.sources or (found[-1][1] if found else ())
        found.append((output, sources))
    return found


def copy_attributes(
    path: str, source: Segment, kind: KafkaFileKind, mtime_ns: int, *, is_copy: bool = False
) -> None:
    """Durably set a new file's modification time, and the owner and mode of the replaced file.

    A file that has these attributes already is not synced: it got them before its own sync.
    """
    folder, name = os.path.split(source.path)
    replaced = os.path.join(folder, name.replace(KafkaFileKind.LOG, kind, 1))
    try:
        seen = os.stat(path)
        try:
            wanted = os.stat(replaced)
        except FileNotFoundError:
            wanted = os.stat(source.path)
    except OSError as error:
        raise to_log_error(error, path, "read the attributes of the new segment") from error
    if (seen.st_uid, seen.st_gid, seen.st_mode) != (wanted.st_uid, wanted.st_gid, wanted.st_mode):
        like = files.owner_of(replaced, [source.path])
        files.give(path, like.as_far_as_may() if is_copy else like, is_synced=True)
    if seen.st_mtime_ns != mtime_ns:
        files.set_mtime(path, mtime_ns)
        files.fsync_file(path)


def check_unchanged(log: PartitionLog, note: str | None = None) -> list[str]:
    """Check that the folder did not change since it was read. Returns the names of its files.

    ``note`` is this commit's own note and is not returned. For a log that a broker has open the
    list is empty.

    Raises:
        CommitConflict: a segment changed, vanished or appeared.
    """
    check_segments(log)
    if log.open_as is not None:  # appended records and new segments are no conflict
        beside_a_broker.check_uncut(log)
        return []
    names = [name for name in os.listdir(log.folder) if name != note]
    known = {*log.unseen, *(os.path.basename(segment.path) for segment in log.segments)}
    live = crash_state(log.folder, names).live(names)
    came = [name for name in live if name.endswith(KafkaFileKind.LOG) and live[name] not in known]
    came = [name for name in came if classify(name).kind is KafkaFileKind.LOG]
    if came:
        path = os.path.join(log.folder, live[min(came)])
        raise CommitConflict(
            "another program created the segment during the command", path=path, remedy=AGAIN
        )
    return names


def check_outputs(log: PartitionLog, outputs: Sequence[NewSegment]) -> int:
    """Check new segments against their sources, so that an error in Lastwrite damages no log.

    Returns the offset after the last record of all outputs; 0 if there are none.

    Raises:
        LogError: an output is not where its sources are, overlaps the next output, ends too far
            above its base offset, or would move the log's end.
    """
    place = {segment.base_offset: n for n, segment in enumerate(log.segments)}
    ordered = in_order(outputs)
    behind = 0  # number of the segment after the last source
    ends_at = 0
    for n, (output, sources) in enumerate(ordered):
        if not sources:
            raise _mistake("the new segment replaces no segment", output)
        places = [place[segment.base_offset] for segment in sources]
        first, last = places[0], places[-1]
        if output.sources:
            if log.is_torn and last == len(log.segments) - 1:
                raise _mistake(
                    "the new segment replaces a segment that a crash left incomplete", output
                )
            if places != list(range(first, last + 1)) or first < behind:
                raise _mistake(
                    "the segments that the new segment replaces are not consecutive", output
                )
            if output.base_offset != sources[0].base_offset:
                raise _mistake(
                    "the new segment does not begin where the first segment that it replaces "
                    "begins",
                    output,
                )
            behind = last + 1
        end = end_offset_of(output.log_path, output.index_path, output.base_offset)
        if end - 1 - output.base_offset > MAX_RELATIVE_OFFSET:
            raise _mistake(
                f"the new segment ends at offset {end}, too far above its base offset for an index",
                output,
            )
        following = (
            ordered[n + 1][0] if n + 1 < len(ordered) and not ordered[n + 1][0].sources else None
        )
        limit = log.segment_end(last) if following is None else following.base_offset
        is_end = following is None and last == len(log.segments) - 1
        if end > limit or (is_end and end != log.end_offset):
            raise _mistake(
                f"the new segment ends at offset {end}, but the segments that it replaces end at "
                f"{limit}",
                output,
            )
        ends_at = max(ends_at, end)
    return ends_at


def _mistake(problem: str, output: NewSegment) -> LogError:
    return LogError(problem, path=output.log_path, remedy="nothing was changed; report this error")
