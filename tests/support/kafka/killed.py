"""A partition with transactions, and the damage that a killed broker can leave in its files.

Has each state of docs/formats/kafka-cleaning.md, "Loading a log".
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.index import AbortedEntry, encode_transaction_index
from lastwrite.kafka.format.text import LeaderEpoch, encode_leader_epochs
from lastwrite.kafka.producers.snapshot import ProducerEntry, encode_snapshot
from tests.support.kafka.logs import write_checkpoint, write_segment
from tests.support.kafka.single import encode_control_record

CLOCK_MS = 1_700_000_000_000
LATER_MS = CLOCK_MS + 10_000_000
EACH = 60  # records of a segment
BASES = [0, EACH, 2 * EACH, 3 * EACH]
ACTIVE = BASES[-1]
END = ACTIVE + 10
Harm = Callable[[Path], None]


def batch(offset: int) -> bytes:
    """A batch of one record. Offsets 17 to 19 of every 20 are a transaction of two records.

    The third is its marker. Every second transaction is aborted.
    """
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
    """Write the four segments of a killed broker's log. Returns the partition's folder."""
    folder = root / "t-0"
    for base in BASES:
        offsets = range(base, END if base == ACTIVE else base + EACH)
        write_segment(folder, base, [batch(offset) for offset in offsets], 4096, CLOCK_MS + base)
        aborted = [AbortedEntry(0, 7, o - 2, o, o + 1) for o in offsets if o % 40 == 19]
        if aborted:
            (folder / f"{base:020d}.txnindex").write_bytes(encode_transaction_index(aborted))
    for kind, entry in (("index", 8), ("timeindex", 12)):
        path = folder / f"{ACTIVE:020d}.{kind}"
        path.write_bytes(path.read_bytes().ljust(100 * entry, b"\0"))
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (root / "meta.properties").write_text("version=1\n")
    return folder


# ---------------------------------------------------------------------- damage by a crash


def name(base: int, kind: str = "log") -> str:
    return f"{base:020d}.{kind}"


def position(base: int, offset: int) -> int:
    return sum(len(batch(o)) for o in range(base, offset))


def cut(base: int, offset: int, more: int) -> Harm:
    """Truncate the segment ``more`` bytes after the begin of the batch at ``offset``."""
    return lambda folder: os.truncate(folder / name(base), position(base, offset) + more)


def add(file: str, content: bytes) -> Harm:
    def harm(folder: Path) -> None:
        with open(folder / file, "ab") as target:
            target.write(content)

    return harm


def put(file: str, content: bytes) -> Harm:
    return lambda folder: (folder / file).write_bytes(content) and None


def put_at(base: int, offset: int, at: int, content: bytes) -> Harm:
    """Overwrite bytes of the batch at ``offset``."""

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
    """Indexes that are still preallocated: padded with zeros."""

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
    """A merge of two segments that the broker's cleaner had not finished."""
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
    """The first half of a segment occurs twice."""

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
    """Damage to the files, and the recovery points with which a broker loads them."""

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
    State(
        "at the end a bad checksum in the active segment", [put_at(ACTIVE, END - 1, 70, b"\xff")]
    ),
    State("at the end a bad size in the active segment", [put_at(ACTIVE, END - 1, 8, bytes(4))]),
    State("at the end a size that reaches behind the file", [put_at(ACTIVE, END - 1, 8, b"\x01")]),
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
    State("a transaction index cut short", [add(name(ACTIVE, "txnindex"), b"\0\0\0")]),
    State(
        "a transaction index that lies", [put(name(2 * EACH, "txnindex"), bytes(34))], [0, 2 * EACH]
    ),
    State("no transaction index", [remove(name(2 * EACH, "txnindex"))], [0, 2 * EACH]),
    State(
        "indexes without their segment",
        [put(name(7, kind), b"") for kind in ("index", "timeindex", "txnindex")],
    ),
    State(
        "indexes of a segment that was retained", [remove(name(0)), log_start(EACH)], [0, ACTIVE]
    ),
    State(
        "indexes of a segment on its way out",
        [lambda folder: (folder / name(0)).rename(folder / name(0, "log.deleted")) and None],
        [0, ACTIVE],
    ),
    State(
        "indexes of a segment that another one has taken in",
        [
            lambda folder: write_segment(
                folder, 0, [batch(offset) for offset in range(2 * EACH)], 4096, CLOCK_MS
            ),
            lambda folder: (
                (folder / name(0, "txnindex")).write_bytes(
                    (folder / name(0, "txnindex")).read_bytes()
                    + (folder / name(EACH, "txnindex")).read_bytes()
                )
                and None
            ),
            remove(name(EACH)),
        ],
        [0, ACTIVE],
    ),
    State(
        "preallocated indexes without their segment",
        [put(name(END + 5, kind), bytes(480)) for kind in ("index", "timeindex")],
    ),
    State("a snapshot that cannot be read", [put(name(ACTIVE, "snapshot"), b"\0\1")]),
    State("the log start lies inside", [log_start(EACH + 30)]),
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
]


