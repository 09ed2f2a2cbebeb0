"""The state of a partition's folder after a crash, and its repair.

A commit (see ``store.commit``) goes through these states, and a crash may leave any of them::

    ….cleaned               new files are being written                       the old log is valid
    some .swap, .cleaned    new files are renamed, highest base offset first  the old log is valid
    all .swap               old files are removed, new ones get their names   the new log is valid

Kafka's loader distinguishes the states only by file names. It deletes every ``.swap`` at or above
the lowest ``.cleaned``. The remaining ``.swap`` files replace all files with a number from the
lowest ``.swap`` to the last offset in them. Lastwrite does the same with files of a broker's
cleaner.

Lastwrite's commits also write a note, the *intent*. It has the old and new segments, and the new
first dirty offset. After all new files are ``.swap``, and before an old file is renamed, the note
is renamed. With the note, recovery can also remove old segments after the last new record, and
write the checkpoint. So the result is the same as without a crash. The note's name ends in
``.deleted``, so Kafka's loader, which does not need the note, deletes it.

Source: Kafka 4.4 ``LogLoader``; docs/decisions/one-swap-a-round.md; docs/formats/kafka-cleaning.md,
"Loading a log".
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from lastwrite.encoding.json_structs import convert_struct
from lastwrite.kafka.format.names import (
    SEGMENT_KINDS,
    KafkaFileKind,
    Suffix,
    classify,
    segment_file_name,
)
from lastwrite.kafka.recovery.walking import end_offset_of
from lastwrite.storage import files
from lastwrite.storage.parallel_sync import Steps

_UNDER_WAY = (Suffix.CLEANED, Suffix.SWAP, Suffix.DELETED)
_INTENT = re.compile(r"[0-9]{20}\.(?P<state>commit|decided)\.deleted")
# format versions of the note: for one folder (earlier releases), for several folders
_ONE, _MANY = 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The plan of a commit. Segments are given by their base offsets, ascending."""

    first_dirty_offset: int  # new first dirty offset in the checkpoint
    outputs: tuple[int, ...]  # base offsets of the new segments
    sources: tuple[int, ...]  # base offsets of the old segments, which are all replaced
    kept: tuple[int, ...]  # unchanged segments between old ones; their new files are hard links
    # the ``.swap`` names of all new files; once the last of these files exists, the commit is valid
    swaps: tuple[str, ...]
    # the names in ``swaps`` of empty files, which replace old files without a successor
    stand_ins: tuple[str, ...]

    @property
    def vanished(self) -> list[int]:
        """The base offsets of old segments at which no new segment begins."""
        return [base for base in self.sources if base not in self.outputs]


def intent_file(intent: Intent, *, is_decided: bool = False) -> str:
    """The file name of the note. ``is_decided`` means that the new log is valid."""
    return f"{intent.sources[0]:020d}.{'decided' if is_decided else 'commit'}{Suffix.DELETED}"


def is_intent(name: str) -> bool:
    return name.endswith(Suffix.DELETED) and _INTENT.fullmatch(name) is not None


def encode_intents(intents: Mapping[str, Intent]) -> bytes:
    """Encode the note of simultaneous commits. ``intents`` has one intent per folder name."""
    folders = {
        name: {field.name: getattr(intent, field.name) for field in dataclasses.fields(Intent)}
        for name, intent in intents.items()
    }
    return json.dumps({"version": _MANY, "folders": folders}).encode()


def decode_intent(text: bytes, folder_name: str) -> Intent | None:
    """Decode the planned commit of one folder from a note.

    None if a crash left the note incomplete.
    """
    try:
        fields = json.loads(text)
        version = fields["version"]
        if version not in (_ONE, _MANY):
            return None
        fields = fields["folders"][folder_name] if version == _MANY else fields
        return convert_struct(fields, Intent)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class CrashState:
    """The recovery steps for a folder after a crash.

    After these steps, the folder has only files of the log.
    """

    doomed: tuple[str, ...]  # files to remove, in this order
    renames: tuple[tuple[str, str], ...]  # (old name, new name), in this order, after the removals
    intent: Intent | None = None  # the plan of a commit that must be finished

    @property
    def is_settled(self) -> bool:
        return not self.doomed and not self.renames and self.intent is None

    def live(self, names: Iterable[str]) -> dict[str, str]:
        """Maps the final name of every file of the log to the file's current name."""
        removed = {*self.doomed, *(source for source, _ in self.renames)}
        return {
            **{name: name for name in names if name not in removed},
            **{target: source for source, target in self.renames},
        }


