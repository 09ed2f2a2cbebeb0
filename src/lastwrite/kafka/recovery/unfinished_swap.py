"""What a partition's folder means after a crash, and how it is put in order.

A commit (see ``commit``) goes through these states, and a crash may leave any of them behind::

    ….cleaned               new files are being written                       the old log counts
    some .swap, .cleaned    they are being renamed, from the highest down     the old log counts
    all .swap               the old files go, then the new ones get names     the new log counts

Kafka's loader tells them apart by the names alone: it throws away every ``.swap`` at or above the
lowest ``.cleaned``; those that are left replace all files whose number lies from the lowest
``.swap`` to the end of the last one's records. We do the same with what a broker's own cleaner left
behind.

Our own commits leave a note beside the files, the *intent*, which says what replaces what and where
the dirty part begins after it; once all is ``.swap`` it is renamed, before any old file is. With it
recovery can do what names alone cannot: drop old segments behind the last new record, and write the
checkpoint, so that a run that was killed ends in the very bytes of one that was not. Its name ends
in ``.deleted``: Kafka's loader, which has no need of it, sweeps it away.

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
    FileKind,
    Suffix,
    classify,
    segment_file_name,
)
from lastwrite.kafka.recovery.walking import end_offset_of
from lastwrite.storage import files
from lastwrite.storage.parallel_sync import Steps

_UNDER_WAY = (Suffix.CLEANED, Suffix.SWAP, Suffix.DELETED)
_INTENT = re.compile(r"[0-9]{20}\.(?P<state>commit|decided)\.deleted")
_ONE, _MANY = 2, 3  # versions: of one folder, as earlier releases wrote them, and of several


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a commit is about to do; segments are named by their base offsets, ascending."""

    first_dirty_offset: int  # the checkpoint's new value
    outputs: tuple[int, ...]  # new segments
    sources: tuple[int, ...]  # old segments, all replaced
    kept: tuple[int, ...]  # untouched segments among them: they take part by a second name
    # the ``.swap`` names of all that takes part; with the last one it is decided
    swaps: tuple[str, ...]
    # those among them that are empty, for old files without successor, until these are gone
    stand_ins: tuple[str, ...]

    @property
    def vanished(self) -> list[int]:
        """Old segments of which nothing stays."""
        return [base for base in self.sources if base not in self.outputs]


def intent_file(intent: Intent, *, is_decided: bool = False) -> str:
    """The name of the note, before or after the new log counts."""
    return f"{intent.sources[0]:020d}.{'decided' if is_decided else 'commit'}{Suffix.DELETED}"


def is_intent(name: str) -> bool:
    return name.endswith(Suffix.DELETED) and _INTENT.fullmatch(name) is not None


def encode_intents(intents: Mapping[str, Intent]) -> bytes:
    """The note of commits that go side by side, by the names of their folders."""
    folders = {
        name: {field.name: getattr(intent, field.name) for field in dataclasses.fields(Intent)}
        for name, intent in intents.items()
    }
    return json.dumps({"version": _MANY, "folders": folders}).encode()


def decode_intent(text: bytes, folder_name: str) -> Intent | None:
    """What the note says of a folder; None where a crash cut it short."""
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
    """What would have to be done to a folder so that only live files are in it."""

    doomed: tuple[str, ...]  # to be removed, in this order
    renames: tuple[tuple[str, str], ...]  # from a name to another, in this order, after that
    intent: Intent | None = None  # of a commit that must be finished

    @property
    def is_settled(self) -> bool:
        return not self.doomed and not self.renames and self.intent is None

    def live(self, names: Iterable[str]) -> dict[str, str]:
        """Every file of the log by its proper name, with the name that it has now."""
        gone = {*self.doomed, *(source for source, _ in self.renames)}
        return {
            **{name: name for name in names if name not in gone},
            **{target: source for source, target in self.renames},
        }


_SETTLED = CrashState((), ())


