"""A disk that loses power: what a run did to it, and the states in which a cut may leave it.

``Recorder`` stands in for the fault points of ``storage.files`` while a run goes on. At each of
them, and at each sync, it looks at every file and folder below a place and notes what changed
since. So whatever a run writes is seen, by whichever handle or mapping; and a *name* that changed
without its operation passing a fault point is told of (``Journal.strays``).

``Journal.state`` is what the disk may hold when the power fails before an event of that journal.
What was synced is there. Of the rest:

- *names*: an operation (a rename is one, an exchange too) is there whole or not at all. Which may
  be there without which is the profile's, ``PROFILES``.
- *bytes*: of each piece of a file as large as a sector one of those that were written to it since
  the last sync, or what was there at that; a file that grew has any size between, and where the
  profile says so pieces of zeros; a file that was never synced may be empty. The time of
  modification is that of any of those moments.

A profile allows at least what its file system does, and more where that is simpler to say:

========= ==========================================
============================================================
profile   names                                      bytes
========= ==========================================
============================================================
``ext4``  one journal: a prefix of all operations;   a file that grew has what was written up to its
                                                     size
          a sync of a file or folder takes along     (``data=ordered``), even where it was renamed
                                                     over another
          all up to the last that touched it         (``noauto_da_alloc``)
``xfs``   as ext4: one log                           pieces of zeros too, up to any size: the size
                                                     may be there
                                                     before the data
``apfs``  of each folder a prefix, folders apart     as xfs
          from each other; a sync of a file keeps
          no name, one of a folder its own names
          and not the folder's name
``loose`` any subset in which what built upon        as xfs
          something has that too (the same name or
          the same file); syncs as with apfs.
          No file system that we know is so loose;
          only what is said to bear it is held
          against it
========= ==========================================
============================================================

Not covered: a disk or a controller that says synced and is not; bytes that rot; a sector torn in
itself; network file systems; what other processes write.
"""

from __future__ import annotations

import os
import pickle
import random
import signal
import stat
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints

SECTOR_BYTES = 512
PROFILES = ("ext4", "xfs", "apfs", "loose")
_UNHEARD = ("lock",)  # made by the lock module past the fault points: nothing rests on it


@dataclass(slots=True)
class Content:
    """A file as it lies there at some moment; of a symbolic link ``target`` alone."""

    data: bytes = b""
    mtime_ns: int = 0
    mode: int = 0o644
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Name:
    """One name that an operation changed: what it led to before and after, as numbers of nodes."""

    folder: int
    name: str
    before: int | None
    after: int | None


@dataclass(slots=True)
class Event:
    """What happened: names changed, a file's bytes did, or a file or folder was synced."""

    operation: str
    names: tuple[Name, ...] = ()
    made: dict[int, Content | None] = field(
        default_factory=dict
    )  # nodes that are new; None: a folder
    node: int = 0  # whose bytes changed, or what was synced
    content: Content | None = None
    is_sync: bool = False


@dataclass(slots=True)
class State:
    """What the disk holds after a cut."""

    root: int
    folders: dict[int, dict[str, int]]
    contents: dict[int, Content]

    def materialise(self, place: Path) -> None:
        """Write it below ``place``, which is not there yet."""
        made: dict[int, str] = {}

        def fill(node: int, path: str) -> None:
            os.mkdir(path)
            for name, below in sorted(self.folders[node].items()):
                here = os.path.join(path, name)
                if below in self.folders:
                    fill(below, here)
                elif below in made:
                    os.link(made[below], here)
                else:
                    made[below] = here
                    _write(self.contents[below], here)

        fill(self.root, str(place))

    def key(self) -> Hashable:
        """The same for states that look the same."""

        def of(node: int) -> Hashable:
            if node in self.folders:
                return tuple(
                    (name, of(below)) for name, below in sorted(self.folders[node].items())
                )
            found = self.contents[node]
            return found.data, found.mtime_ns, found.mode, found.target

        return of(self.root)


def _write(content: Content, path: str) -> None:
    if content.target is not None:
        os.symlink(content.target, path)
        return
    with open(path, "wb", buffering=0) as file:
        file.write(content.data)
        os.fchmod(file.fileno(), content.mode)
        os.utime(file.fileno(), ns=(content.mtime_ns, content.mtime_ns))


# ---------------------------------------------------------------------- recording