_SETTLED = CrashState((), ())


def crash_state(folder: str, names: Iterable[str]) -> CrashState:
    """The recovery steps for ``folder``, whose files are ``names``. Changes nothing."""
    names = sorted(names)
    found = {name: classify(name) for name in names if name.endswith(_UNDER_WAY)}
    if not found:
        return _SETTLED
    notes = [name for name in found if is_intent(name)]
    swaps = [name for name in found if found[name].suffix is Suffix.SWAP]
    cleaned = [name for name in found if found[name].suffix is Suffix.CLEANED]
    deleted = [
        name
        for name in found
        if found[name].suffix is Suffix.DELETED
        and found[name].kind is not KafkaFileKind.METADATA_SNAPSHOT
    ]
    intent, is_decided = _read_intent(folder, notes)
    if intent is not None:
        # The note is renamed before the first old file. If it is not renamed yet, the commit is
        # valid only if all new files are .swap. Otherwise the commit is undone.
        if is_decided or all(swap in found for swap in intent.swaps):
            doomed, renames = _outcome(intent, names, swaps)
            return CrashState((*doomed, *cleaned, *deleted, *notes), renames, intent)
        # Undo the commit, and remove the note first. Without the note, Kafka's rule applies: the
        # old log is valid while there are both .swap and .cleaned files.
        return CrashState((*notes, *reversed(swaps), *cleaned, *deleted), ())
    lowest = min((_offset(name) for name in cleaned), default=None)
    lost = [name for name in swaps if lowest is not None and _offset(name) >= lowest]
    finished = [name for name in swaps if name not in lost]
    doomed = [*notes, *deleted, *reversed(lost), *cleaned]
    logs = [name for name in finished if found[name].kind is KafkaFileKind.LOG]
    if logs:
        first = _offset(logs[0])
        end = max(
            end_offset_of(
                os.path.join(folder, log),
                os.path.join(
                    folder, segment_file_name(_offset(log), KafkaFileKind.INDEX, Suffix.SWAP)
                ),
                _offset(log),
            )
            for log in logs
        )
        old = [(name, classify(name)) for name in names]
        doomed += [
            name
            for name, file in old
            if file.suffix is Suffix.LIVE
            and file.offset is not None
            and file.kind is not KafkaFileKind.METADATA_SNAPSHOT
            and first <= file.offset < end
        ]
    # A segment's log is renamed before its indexes: the loader removes an index without a log, but
    # keeps a log without an index.
    finished.sort(key=lambda name: (_offset(name), SEGMENT_KINDS.index(found[name].kind)))
    return CrashState(
        tuple(doomed), tuple((name, name.removesuffix(Suffix.SWAP)) for name in finished)
    )


def _offset(name: str) -> int:
    return int(name[:20])


def _read_intent(folder: str, notes: list[str]) -> tuple[Intent | None, bool]:
    """The planned commit in the first complete note, and whether its name contains ``decided``."""
    for name in notes:
        with open(os.path.join(folder, name), "rb") as file:
            intent = decode_intent(file.read(), os.path.basename(os.path.abspath(folder)))
        if intent is not None:
            return intent, ".decided." in name
    return None, False


def _outcome(
    intent: Intent, names: list[str], swaps: list[str]
) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """The steps that finish a commit: the files of ``names`` to remove, and the renames."""
    present = set(names)
    removed = [name for _, name in _replaced(intent, present)]
    removed += [name for name in map(_snapshot, intent.vanished) if name in present]
    removed += [name for name in swaps if name in intent.stand_ins]
    renames = [
        (name, name.removesuffix(Suffix.SWAP)) for name in swaps if name not in intent.stand_ins
    ]
    return removed, tuple(renames)


def _snapshot(base: int) -> str:
    return segment_file_name(base, KafkaFileKind.SNAPSHOT)


def _replaced(intent: Intent, present: set[str]) -> list[tuple[int, str]]:
    """The files of old segments that are still to be renamed: (base offset, name), ascending.

    A file with the final name is old if the new file of this name is still a ``.swap``, or if there
    is no new file of this name.
    """
    found = []
    successors = {*intent.swaps} - {*intent.stand_ins}
    for base in sorted((*intent.sources, *intent.kept)):
        for kind in SEGMENT_KINDS:
            name = segment_file_name(base, kind)
            swap = name + Suffix.SWAP
            if name in present and (swap not in successors or swap in present):
                found.append((base, name))
    return found


