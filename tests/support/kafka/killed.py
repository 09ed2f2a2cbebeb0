"""What a killed broker leaves of a log: a partition with transactions, and every state of spec S.17, one by one."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lastwrite.formats.kafka.batch import ControlType, Record, encode_batch, encode_control_record
from lastwrite.formats.kafka.index import AbortedTransaction, encode_transaction_index
from tests.logs import write_checkpoint, write_segment

CLOCK_MS = 1_700_000_000_000
LATER_MS = CLOCK_MS + 10_000_000
EACH = 60  # records of a segment
BASES = [0, EACH, 2 * EACH, 3 * EACH]
ACTIVE = BASES[-1]
END = ACTIVE + 10
Harm = Callable[[Path], None]


def batch(offset: int) -> bytes:
    """One record; every 20th offset ends a transaction that began two offsets before, and every 40th aborts it."""
    phase, time_ms = offset % 20, CLOCK_MS + 1000 * offset
    if phase == 19:
        kind = ControlType.ABORT if offset % 40 == 19 else ControlType.COMMIT
        record = encode_control_record(offset, time_ms, kind)
        return encode_batch(
            [record], control=True, transactional=True, producer_id=7, producer_epoch=0
        )
    record = Record(offset, time_ms, b"k%d" % (offset % 17), b"%d " % offset * 20)
    if phase in (17, 18):
        sequence = offset // 20 * 2 + phase - 17
        return encode_batch(
            [record], transactional=True, producer_id=7, producer_epoch=0, base_sequence=sequence
        )
    return encode_batch([record])


def write_log(root: Path) -> Path:
    """Four segments of a broker that was killed; returns the partition's folder."""
    folder = root / "t-0"
    for base in BASES:
        offsets = range(base, END if base == ACTIVE else base + EACH)
        write_segment(folder, base, [batch(offset) for offset in offsets], 4096, CLOCK_MS + base)
        aborted = [AbortedTransaction(0, 7, o - 2, o, o + 1) for o in offsets if o % 40 == 19]
        if aborted:
            (folder / f"{base:020d}.txnindex").write_bytes(encode_transaction_index(aborted))
    for kind, entry in (("index", 8), ("timeindex", 12)):
        path = folder / f"{ACTIVE:020d}.{kind}"
        path.write_bytes(path.read_bytes().ljust(100 * entry, b"\0"))
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (root / "meta.properties").write_text("version=1\n")
    return folder


# ---------------------------------------------------------------------- what a crash leaves


def name(base: int, kind: str = "log") -> str:
    return f"{base:020d}.{kind}"


def position(base: int, offset: int) -> int:
    return sum(len(batch(o)) for o in range(base, offset))


def cut(base: int, offset: int, more: int) -> Harm:
    """The segment ends ``more`` bytes behind the begin of the batch at ``offset``."""
    return lambda folder: os.truncate(folder / name(base), position(base, offset) + more)


def add(file: str, content: bytes) -> Harm:
    def harm(folder: Path) -> None:
        with open(folder / file, "ab") as target:
            target.write(content)

    return harm


def put(file: str, content: bytes) -> Harm:
    return lambda folder: (folder / file).write_bytes(content) and None


def put_at(base: int, offset: int, at: int, content: bytes) -> Harm:
    """Bytes of the batch at ``offset`` are others."""

    def harm(folder: Path) -> None:
        with open(folder / name(base), "r+b") as target:
            target.seek(position(base, offset) + at)
            target.write(content)

    return harm


def remove(*files: str) -> Harm:
    def harm(folder: Path) -> None:
        for file in files:
            (folder / file).unlink()

    return harm


def preallocated(base: int) -> Harm:
    """Indexes that were filled up with zeros and never cut."""

    def harm(folder: Path) -> None:
        for kind, entry in (("index", 8), ("timeindex", 12)):
            path = folder / name(base, kind)
            path.write_bytes(path.read_bytes().ljust(100 * entry, b"\0"))

    return harm


def log_start(offset: int) -> Harm:
    return lambda folder: write_checkpoint(
        folder.parent, "log-start-offset-checkpoint", {"t-0": offset}
    )


def swapped(folder: Path) -> None:
    """Two segments are on their way to become one, as the broker's own cleaner leaves it in the middle."""
    whole = b"".join(batch(offset) for offset in range(2 * EACH) if offset % 3 or offset % 20 > 16)
    write_segment(folder / "made", 0, [whole[at:end] for at, end in _cuts(whole)])
    (folder / name(0, "txnindex.swap")).write_bytes(
        b"".join((folder / name(base, "txnindex")).read_bytes() for base in BASES[:2])
    )
    for kind in ("log", "index", "timeindex"):
        (folder / "made" / name(0, kind)).rename(folder / name(0, f"{kind}.swap"))
    shutil.rmtree(folder / "made")
    (folder / name(0)).rename(folder / name(0, "log.deleted"))


def _cuts(data: bytes) -> list[tuple[int, int]]:
    cuts, at = [], 0
    while at < len(data):
        end = at + 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        cuts.append((at, end))
        at = end
    return cuts


