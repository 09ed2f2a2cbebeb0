"""Small compaction trees of a RocketMQ store, and rounds over them, for tests of the publication.

The election does not matter here. A ``Layout`` states the offsets in each file before and after the
round. ``load_like_broker`` returns what a broker would serve of a state. The records are complete,
so that a real broker can load them, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format.names import file_name, log_sizes
from lastwrite.rocketmq.format.record import (
    decode_message,
    encode_blank,
    encode_message,
    make_message,
)
from lastwrite.rocketmq.format.sides import decode_positions, encode_positions
from lastwrite.rocketmq.format.units import BATCH_UNIT, END_UNIT, batch_units, valid_count
from lastwrite.rocketmq.store import lock, publish
from lastwrite.rocketmq.store.positions import read_positions
from lastwrite.rocketmq.store.publish import Pair, QueueChange
from lastwrite.storage import files

CLOCK_MS = 1_700_000_000_000
SETTINGS = {"compactionMappedFileSize": 5060, "compactionCqMappedFileSize": 1024}
LOG_BYTES, INDEX_BYTES = log_sizes(5060, 1024)

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u_1", 0)

Files = Mapping[int, list[int]]  # the offsets in each file, by the file's number in the queue


@dataclass(frozen=True)
class Layout:
    """Queues before a round, and the changed queues after it.

    The last file of each is the active one.
    """

    name: str
    before: dict[TopicPartition, Files]
    after: dict[TopicPartition, Files]
    positions: dict[TopicPartition, int]  # before the round
    further: dict[TopicPartition, int]  # the positions that the round sets
    # additional changes of the store before the round
    harm: list[Callable[[Path], None]] = field(default_factory=list)

    @property
    def old(self) -> dict[TopicPartition, list[int]]:
        return {name: _offsets(queue) for name, queue in self.before.items()}

    @property
    def new(self) -> dict[TopicPartition, list[int]]:
        return {**self.old, **{name: _offsets(queue) for name, queue in self.after.items()}}

    @property
    def new_positions(self) -> dict[TopicPartition, int]:
        return {**self.positions, **self.further}


def _offsets(queue: Files) -> list[int]:
    return [offset for _, inside in sorted(queue.items()) for offset in inside]


def _put(path: str, content: bytes) -> Callable[[Path], None]:
    def harm(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)

    return harm


def _link_away(root: Path) -> None:
    (root / "compaction").rename(root / "elsewhere")
    (root / "compaction").symlink_to("elsewhere")


LAYOUTS = [
    Layout(
        "a file shrinks, one goes, the active one stays",
        {T0: {0: [0, 1, 2, 3], 1: [4, 5], 2: [6, 7, 8], 3: [9]}},
        {T0: {0: [1, 3], 2: [6, 7, 8], 3: [9]}},
        {T0: 3},
        {T0: 8},
    ),
    Layout(
        "two queues and a neighbour, without positions before",
        {T0: {0: [0, 1], 1: [2]}, T1: {0: [0, 1, 2], 2: [3], 5: [4, 5]}, U0: {0: [7], 1: [8]}},
        {T0: {0: [1], 1: [2]}, T1: {2: [3], 5: [4, 5]}},
        {},
        {T0: 1, T1: 3},
    ),
    Layout(
        "repacked as by a broker",
        {T0: {0: [0, 1, 2], 1: [3, 4], 2: [5, 6], 3: [7]}, U0: {0: [1]}},
        {T0: {0: [0, 3, 5, 6], 3: [7]}},
        {T0: 2, U0: 0},
        {T0: 6},
    ),
    Layout(
        "the active file too",
        {T0: {0: [0, 1, 2], 1: [3, 4]}},
        {T0: {1: [4]}},
        {T0: 1},
        {T0: 4},
    ),
    Layout("positions alone", {T0: {0: [0, 1], 1: [2]}}, {}, {T0: 0, U0: 5}, {T0: 1}),
    Layout(
        "what a broker's own run left, and what nobody knows",
        {T0: {0: [0, 1], 1: [2]}, U0: {0: [3], 1: [4]}},
        {T0: {0: [1], 1: [2]}},
        {T0: -1},
        {T0: 1},
        [
            _put(f"compaction/compactionLog/t/0/compacting/{file_name(0)}", b"stale"),
            _put(f"compaction/compactionCq/t/0/compacting/{file_name(0)}", b"stale"),
            _put(f"compaction/compactionLog/u_1/0/compacting/{file_name(0)}", b"of another queue"),
            _put("compaction/compactionLog/t/plain", b"below the topic"),
            _put("compaction/note", b"in the tree"),
        ],
    ),
    Layout(
        "the tree is elsewhere",
        {T0: {0: [0, 1], 1: [2]}},
        {T0: {0: [1], 1: [2]}},
        {T0: -1},
        {T0: 1},
        [_link_away],
    ),
]


# ---------------------------------------------------------------------- writing


def record(name: TopicPartition, offset: int, address: int) -> bytes:
    key = f"k{offset % 7}"
    message = make_message(
        name.topic,
        b"body %d " % offset * 8,
        {"KEYS": key, "UNIQ_KEY": f"{offset:032X}"},
        queue_id=name.partition,
        queue_offset=offset,
        physical_offset=address,
        born_time_ms=CLOCK_MS,
        store_time_ms=CLOCK_MS + offset,
    )
    return encode_message(message)


def pair_of(
    name: TopicPartition, place: int, offsets: list[int], *, is_closed: bool
) -> tuple[bytes, bytes]:
    """The bytes of a log file and its index."""
    log, index = b"", b""
    for offset in offsets:
        address = place * LOG_BYTES + len(log)
        made = record(name, offset, address)
        index += BATCH_UNIT.pack(address, len(made), 0, CLOCK_MS + offset, offset, 1, -1, 0)
        log += made
    if is_closed:
        log, index = log + encode_blank(LOG_BYTES - len(log)), index + END_UNIT
    return log.ljust(LOG_BYTES, b"\0"), index.ljust(INDEX_BYTES, b"\0")


def write_layout(root: Path, layout: Layout) -> Path:
    """Write the store, and return ``root``."""
    for name, queue in layout.before.items():
        folders = [Path(folder) for folder in publish.queue_folders(str(root), name)]
        for folder in folders:
            folder.mkdir(parents=True)
        for place, offsets in queue.items():
            pair = pair_of(name, place, offsets, is_closed=place != max(queue))
            for folder, content in zip(folders, pair, strict=True):
                (folder / file_name(place * LOG_BYTES)).write_bytes(content)
    if layout.positions:
        named = {
            f"{name.topic}_{name.partition}": offset for name, offset in layout.positions.items()
        }
        (root / "compaction" / "position-checkpoint").write_bytes(encode_positions(named))
        (root / "compaction" / "position-checkpoint.bak").write_bytes(encode_positions({}))
    (root / "lock").write_bytes(b"lock")
    for harm in layout.harm:
        harm(root)
    return root


def changes(root: Path, layout: Layout) -> list[QueueChange]:
    """Write the new files to the staging folder as workers do."""
    made = []
    for name in dict.fromkeys([*layout.after, *layout.further]):
        before, after = layout.before[name], layout.after.get(name, layout.before[name])
        gone = [place for place in before if before[place] != after.get(place)]
        pairs = []
        for place in (place for place in after if before.get(place) != after[place]):
            folder = publish.staging_folder(str(root), name)
            paths = [
                os.path.join(folder, f"{file_name(place * LOG_BYTES)}.{kind}")
                for kind in ("log", "index")
            ]
            for path, content in zip(
                paths, pair_of(name, place, after[place], is_closed=False), strict=True
            ):
                files.write(path, content, is_synced=False)
            pairs.append(Pair(file_name(place * LOG_BYTES), *paths))
        names = [file_name(place * LOG_BYTES) for place in gone]
        made.append(
            QueueChange(name=name, removed=names, pairs=pairs, position=layout.further.get(name))
        )
    return made


def compact(root: Path, layout: Layout) -> None:
    """Recover the store from a crash, then run the round unless it was published already.

    Raises:
        LogError: The first error of a queue.
    """
    with lock.hold(str(root), layout.before):
        for name in layout.before:
            publish.recover(str(root), name)
        if positions_at(root) == layout.new_positions:
            return
        for error in publish.publish(str(root), changes(root, layout)):
            if error is not None:
                raise error
        publish.delete_replaced(str(root), [*layout.after])


def positions_at(root: Path) -> dict[TopicPartition, int]:
    """The positions that Lastwrite reads."""
    found = read_positions(str(root / "compaction"))
    return {_name_of(key): offset for key, offset in found.offsets.items()}


def _name_of(key: str) -> TopicPartition:
    topic, _, queue = key.rpartition("_")
    return TopicPartition(topic, int(queue))


# ---------------------------------------------------------------------- reading


def contents(root: Path) -> dict[str, bytes | None]:
    """Every file below the store by path, except for lock files. Folders have the content None."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
        if path.name != "lock"
    }


