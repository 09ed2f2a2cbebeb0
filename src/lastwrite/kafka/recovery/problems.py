"""Problems, such as lost records, that are found while a partition's files are listed.

``lost_records`` describes the evidence of lost records, and what the user can do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lastwrite.errors import CorruptLog, LogError, TruncatedLog
from lastwrite.kafka.format.index import OFFSET_ENTRY
from lastwrite.kafka.format.names import KafkaFileKind, segment_file_name
from lastwrite.kafka.format.remedy import REBUILD, RESTORE
from lastwrite.kafka.recovery.lost_records import (
    EndEvidence,
    missing,
    recovery_checkpoint_offset,
    recovery_end_offset,
    recovery_truncation_offset,
)
from lastwrite.kafka.recovery.unclean_shutdown import (
    RecoveredSegment,
    entries_behind_damage,
    file_identity,
)
from lastwrite.kafka.recovery.walking import Walk, end_offset_of
from lastwrite.model.log import Problem, ProblemKind, Segment
from lastwrite.storage.problems import problem_of

_SETTLED_LATER = "no action is needed: the next compact, or the broker's next start, repairs this"


class RecoveryProblems:
    """Collects the problems of one partition, in the order in which they are found.

    ``live`` maps the final name of every file of the log to its current name. ``bases`` are the
    base offsets of segments with a ``.log`` file, ascending. ``gone`` maps the base offset of each
    segment without a ``.log`` file to the greatest offset in its indexes. ``log_start`` is from the
    log start checkpoint.
    """

    def __init__(
        self,
        folder: str,
        live: Mapping[str, str],
        bases: Sequence[int],
        missing: Mapping[int, int],
        log_start: int,
    ) -> None:
        self.problems: list[Problem] = []
        self.witnesses: list[EndEvidence] = []
        self._folder = folder
        self._live = live
        self._bases = bases
        self._missing = missing
        self._log_start = log_start
        self._is_end_reported = False  # whether records after the log's end were reported

    def path_of(self, name: str) -> str:
        return f"{self._folder}/{self._live.get(name, name)}"

    def log_path(self, base: int) -> str:
        return self.path_of(segment_file_name(base, KafkaFileKind.LOG))

    def damaged(
        self, message: str, path: str, position: int | None = None, remedy: str | None = None
    ) -> None:
        self.problems.append(Problem(ProblemKind.DAMAGED, message, path, position, remedy))

    def recovered(self, message: str, name: str, position: int | None = None) -> None:
        path = self.path_of(name)
        self.problems.append(
            Problem(ProblemKind.RECOVERED, message, path, position, _SETTLED_LATER)
        )

    def note(self, error: LogError, path: str, remedy: str = RESTORE) -> None:
        self.problems.append(problem_of(error, path, remedy=remedy))

    # ------------------------------------------------------------------ inside the log

    def is_lost_in(
        self, base: int, found: RecoveredSegment, *, is_active: bool, is_unflushed: bool
    ) -> bool:
        """Report damage or lost records in a segment whose broker was killed.

        Returns whether a problem was reported. If not, the segment has a torn tail or no error.
        """
        path, end_offset, error = self.log_path(base), found.end_offset, found.error
        following = [other for other in self._bases if other > base]
        if error is None:
            named = None if is_active else found.indexed_beyond
            return named is not None and self.report_indexed_beyond(
                base, found.size_bytes, end_offset, named
            )
        if found.is_unseen or not is_unflushed:
            self.note(error, path)
            return True
        witness = self._next_segment(base) if following else self._furthest
        if witness.end_offset > end_offset:
            is_torn = isinstance(error, TruncatedLog)
            words = f"{error.problem}: {missing(end_offset, witness, is_file_at_end=is_torn)}"
        elif found.is_emptied:
            words = f"{error.problem}: a broker's start would empty the segment"
        elif any(file_identity(self.log_path(other)).size_bytes > 0 for other in following):
            words = f"{error.problem}, although later segments contain records"
        elif beyond := entries_behind_damage(path, found.size_bytes, base, end_offset):
            known = (
                f"complete batches from offset {beyond.base_offset} on follow at byte "
                f"{beyond.position}"
            )
            gone = missing(end_offset, EndEvidence(beyond.end_offset, known), is_file_at_end=False)
            words = f"{error.problem}: {gone}"
        else:
            return False
        remedy = recovery_truncation_offset(end_offset, following, self._log_start)
        self.damaged(words, path, error.at, remedy)
        self._is_end_reported |= not following
        return True

    def report_indexed_beyond(
        self, base: int, size_bytes: int, end_offset: int, named: int
    ) -> bool:
        """Report offsets in a closed segment's indexes that are beyond the segment's end.

        Returns whether there are such offsets.
        """
        after = self._next_segment(base)
        if not end_offset <= named < after.end_offset:
            return False  # the index entry is wrong, so it is no evidence of lost records
        ends = f"the segment ends at offset {end_offset}" if size_bytes else "the segment is empty"
        witness = EndEvidence(
            after.end_offset,
            f"the segment's indexes contain offset {named}, and {after.description}",
        )
        words = f"{ends}: {missing(end_offset, witness)}"
        self.damaged(words, self.log_path(base), size_bytes, RESTORE)
        return True

    def report_entry_beyond(
        self, base: int, end_offset: int, size_bytes: int, entry: tuple[int, int], index_bytes: int
    ) -> None:
        """Report a last index entry that points beyond the segment.

        Either the segment lost records, or the entry is wrong.
        """
        offset, position = base + entry[0], entry[1]
        is_last = base == self._bases[-1]
        known = (
            EndEvidence(offset + 1, "no segment follows") if is_last else self._next_segment(base)
        )
        if not end_offset <= offset < known.end_offset:
            words = (
                f"the last entry points to byte {position}, but the segment has {size_bytes} bytes"
            )
            path = self.path_of(segment_file_name(base, KafkaFileKind.INDEX))
            self.damaged(words, path, index_bytes - OFFSET_ENTRY.size, REBUILD)
            return
        witness = EndEvidence(
            known.end_offset,
            f"the segment's index contains offset {offset}, and {known.description}",
        )
        words = f"the segment ends at offset {end_offset}: {missing(end_offset, witness)}"
        self.damaged(words, self.log_path(base), size_bytes, RESTORE)
        self._is_end_reported |= is_last

    def _next_segment(self, base: int) -> EndEvidence:
        after = min(other for other in self._bases if other > base)
        return EndEvidence(after, f"the next segment begins at offset {after}")

    # ------------------------------------------------------------------ at the log's end

    @property
    def _furthest(self) -> EndEvidence:
        """The evidence with the highest end offset."""
        return max(self.witnesses, key=lambda witness: witness.end_offset)

    def torn_tail(self, path: str, tail: Walk) -> None:
        """Report a torn active segment although the broker shut down cleanly."""
        wrong, witness = tail.error, self._furthest
        if wrong is None:
            return
        if isinstance(wrong, CorruptLog) and witness.end_offset > tail.end_offset:
            is_torn = isinstance(wrong, TruncatedLog)
            gone = missing(tail.end_offset, witness, is_file_at_end=is_torn)
            wrong = CorruptLog(f"{wrong.problem}: {gone}", wrong.at, wrong.path)
        self.note(wrong, path, recovery_checkpoint_offset(tail.end_offset))
        self._is_end_reported = True

    def missing_at_end(self, last: Segment | None, end_offset: int) -> None:
        """Report records lost after the log's end, if other files of the broker show the loss."""
        witness = self._furthest
        if witness.end_offset <= end_offset or self._is_end_reported:
            return
        words = f"the log ends at offset {end_offset}: {missing(end_offset, witness)}"
        remedy = recovery_end_offset(end_offset, self._log_start)
        if witness.if_stale:
            remedy += f"; {witness.if_stale}"
        path, position = (self._folder, None) if last is None else (last.path, last.size_bytes)
        self.damaged(words, path, position, remedy)

    # ------------------------------------------------------------------ missing segments

    def report_missing_segments(self, orphans: Sequence[str], end_offset: int) -> None:
        """Report the indexes ``orphans``, whose segments are missing, and the lost records."""
        lost = [
            base for base, named in sorted(self._missing.items()) if not self._is_over(base, named)
        ]
        for name in orphans:
            if int(name[:20]) not in lost:
                self.recovered("the index has no segment and is ignored", name)
        for base in lost:
            after, named = self._after(base), self._missing[base]
            known = "no segment follows"
            if after is not None:
                known = f"the next segment begins at offset {after}"
            end = named + 1 if after is None else after
            gone = missing(
                base, EndEvidence(end, f"the segment's indexes contain offset {named}, and {known}")
            )
            is_last = not any(other > base for other in self._bases)
            remedy = recovery_end_offset(end_offset, self._log_start) if is_last else RESTORE
            path = self.log_path(base)
            self.damaged(f"the segment's file is missing: {gone}", path, remedy=remedy)

    def _is_over(self, base: int, named: int) -> bool:
        """Whether a segment without ``.log`` file was deleted by a broker, so no record is lost.

        This is so if its records are below the log start, or if a cleaner merged them into the
        segment before.
        """
        after = self._after(base)
        if (named + 1 if after is None else after) <= self._log_start:
            return True
        before = max((other for other in self._bases if other < base), default=None)
        if before is None:
            return False
        index = self.path_of(segment_file_name(before, KafkaFileKind.INDEX))
        return end_offset_of(self.log_path(before), index, before) > named

    def _after(self, base: int) -> int | None:
        """The next segment's base offset, even if its file is missing. None for the last."""
        return min(
            (other for other in (*self._bases, *self._missing) if other > base), default=None
        )