class Recorder(FaultPoints):
    """Fault points that stop nothing and note everything below ``place``."""

    def __init__(self, place: Path, former: Journal | None = None) -> None:
        super().__init__(1 << 30)
        self._place = str(place)
        self._root = os.stat(place).st_ino
        self._held: dict[
            int, int
        ] = {}  # handles of all nodes ever seen, so that no number is given twice
        self._pending = ("", "")
        self._death: tuple[int, Path] | None = None
        self.folders: dict[int, dict[str, int]] = {}
        self.contents: dict[int, Content] = {}
        self.events: list[Event] = [] if former is None else former.events
        self.strays: list[str] = []
        self.operations: list[tuple[str, str]] = []
        self._look(is_first=True)
        self._first = (
            former.first
            if former is not None
            else State(
                self._root,
                {node: dict(names) for node, names in self.folders.items()},
                dict(self.contents),
            )
        )

    def reach(self, operation: str, path: str) -> None:
        super().reach(operation, path)
        self._look()
        self._pending = (operation, path)
        self.operations.append((operation, os.path.basename(path)))
        if self._death is not None and self.passed == self._death[0]:
            self._death[1].write_bytes(pickle.dumps(self.end()))
            os.kill(os.getpid(), signal.SIGKILL)

    def die(self, point: int, told: Path) -> None:
        """Kill this process before operation ``point``; the journal so far goes to the file
        ``told``.
        """
        self._death = point, told

    def synced(self, handle: int) -> None:
        self._look()
        node = os.fstat(handle).st_ino
        if node in self.folders or node in self.contents:
            self.events.append(Event("sync", node=node, is_sync=True))

    def end(self) -> Journal:
        """The run is over."""
        self._look()
        for handle in self._held.values():
            os.close(handle)
        return Journal(self._first, self.events, self.strays, self.operations)

    def _look(self, is_first: bool = False) -> None:
        """Note what is other than at the last look."""
        folders: dict[int, dict[str, int]] = {}
        found: dict[int, Content] = {}
        self._walk(self._place, self._root, folders, found)
        if is_first:
            self.folders, self.contents = folders, found
            return
        names = [
            Name(node, name, old.get(name), new.get(name))
            for node in dict.fromkeys((*self.folders, *folders))
            for old, new in [(self.folders.get(node, {}), folders.get(node, {}))]
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name) and (node in folders or self._is_gone_whole(node))
        ]
        if names:
            self._judge(names, folders)
            made: dict[int, Content | None] = {
                node: Content(
                    mode=found[node].mode, mtime_ns=found[node].mtime_ns, target=found[node].target
                )
                for node in found
                if node not in self.contents
            }
            made |= {node: None for node in folders if node not in self.folders}
            self.events.append(Event(self._pending[0], names=tuple(names), made=made))
        for node, now in found.items():
            before = self.contents.get(node)
            if before is None:
                before = Content(mode=now.mode, mtime_ns=now.mtime_ns, target=now.target)
            if now != before:
                self.events.append(Event(self._pending[0], node=node, content=now))
        # What has lost its last name is kept: the cut may give it back.
        self.folders = {**self.folders, **folders}
        for node in self.folders.keys() - folders.keys():
            self.folders[node] = {}
        self.contents |= found

    def _is_gone_whole(self, node: int) -> bool:
        return bool(self.folders.get(node))

    def _judge(self, names: list[Name], folders: dict[int, dict[str, int]]) -> None:
        operation, path = self._pending
        most = {"rename": 2, "exchange": 2}.get(operation, 1)
        shown = [name for name in names if not name.name.endswith(_UNHEARD)]
        wanted = os.path.basename(path)
        if shown and (len(shown) > most or wanted not in {name.name for name in shown}):
            self.strays.append(
                f"{operation} {path}: {[(name.name, name.before, name.after) for name in shown]}"
            )

    def _walk(
        self, path: str, node: int, folders: dict[int, dict[str, int]], found: dict[int, Content]
    ) -> None:
        names = folders[node] = {}
        with os.scandir(path) as entries:
            for entry in entries:
                seen = entry.stat(follow_symlinks=False)
                below = seen.st_ino
                names[entry.name] = below
                if entry.is_symlink():
                    found[below] = Content(target=os.readlink(entry.path), mode=0o777)
                    continue
                if entry.name.endswith(_UNHEARD):  # a handle more may end or forbid a lock
                    found[below] = Content(mode=stat.S_IMODE(seen.st_mode))
                    continue
                if below not in self._held:
                    self._held[below] = os.open(entry.path, os.O_RDONLY)
                if entry.is_dir():
                    self._walk(entry.path, below, folders, found)
                elif below not in found:
                    data = os.pread(self._held[below], seen.st_size, 0)
                    known = self.contents.get(below)
                    if known is not None and known.data == data:
                        data = known.data  # one object for all versions that are the same
                    found[below] = Content(data, seen.st_mtime_ns, stat.S_IMODE(seen.st_mode))


@contextmanager
def recorded(place: Path, former: Journal | None = None) -> Iterator[list[Journal]]:
    """Record what the body does below ``place``, behind what ``former`` has; the list has the
    journal afterwards.
    """
    journals: list[Journal] = []
    recorder = Recorder(place, former)
    files.faults = recorder
    try:
        yield journals
    finally:
        files.faults = FaultPoints()
        journals.append(recorder.end())


def record(place: Path, action: Callable[[], object], former: Journal | None = None) -> Journal:
    """What ``action`` does below ``place``, behind what ``former`` has."""
    with recorded(place, former) as journals:
        action()
    return journals[0]


def record_killed(place: Path, action: Callable[[], object], point: int) -> Journal | None:
    """What ``action`` does below ``place`` in a process that is killed before operation ``point``
    and what it does when it is called again; all of it is as little synced as it was. None: it has
    fewer operations.
    """
    told = place.with_name("journal")
    told.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            recorder = Recorder(place)
            recorder.die(point, told)
            files.faults = recorder
            action()
        except BaseException as error:
            print(f"in the child: {error!r}", flush=True)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
        return None
    former: Journal = pickle.loads(told.read_bytes())
    return record(place, action, former)