def finish_swap(folder: str, intent: Intent) -> Steps:
    """The steps that finish a commit after every new file is a ``.swap``.

    The steps can be repeated after a crash at any point. The note stays, and the old files get the
    suffix ``.deleted``. After a crash before the checkpoint is written or ``remove_leftovers`` has
    run, recovery finishes the commit.
    """

    def place(name: str) -> str:
        return f"{folder}/{name}"

    sync_folder = partial(files.fsync_dir, folder)
    present = set(os.listdir(folder))
    if intent_file(intent) in present:
        # Every new file must be durable as a .swap before the first old file is renamed.
        yield [sync_folder]
        files.rename(place(intent_file(intent)), place(intent_file(intent, is_decided=True)))
    for _, name in _replaced(intent, present):
        files.rename(place(name), place(name + Suffix.DELETED))
    # Sync before a new file loses its .swap suffix. Otherwise a power cut after that rename could
    # restore the old segment's name.
    yield [sync_folder]
    swaps = [name for name in present if classify(name).suffix is Suffix.SWAP]
    swaps.sort(key=lambda name: (_offset(name), SEGMENT_KINDS.index(classify(name).kind)))
    for name in swaps:
        if name in intent.stand_ins:
            files.unlink(place(name))
    for name in swaps:
        if name not in intent.stand_ins:
            files.rename(place(name), place(name.removesuffix(Suffix.SWAP)))
    yield [sync_folder]
    for name in map(_snapshot, intent.vanished):
        if name in present:
            files.rename(place(name), place(name + Suffix.DELETED))


def remove_leftovers(folder: str) -> Steps:
    """The steps that remove deleted and unfinished files, and afterwards the notes of commits.

    The folder need not be synced: if a power cut restores a file, the file still has its suffix,
    and the next run removes it.
    """
    names = sorted(name for name in os.listdir(folder) if name.endswith(_UNDER_WAY))
    leftovers = [name for name in names if _is_leftover(name) and not is_intent(name)]
    yield [partial(files.unlink, f"{folder}/{name}") for name in leftovers]
    for name in filter(is_intent, names):
        files.unlink(f"{folder}/{name}")


def _is_leftover(name: str) -> bool:
    file = classify(name)
    return (
        file.suffix in (Suffix.CLEANED, Suffix.DELETED)
        and file.kind is not KafkaFileKind.METADATA_SNAPSHOT
    )


def orphans(names: Iterable[str]) -> list[str]:
    """The index files among ``names`` without a segment. A broker removes them at start.

    Offsets in such an index belong to records that once existed. Unless retention or compaction
    removed them, the segment's file is lost.
    """
    found = [(name, classify(name)) for name in names]
    live = [(name, file) for name, file in found if file.suffix is Suffix.LIVE]
    logs = {file.offset for _, file in live if file.kind is KafkaFileKind.LOG}
    return sorted(
        name
        for name, file in live
        if file.offset is not None and file.offset not in logs and file.kind in SEGMENT_KINDS
    )


def orphans_being_deleted(names: Iterable[str]) -> list[str]:
    """The index files of segments that are being deleted: the ``.log`` is already ``.deleted``."""
    present = {*names}
    if not any(name.endswith(Suffix.DELETED) for name in present):
        return []
    return [
        name
        for name in orphans(present)
        if segment_file_name(_offset(name), KafkaFileKind.LOG, Suffix.DELETED) in present
    ]


def remove_orphans(folder: str, names: Sequence[str]) -> None:
    """Remove the files ``names`` from ``folder``, and sync the folder."""
    for name in names:
        files.unlink(os.path.join(folder, name))
    if names:
        files.fsync_dir(folder)


def undo_or_end(folder: str, state: CrashState) -> None:
    """Carry out the recovery steps in ``state``: remove and rename files of ``folder``.

    Does not finish a commit, so ``state.intent`` must be None.
    """
    for name in state.doomed:
        files.unlink(os.path.join(folder, name))
        if is_intent(name):
            files.fsync_dir(folder)
    files.fsync_dir(folder)
    for source, target in state.renames:
        files.rename(os.path.join(folder, source), os.path.join(folder, target))
    if state.renames:
        files.fsync_dir(folder)