class DoesNotStart(Exception):
    """A broker would not start on the store."""


def load_like_broker(
    root: Path,
) -> tuple[dict[TopicPartition, list[int]], dict[TopicPartition, int]]:
    """The offsets of each queue that a broker would serve from 0 on, and the queues' positions.

    Uses no code of the package's store. Source: docs/formats/rocketmq-compaction.md.

    Raises:
        DoesNotStart: A file name is not a number, or log and index have different files.
    """
    tree = root / "compaction"
    served = {}
    for topic in sorted((tree / "compactionLog").iterdir()):
        if not topic.is_dir():
            continue
        for queue in sorted(topic.iterdir()):
            index = tree / "compactionCq" / topic.name / queue.name
            if index.is_dir():
                name = TopicPartition(topic.name, int(queue.name))
                served[name] = _served(name, _load(queue, LOG_BYTES), _load(index, INDEX_BYTES))
    positions: dict[str, int] = {}
    for file in ("position-checkpoint", "position-checkpoint.bak"):
        if (tree / file).is_file() and (tree / file).stat().st_size:
            positions = decode_positions((tree / file).read_bytes())
            break
    return served, {_name_of(key): offset for key, offset in positions.items()}


def _load(folder: Path, file_bytes: int) -> dict[int, bytes] | None:
    found = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if path.stat().st_size != file_bytes:
            return None  # a broker does not load the queue
        if not path.name.isdigit():
            raise DoesNotStart(path)
        found[int(path.name)] = path.read_bytes()
    return found