# ---------------------------------------------------------------------- the cut


@dataclass(slots=True)
class Journal:
    """What lay there, which is all durable, and what a run did."""

    first: State
    events: list[Event]
    strays: list[str]  # names that changed past the fault points
    operations: list[
        tuple[str, str]
    ]  # of this process: what came next at each fault point, and the file's bare name

    def state(self, cut: int, profile: str, rng: random.Random) -> State:
        """A state in which a cut before event ``cut`` may leave the disk; ``len(events)``: after
        the run.
        """
        return self._state(cut, profile, rng, rng.choice((0.0, 0.03, 0.15, 0.5, 1.0)))

    def least(self, cut: int, profile: str) -> State:
        """The state in which nothing is there that nobody synced."""
        return self._state(cut, profile, None, 1.0)

    def _state(self, cut: int, profile: str, rng: random.Random | None, loss: float) -> State:
        events = self.events[:cut]
        kept = self._kept(events, profile, rng or random.Random(0), loss)
        folders = {node: dict(names) for node, names in self.first.folders.items()}
        for place, event in enumerate(events):
            for node, content in event.made.items():
                if content is None:
                    folders.setdefault(node, {})
            if not event.names or place not in kept:
                continue
            for change in event.names:
                if change.after is None:
                    folders.setdefault(change.folder, {}).pop(change.name, None)
                else:
                    folders.setdefault(change.folder, {})[change.name] = change.after
        contents = {node: self._content(node, events, profile, rng) for node in self._files(events)}
        return State(self.first.root, folders, contents)

    def _files(self, events: list[Event]) -> list[int]:
        made = [
            node for event in events for node, content in event.made.items() if content is not None
        ]
        return list(dict.fromkeys((*self.first.contents, *made)))

    def _kept(self, events: list[Event], profile: str, rng: random.Random, loss: float) -> set[int]:
        """Which operations on names are there; ``loss``: how likely one is not that need not be."""
        must: set[int] = set()
        needed: set[Hashable] = (
            set()
        )  # keys: what touches one of them, and lies before, has to be there
        synced: set[int] = set()  # nodes
        is_one_log = profile in ("ext4", "xfs")
        for place in range(len(events) - 1, -1, -1):
            event = events[place]
            if event.is_sync:
                synced.add(event.node)
            if not event.names:
                continue
            touched = {name.folder for name in event.names}
            if is_one_log:
                touched |= {
                    node
                    for name in event.names
                    for node in (name.before, name.after)
                    if node is not None
                }
            keys = _keys(event, profile)
            if touched & synced or keys & needed:
                must.add(place)
                needed |= keys
        stopped: set[Hashable] = set()
        kept = set(must)
        for place, event in enumerate(events):
            if event.names and place not in must:
                keys = _keys(event, profile)
                if keys & stopped or rng.random() < loss:
                    stopped |= keys
                else:
                    kept.add(place)
        return kept

    def _content(
        self, node: int, events: list[Event], profile: str, rng: random.Random | None
    ) -> Content:
        versions = [self.first.contents[node]] if node in self.first.contents else []
        for event in events:
            made = event.made.get(node)
            if made is not None:
                versions = [made]
            elif event.is_sync and event.node == node:
                versions = versions[-1:]
            elif event.node == node and event.content is not None:
                versions.append(event.content)
        if len(versions) == 1 or versions[0].target is not None or rng is None:
            return versions[0]
        return _torn(versions, profile, rng)


def _keys(event: Event, profile: str) -> set[Hashable]:
    """An operation waits for those before it that share a key with it."""
    if profile in ("ext4", "xfs"):
        return {"journal"}
    found: set[Hashable] = {name.folder for name in event.names}
    if profile == "apfs":
        return found
    nodes = {node for name in event.names for node in (name.before, name.after) if node is not None}
    return {*((name.folder, name.name) for name in event.names), *nodes}


def _torn(versions: list[Content], profile: str, rng: random.Random) -> Content:
    """A mixture of a file's versions, of which the first is durable and none of the others need
    be.
    """
    style = rng.random()
    if style < 0.2:
        return versions[0]
    if style < 0.4:
        return versions[-1]
    durable, newest = len(versions[0].data), rng.choice(versions[1:])
    size = rng.choice((durable, len(newest.data)))
    if len(newest.data) > durable and rng.random() < 0.5:
        size = rng.randint(durable, len(newest.data))
        size -= size % SECTOR_BYTES
        size = max(size, durable)
    usable = versions[: versions.index(newest) + 1]
    has_zeros = profile != "ext4"
    pieces = []
    for at in range(0, size, SECTOR_BYTES):
        end = min(at + SECTOR_BYTES, size)
        source = newest if at >= durable and not has_zeros else rng.choice(usable)
        pieces.append(source.data[at:end].ljust(end - at, b"\0"))
    dated = rng.choice(usable)
    return Content(b"".join(pieces), dated.mtime_ns, dated.mode)