def left_by_crash(place: Path, state: State, recovery_point: int) -> Path:
    folder = write_log(place)
    for harm in state.harms:
        harm(folder)
    write_checkpoint(folder.parent, "recovery-point-offset-checkpoint", {"t-0": recovery_point})
    return folder


# ---------------------------------------------------------------------- lost records


def checkpoint(file: str, offset: int) -> Harm:
    return lambda folder: write_checkpoint(folder.parent, file, {"t-0": offset})


def snapshot(offset: int, last_offset: int) -> Harm:
    producer = ProducerEntry(7, 0, 3, last_offset, 0, CLOCK_MS, -1, -1)
    return put(name(offset, "snapshot"), encode_snapshot([producer]))


def epochs(*starts: int) -> Harm:
    entries = [LeaderEpoch(epoch, start) for epoch, start in enumerate(starts)]
    return put("leader-epoch-checkpoint", encode_leader_epochs(entries))


def marked(base: int, *offsets: int) -> Harm:
    """The segment has batches at ``offsets``, each large enough for an index entry of its own."""
    made = [encode_batch([Record(o, CLOCK_MS + o, b"k%d" % o, bytes(5000))]) for o in offsets]
    return lambda folder: write_segment(folder, base, made, 4096, CLOCK_MS + base)


@dataclass(frozen=True)
class Loss(State):
    """A state in which a file other than the log shows that records are lost.

    ``ends`` is where a broker ends the log when it starts, and ``removed`` the number of segments
    that it removes. If ``ends`` is None, the broker goes on as if nothing were lost.
    """

    recovery_points: list[int] = field(default_factory=lambda: [0])
    missing: tuple[int, int] | None = None  # the first and the last lost offset
    ends: int | None = None
    removed: int = 0
    says: str = ""