def _served(
    name: TopicPartition, logs: dict[int, bytes] | None, indexes: dict[int, bytes] | None
) -> list[int]:
    if logs is None or indexes is None:
        return []
    if logs.keys() != indexes.keys():
        raise DoesNotStart(name)
    found: list[int] = []
    for place, index in indexes.items():
        units = batch_units(index)
        count = valid_count(units)
        if not count:
            break
        for unit in units[:count]:
            message = decode_message(logs[place], int(unit["physical_offset"]) - place, LOG_BYTES)
            assert (message.queue_offset, message.queue_id) == (unit["base"], name.partition)
            assert message.topic_bytes == name.topic.encode()
            found.append(message.queue_offset)
    assert found == sorted(set(found)), "offsets rise"
    return found


def fresh(origin: Path, target: Path) -> Path:
    """Copy a store with its links. Returns ``target``."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(origin, target, symlinks=True)
    return target


__all__ = [
    "INDEX_BYTES",
    "LAYOUTS",
    "LOG_BYTES",
    "SETTINGS",
    "T0",
    "T1",
    "U0",
    "DoesNotStart",
    "Layout",
    "changes",
    "compact",
    "contents",
    "fresh",
    "load_like_broker",
    "pair_of",
    "positions_at",
    "write_layout",
]
