"""A model of a disk that loses power: the events of a run, and the states after a power failure.

``Recorder`` replaces the fault points of ``storage.files`` during a run. At each fault point and at
each sync it looks at every file and folder below a place, and records the changes. So it sees all
writes, by any handle or memory mapping. If a name changes without a fault point for its operation,
``Journal.strays`` reports it.

``Journal.state`` returns a state of the disk after a power failure before some event. Everything
synced survives. For the rest:

- Names: an operation, such as a rename or an exchange, survives completely or not at all. The
  profile (``PROFILES``) determines which operations may survive without which.
- Bytes: each sector of a file has the content of one of its versions since the last sync. A file
  that grew may have any size in between, and in some profiles sectors of zeros. A file that was
  never synced may be empty. The modification time is that of any of these versions.

A profile allows at least the states that its file system allows, and more if that is simpler.

``ext4``
    Names: one journal, so a prefix of all operations survives. A sync of a file or folder includes
    all operations up to the last one on it. Bytes: a file that grew has the bytes written up to its
    size (``data=ordered``), even if it was renamed over another file (``noauto_da_alloc``).
``xfs``
    Names: as ext4. Bytes: also sectors of zeros up to any size, because the size may be stored
    before the data.
``apfs``
    Names: a prefix of each folder's operations, independently of other folders. A sync of a file
    covers no name. A sync of a folder covers the names in it, but not its own name. Bytes: as xfs.
``loose``
    Names: any subset in which no operation survives without the earlier ones on the same name or
    file. Syncs as in apfs. Bytes: as xfs. No known file system allows this much, so only runs that
    must survive it are tested with it.

Not modelled: hardware that reports a sync too early, bytes that rot, sectors that are torn within
themselves, network file systems, and writes by other processes.
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
_UNHEARD = ("lock",)  # the lock file is created without a fault point, and no run depends on it


@dataclass(slots=True)
class Content:
    """The content of a file at some moment. A symbolic link only has a ``target``."""

    data: bytes = b""
    mtime_ns: int = 0
    mode: int = 0o644
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Name:
    """One directory entry that an operation changed, with the inodes before and after."""

    folder: int
    name: str
    before: int | None
    after: int | None


@dataclass(slots=True)
class Event:
    """A change of directory entries, a change of a file's bytes, or a sync."""

    operation: str
    names: tuple[Name, ...] = ()
    # New inodes. None stands for a folder.
    made: dict[int, Content | None] = field(default_factory=dict)
    node: int = 0  # inode whose bytes changed or that was synced
    content: Content | None = None
    is_sync: bool = False


@dataclass(slots=True)
class State:
    """The content of the disk after a power failure."""

    root: int
    folders: dict[int, dict[str, int]]
    contents: dict[int, Content]

    def materialise(self, place: Path) -> None:
        """Write the state to the new folder ``place``."""
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
        """A key that is equal for states with equal content."""

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
    """Fault points that stop nothing and record every change below ``place``."""

    def __init__(self, place: Path, former: Journal | None = None) -> None:
        super().__init__(1 << 30)
        self._place = str(place)
        self._root = os.stat(place).st_ino
        # Open handles of all inodes seen, so that no inode number is reused.
        self._held: dict[int, int] = {}
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
        """Kill this process before operation ``point``, after writing the journal to the file
        ``told``.
        """
        self._death = point, told

    def synced(self, handle: int) -> None:
        self._look()
        node = os.fstat(handle).st_ino
        if node in self.folders or node in self.contents:
            self.events.append(Event("sync", node=node, is_sync=True))

    def end(self) -> Journal:
        """End the recording and return its journal."""
        self._look()
        for handle in self._held.values():
            os.close(handle)
        return Journal(self._first, self.events, self.strays, self.operations)

    def _look(self, is_first: bool = False) -> None:
        """Record the differences from the previous look."""
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
        # Inodes without a name are kept, because a power failure may restore the name.
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
                # opening and closing the file could release a lock
                if entry.name.endswith(_UNHEARD):
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
                        data = known.data  # equal versions share one object
                    found[below] = Content(data, seen.st_mtime_ns, stat.S_IMODE(seen.st_mode))


@contextmanager
def recorded(place: Path, former: Journal | None = None) -> Iterator[list[Journal]]:
    """Record what the body does below ``place``, after the events of ``former``.

    The yielded list contains the journal afterwards.
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
    """Record what ``action`` does below ``place``, after the events of ``former``."""
    with recorded(place, former) as journals:
        action()
    return journals[0]


def record_killed(place: Path, action: Callable[[], object], point: int) -> Journal | None:
    """Record ``action`` in a process that is killed before operation ``point``, and a second run of
    it.

    The kill itself syncs nothing. Returns None if there are fewer operations.
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
    """The initial state of the disk, which is durable, and the events of a run."""

    first: State
    events: list[Event]
    strays: list[str]  # names that changed without a fault point
    # The operation and the file's bare name at each fault point of this process.
    operations: list[tuple[str, str]]

    def state(self, cut: int, profile: str, rng: random.Random) -> State:
        """A random state of the disk after a power failure before event ``cut``.

        With ``cut`` equal to ``len(events)`` it is a state after the run.
        """
        return self._state(cut, profile, rng, rng.choice((0.0, 0.03, 0.15, 0.5, 1.0)))

    def least(self, cut: int, profile: str) -> State:
        """The state in which everything unsynced is lost."""
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
        """The positions of the operations on names that survive.

        ``loss`` is the probability that an optional one is lost.
        """
        must: set[int] = set()
        # Keys of operations that must survive: earlier operations with one of them must survive,
        # too.
        needed: set[Hashable] = set()
        synced: set[int] = set()  # synced inodes
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
    """The keys of an operation. It survives only after all earlier operations that share one."""
    if profile in ("ext4", "xfs"):
        return {"journal"}
    found: set[Hashable] = {name.folder for name in event.names}
    if profile == "apfs":
        return found
    nodes = {node for name in event.names for node in (name.before, name.after) if node is not None}
    return {*((name.folder, name.name) for name in event.names), *nodes}


def _torn(versions: list[Content], profile: str, rng: random.Random) -> Content:
    """A random mixture of a file's versions. Only the first version is durable."""
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