def crash_state(folder: str, names: Iterable[str]) -> CrashState:
    """Say what recovery would do to ``folder``, whose files are ``names``; changes nothing."""
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
        and found[name].kind is not FileKind.METADATA_SNAPSHOT
    ]
    intent, is_decided = _read_intent(folder, notes)
    if intent is not None:
        # No old file loses its name before the note says so; until then all swaps are there, or it
        # is undone.
        if is_decided or all(swap in found for swap in intent.swaps):
            doomed, renames = _outcome(intent, names, swaps)
            return CrashState((*doomed, *cleaned, *deleted, *notes), renames, intent)
        # The note goes first: without it, and with swaps beside .cleaned, the old log counts by
        # Kafka's rule too.
        return CrashState((*notes, *reversed(swaps), *cleaned, *deleted), ())
    lowest = min((_offset(name) for name in cleaned), default=None)
    lost = [name for name in swaps if lowest is not None and _offset(name) >= lowest]
    finished = [name for name in swaps if name not in lost]
    doomed = [*notes, *deleted, *reversed(lost), *cleaned]
    logs = [name for name in finished if found[name].kind is FileKind.LOG]
    if logs:
        first = _offset(logs[0])
        end = max(
            end_offset_of(
                os.path.join(folder, log),
                os.path.join(folder, segment_file_name(_offset(log), FileKind.INDEX, Suffix.SWAP)),
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
            and file.kind is not FileKind.METADATA_SNAPSHOT
            and first <= file.offset < end
        ]
    # The log of a segment goes before its indexes: an index without a log is swept away, a log
    # without is not.
    finished.sort(key=lambda name: (_offset(name), SEGMENT_KINDS.index(found[name].kind)))
    return CrashState(
        tuple(doomed), tuple((name, name.removesuffix(Suffix.SWAP)) for name in finished)
    )


def _offset(name: str) -> int:
    return int(name[:20])


def _read_intent(folder: str, notes: list[str]) -> tuple[Intent | None, bool]:
    """The note that is whole, and whether it says that the new log counts."""
    for name in notes:
        with open(os.path.join(folder, name), "rb") as file:
            intent = decode_intent(file.read(), os.path.basename(os.path.abspath(folder)))
        if intent is not None:
            return intent, ".decided." in name
    return None, False


def _outcome(
    intent: Intent, names: list[str], swaps: list[str]
) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    """What ``finish_swap`` removes from among ``names``, and what it renames."""
    present = set(names)
    gone = [name for _, name in _replaced(intent, present)]
    gone += [name for name in map(_snapshot, intent.vanished) if name in present]
    gone += [name for name in swaps if name in intent.stand_ins]
    renames = [
        (name, name.removesuffix(Suffix.SWAP)) for name in swaps if name not in intent.stand_ins
    ]
    return gone, tuple(renames)


def _snapshot(base: int) -> str:
    return segment_file_name(base, FileKind.SNAPSHOT)


def _replaced(intent: Intent, present: set[str]) -> list[tuple[int, str]]:
    """Files of old segments that still bear their names, ascending, with their base offset.

    A file is an old one as long as its successor waits as ``.swap``, or if it has no successor at
    all.
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
    """The steps that bring a commit to where every new file has its name, from the moment on at
    which each is a ``.swap``. May be called again after it was stopped anywhere.

    The note stays, and with it the old files under the names that mark them deleted: until the
    checkpoint is written and ``remove_leftovers`` called, a crash leaves a commit that recovery
    finishes.
    """

    def place(name: str) -> str:
        return f"{folder}/{name}"

    sync_folder = partial(files.fsync_dir, folder)
    present = set(os.listdir(folder))
    if intent_file(intent) in present:
        # Every new file has to be a .swap for good before the first old one goes.
        yield [sync_folder]
        files.rename(place(intent_file(intent)), place(intent_file(intent, is_decided=True)))
    for _, name in _replaced(intent, present):
        files.rename(place(name), place(name + Suffix.DELETED))
    # No old segment may come back by a power cut once its successor has lost the name that tells of
    # it.
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
    """The steps that remove what is marked deleted or was never finished; the notes of commits
    last.

    The folder is not synced: what a power cut brings back is as dead as before, and the next run
    removes it again.
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
        and file.kind is not FileKind.METADATA_SNAPSHOT
    )


def orphans(names: Iterable[str]) -> list[str]:
    """Those of the files ``names`` that are indexes without their segment: a broker's start removes
    them.

    One that names offsets tells of records; unless these left the log before, the segment's file is
    lost.
    """
    found = [(name, classify(name)) for name in names]
    live = [(name, file) for name, file in found if file.suffix is Suffix.LIVE]
    logs = {file.offset for _, file in live if file.kind is FileKind.LOG}
    return sorted(
        name
        for name, file in live
        if file.offset is not None and file.offset not in logs and file.kind in SEGMENT_KINDS
    )


def going(names: Iterable[str]) -> list[str]:
    """The orphans whose segment a broker, or a round, is deleting: the log goes first."""
    present = {*names}
    if not any(name.endswith(Suffix.DELETED) for name in present):
        return []
    return [
        name
        for name in orphans(present)
        if segment_file_name(_offset(name), FileKind.LOG, Suffix.DELETED) in present
    ]


def remove_orphans(folder: str, names: Sequence[str]) -> None:
    """Remove the orphans ``names`` from ``folder``, for good."""
    for name in names:
        files.unlink(os.path.join(folder, name))
    if names:
        files.fsync_dir(folder)


def undo_or_end(folder: str, state: CrashState) -> None:
    """Do to ``folder`` what ``crash_state`` says of a swap that left no note."""
    for name in state.doomed:
        files.unlink(os.path.join(folder, name))
        if is_intent(name):
            files.fsync_dir(folder)
    files.fsync_dir(folder)
    for source, target in state.renames:
        files.rename(os.path.join(folder, source), os.path.join(folder, target))
    if state.renames:
        files.fsync_dir(folder)