def twice(base: int) -> Harm:
    """The first half of a segment lies there twice."""

    def harm(folder: Path) -> None:
        half = [o for o in range(base, base + EACH) if o % 20 < 17][: EACH // 2]
        (folder / name(base)).write_bytes(b"".join(batch(offset) for offset in half + half))

    return harm


def half_cleaned(folder: Path) -> None:
    (folder / name(0, "log.cleaned")).write_bytes(b"half")
    (folder / name(EACH, "log.swap")).write_bytes(batch(EACH))


GARBAGE = random.Random(1).randbytes(300)


@dataclass(frozen=True)
class State:
    """What lies there, and what the broker's checkpoint says is on disk for sure."""

    name: str
    harms: list[Harm]
    recovery_points: list[int] = field(default_factory=lambda: [0, EACH + 5, ACTIVE, ACTIVE + 2])


STATES = [
    State("nothing is wrong", []),
    State("a torn tail", [cut(ACTIVE, ACTIVE + 8, 50)]),
    State("a torn tail, shorter than a header", [cut(ACTIVE, ACTIVE + 8, 11)]),
    State("garbage behind the last batch", [add(name(ACTIVE), GARBAGE)]),
    State("garbage shorter than a header", [add(name(ACTIVE), GARBAGE[:9])]),
    State("zeros that were preallocated", [add(name(ACTIVE), bytes(1 << 20))]),
    State("nothing but zeros", [put(name(ACTIVE), bytes(1 << 16))], [0, ACTIVE]),
    State("a bad checksum in the active segment", [put_at(ACTIVE, ACTIVE + 4, 70, b"\xff")]),
    State("a bad size in the active segment", [put_at(ACTIVE, ACTIVE + 4, 8, bytes(4))]),
    State("a size that reaches behind the file", [put_at(ACTIVE, ACTIVE + 4, 8, b"\x01")]),
    State(
        "a torn closed segment", [cut(2 * EACH, 2 * EACH + 30, 20)], [0, EACH + 5, 2 * EACH + 30]
    ),
    State(
        "a bad checksum in a closed segment",
        [put_at(EACH, EACH + 40, 65, b"\xff")],
        [0, EACH, EACH + 40],
    ),
    State("a segment that lost all its bytes", [put(name(2 * EACH), b"")], [0, EACH + 5]),
    State("the first batch of all is bad", [put_at(0, 0, 62, b"\xff")], [0]),
    State(
        "two bad places",
        [put_at(EACH, EACH + 9, 65, b"\xff"), cut(ACTIVE, ACTIVE + 1, 1)],
        [0, EACH],
    ),
    State(
        "no index at the active segment", [remove(name(ACTIVE, "index"), name(ACTIVE, "timeindex"))]
    ),
    State("no offset index at a closed segment", [remove(name(EACH, "index"))]),
    State("no time index at a closed segment", [remove(name(EACH, "timeindex"))]),
    State(
        "no index at all",
        [remove(*(name(base, kind) for base in BASES for kind in ("index", "timeindex")))],
    ),
    State(
        "closed segments with preallocated indexes",
        [preallocated(EACH), preallocated(2 * EACH)],
        [0, EACH],
    ),
    State(
        "empty indexes",
        [put(name(2 * EACH, "index"), b""), put(name(2 * EACH, "timeindex"), b"")],
        [0, 2 * EACH],
    ),
    State(
        "an index that lies", [put(name(2 * EACH, "index"), b"\0\0\0\x05\0\0\0\x07")], [0, 2 * EACH]
    ),
    State("an index of an odd size", [add(name(2 * EACH, "index"), b"\0\0\0")], [0, 2 * EACH]),
    State(
        "a time index that lies",
        [put(name(2 * EACH, "timeindex"), bytes(11) + b"\x20")],
        [0, 2 * EACH],
    ),
    State(
        "an index that knows more than the log",
        [add(name(2 * EACH, "index"), b"\0\0\1\0\0\1\0\0"), cut(2 * EACH, 2 * EACH + 50, 0)],
        [0, 2 * EACH],
    ),
    State("a transaction index cut short", [add(name(ACTIVE, "txnindex"), b"\0\0\0")]),
    State(
        "a transaction index that lies", [put(name(2 * EACH, "txnindex"), bytes(34))], [0, 2 * EACH]
    ),
    State("no transaction index", [remove(name(2 * EACH, "txnindex"))], [0, 2 * EACH]),
    State(
        "indexes without their segment",
        [put(name(7, kind), b"") for kind in ("index", "timeindex", "txnindex")],
    ),
    State("a snapshot that cannot be read", [put(name(ACTIVE, "snapshot"), b"\0\1")]),
    State("out of order, which recovery notices", [twice(2 * EACH)], [0, 2 * EACH]),
    State("the log start lies inside", [log_start(EACH + 30)]),
    State(
        "the log start lies behind what is left",
        [log_start(ACTIVE + 5), cut(EACH, EACH + 2, 9)],
        [0, EACH],
    ),
    State(
        "the log start is where the log ends",
        [log_start(ACTIVE + 5), cut(ACTIVE, ACTIVE + 5, 9)],
        [0, ACTIVE],
    ),
    State("a swap in the middle", [swapped]),
    State("a swap in the middle, and a torn tail", [swapped, cut(ACTIVE, ACTIVE + 8, 50)]),
    State("segments that were never finished", [half_cleaned]),
    State(
        "segments on their way out",
        [add(name(0, "log.deleted"), b"old"), add(name(9, "index.deleted"), b"old")],
    ),
    State("an empty active segment", [put(name(END), b"")]),
    State("a recovery point behind the end", [], [END + 100]),
]


def left_by_crash(place: Path, state: State, recovery_point: int) -> Path:
    folder = write_log(place)
    for harm in state.harms:
        harm(folder)
    write_checkpoint(folder.parent, "recovery-point-offset-checkpoint", {"t-0": recovery_point})
    return folder