TORN = cut(ACTIVE, ACTIVE + 8, 50)  # offset 188 is the first lost one
SHORT = cut(ACTIVE, ACTIVE + 8, 0)
WITNESSES: dict[str, Harm] = {
    "the high watermark is 190": checkpoint("replication-offset-checkpoint", END),
    "the first dirty offset is 190": checkpoint("cleaner-offset-checkpoint", END),
    "the log start is 190": log_start(END),
    "the recovery point is 190": lambda folder: None,
    f"the producer snapshot {name(END, 'snapshot')} exists": snapshot(END, 3),
    f"producer 7 wrote up to offset 189 ({name(ACTIVE, 'snapshot')})": snapshot(ACTIVE, END - 1),
    "leader epoch 1 starts at offset 190": epochs(0, END),
}
# The same files with values for the offsets before the damage.
EARLIER = [
    checkpoint("replication-offset-checkpoint", ACTIVE + 8),
    checkpoint("cleaner-offset-checkpoint", ACTIVE),
    log_start(EACH),
    snapshot(ACTIVE + 8, ACTIVE + 7),
    epochs(0, ACTIVE + 8),
]
LOSSES = [
    Loss(
        "a torn closed segment",
        [cut(2 * EACH, 2 * EACH + 30, 20)],
        [0, EACH + 5, 2 * EACH + 30],
        missing=(150, 179),
        ends=150,
        removed=1,
        says="the next segment begins at offset 180",
    ),
    Loss(
        "a closed segment that is torn below the recovery point",
        [cut(2 * EACH, 2 * EACH + 30, 20)],
        [155],
        missing=(150, 179),
        ends=150,
        removed=1,
    ),
    Loss(
        "a bad checksum in a closed segment",
        [put_at(EACH, EACH + 40, 65, b"\xff")],
        [0, EACH, EACH + 40],
        missing=(100, 119),
        ends=100,
        removed=2,
    ),
    Loss(
        "a segment that lost all its bytes",
        [put(name(2 * EACH), b"")],
        [0, EACH + 5],
        missing=(120, 179),
        says="the segment is empty",
    ),
    Loss(
        "a first segment that lost all its bytes",
        [put(name(0), b"")],
        missing=(0, 59),
        says="the segment is empty",
    ),
    Loss(
        "a first segment without its file",
        [remove(name(0))],
        [0, ACTIVE],
        missing=(0, 59),
        says="the segment's file is missing",
    ),
    Loss(
        "a closed segment without its file",
        [remove(name(EACH))],
        [0, EACH + 5, END],
        missing=(60, 119),
        says="and the next segment begins at offset 120",
    ),
    Loss(
        "a closed segment without its file, of which one index is left",
        [remove(name(EACH), name(EACH, "index"), name(EACH, "txnindex"))],
        missing=(60, 119),
    ),
    Loss(
        "a last segment without its file",
        [marked(ACTIVE, 185, 195, 205), remove(name(ACTIVE))],
        ends=180,
        missing=(180, 205),
        says="no segment follows",
    ),
    Loss(
        "the first batch of all is bad",
        [put_at(0, 0, 62, b"\xff")],
        missing=(0, 59),
        ends=0,
        removed=3,
    ),
    Loss(
        "a bad checksum in the active segment",
        [put_at(ACTIVE, ACTIVE + 4, 70, b"\xff")],
        missing=(184, 189),
        ends=184,
        says="complete batches from offset 185 on follow at byte",
    ),
    Loss(
        "a bad size in the active segment",
        [put_at(ACTIVE, ACTIVE + 4, 8, bytes(4))],
        missing=(184, 189),
        ends=184,
        says="complete batches from offset 185 on follow at byte",
    ),
    Loss(
        "a size that reaches behind the file",
        [put_at(ACTIVE, ACTIVE + 4, 8, b"\x01")],
        missing=(184, 189),
        ends=184,
        says="complete batches from offset 185 on follow at byte",
    ),
    Loss(
        "a page of zeros in the active segment",
        [put_at(ACTIVE, ACTIVE + 2, 20, bytes(300))],
        [0, ACTIVE],
        missing=(182, 189),
        ends=182,
        says="complete batches from offset",
    ),
    Loss(
        "two bad places",
        [put_at(EACH, EACH + 9, 65, b"\xff"), cut(ACTIVE, ACTIVE + 1, 1)],
        [0, EACH],
        missing=(69, 119),
        ends=69,
        removed=2,
    ),
    Loss(
        "an index that knows more than the log",
        [cut(2 * EACH, 2 * EACH + 50, 0)],
        [0, 2 * EACH],
        missing=(170, 179),
        says="the segment's indexes contain offset 176",
    ),
    Loss(
        "a time index alone that knows more",
        [cut(2 * EACH, 2 * EACH + 50, 0), remove(name(2 * EACH, "index"))],
        [0, 2 * EACH],
        missing=(170, 179),
        says="the segment's indexes contain offset 176",
    ),
    Loss(
        "an offset index that knows more than the log",
        [
            marked(2 * EACH, 125, 135, 145, 155),
            remove(name(2 * EACH, "timeindex")),
            lambda folder: os.truncate(folder / name(2 * EACH), 2 * 5074),
        ],
        missing=(136, 179),
        says="the segment's indexes contain offset 145",
    ),
    Loss(
        "out of order, which recovery notices",
        [twice(2 * EACH)],
        [0, 2 * EACH],
        missing=(120, 179),
        ends=120,
        removed=1,
    ),
    Loss(
        "a last segment out of order",
        [
            twice(ACTIVE - EACH),
            remove(name(ACTIVE), name(ACTIVE, "index"), name(ACTIVE, "timeindex")),
        ],
        [0, 2 * EACH],
        ends=120,
        says="a broker's start would empty the segment",
    ),
    Loss(
        "the log start lies behind what is left",
        [log_start(ACTIVE + 5), cut(EACH, EACH + 2, 9)],
        [0, EACH],
        missing=(62, 119),
        ends=ACTIVE + 5,
        removed=4,
    ),
    Loss("a recovery point behind the end", [], [END + 100], missing=(190, 289), ends=END),
    Loss(
        "zeros behind a closed segment",
        [add(name(EACH), bytes(4096))],
        ends=120,
        removed=2,
        says="although later segments contain records",
    ),
    *(
        Loss(
            f"a torn tail, and {words}",
            [TORN, witness],
            [END if "recovery" in words else 0],
            missing=(188, 189),
            ends=END if "log start" in words else 188,
            removed=4 if "log start" in words else 0,
            says=words,
        )
        for words, witness in WITNESSES.items()
    ),
    *(
        Loss(
            f"a whole tail, and {words}",
            [SHORT, witness],
            [END if "recovery" in words else 0],
            missing=(188, 189),
            ends=END if "log start" in words else 188,
            removed=4 if "log start" in words else 0,
            says=words,
        )
        for words, witness in WITNESSES.items()
    ),
]
