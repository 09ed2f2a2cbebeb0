"""New segments on their way into a log: where they were written aside, what they replace, whether they may."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from lastwrite.errors import CommitConflict, LogError
from lastwrite.formats.kafka.names import FileKind, classify
from lastwrite.logstore.files import to_log_error
from lastwrite.logstore.recovery import settle
from lastwrite.logstore.walking import end_offset_of
from lastwrite.model.log import PartitionLog, Segment

AGAIN = "nothing was changed; stop whatever writes here and run again"

# The three files of a new segment, in the order in which all of a segment's files are renamed.
WRITTEN = (FileKind.LOG, FileKind.INDEX, FileKind.TIME_INDEX)


@dataclass(frozen=True, slots=True)
class Output:
    """A new segment that was written aside, and the neighbouring old ones that it replaces, oldest first."""

    base_offset: int  # that of the first source
    sources: tuple[Segment, ...]
    log_path: str
    index_path: str
    time_index_path: str

    @property
    def paths(self) -> tuple[str, str, str]:
        return self.log_path, self.index_path, self.time_index_path


def check_unchanged(log: PartitionLog) -> None:
    """Hold the folder against what was read from it.

    Raises:
        CommitConflict: a segment changed, vanished or came.
    """
    for segment in log.segments:
        try:
            seen = os.stat(segment.path)
        except FileNotFoundError:
            raise CommitConflict("the segment vanished while we worked", path=segment.path, remedy=AGAIN) from None
        except OSError as error:
            raise to_log_error(error, segment.path, "look at the segment") from error
        if (seen.st_size, seen.st_mtime_ns) != (segment.size_bytes, segment.mtime_ns):
            raise CommitConflict("the segment changed while we worked", path=segment.path, remedy=AGAIN)
    known = {os.path.basename(segment.path) for segment in log.segments}
    names = os.listdir(log.folder)
    for name, now in sorted(settle(log.folder, names).live(names).items()):
        if classify(name).kind is FileKind.LOG and now not in known:
            raise CommitConflict("the segment came while we worked", path=os.path.join(log.folder, now), remedy=AGAIN)


def check_outputs(log: PartitionLog, outputs: Sequence[Output]) -> None:
    """Hold new segments against the places that they are to take: mistakes of our own end here, not in the log.

    ``outputs`` are in the order of their base offsets.

    Raises:
        LogError: an output is not where its sources are, or would move the log's end.
    """
    place = {segment.base_offset: n for n, segment in enumerate(log.segments)}
    behind = 0
    for output in outputs:
        places = [place[segment.base_offset] for segment in output.sources]
        first, last = places[0], places[-1]
        if places != list(range(first, last + 1)) or first < behind:
            raise _mistake("the sources of a new segment are not neighbours", output)
        if output.base_offset != output.sources[0].base_offset:
            raise _mistake("a new segment begins elsewhere than its first source", output)
        behind = last + 1
        end = end_offset_of(output.log_path, output.index_path, output.base_offset)
        is_last = behind == len(log.segments)
        if end > log.segment_end(last) or (is_last and end != log.end_offset):
            raise _mistake(f"a new segment ends at offset {end}, the old ones at {log.segment_end(last)}", output)


def _mistake(problem: str, output: Output) -> LogError:
    return LogError(problem, path=output.log_path, remedy="nothing was changed; please report this")
