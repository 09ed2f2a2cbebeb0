"""A random log root, and the round over it that will be killed.

The root has everything that a round can encounter: partitions of several segments with transactions
(committed, aborted, open), idempotent producers, batches of old formats, all codecs, tombstones and
gaps. Most partitions were cleaned before, so they have checkpoints, horizons and empty batches.
Some lose segments to retention in the same round. Some are in the root of a broker that was itself
killed.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.kafka.store import log_dir
from lastwrite.model.log import PartitionLog, ProblemKind
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.kafka.logs import bases, decode_model, write_checkpoint
from tests.support.kafka.model import ModelBatch, ModelRecord
from tests.support.kafka.strategies import Phase, Writer, append

START_MS = 1_700_000_000_000
STEP_MS = 100_000  # time between two phases of a log
CHECKPOINTS = (
    "cleaner-offset-checkpoint",
    "log-start-offset-checkpoint",
    "replication-offset-checkpoint",
)
# Suffixes of files that must not exist after the next run.
ODD = (".cleaned", ".swap", ".deleted", ".tmp")

Batches = tuple[ModelBatch, ...]


def lay_out(seed: str, root: Path) -> Settings:
    """Write the log root of ``seed``. Returns the settings of the round over it."""
    rng = random.Random(f"crash-{seed}")
    settings = Settings(
        config={
            "segment.bytes": rng.choice([14, 400, 2000, 1 << 20]),
            "index.interval.bytes": rng.choice([0, 100, 4096]),
            "delete.retention.ms": rng.choice([0, STEP_MS, 20 * STEP_MS]),
            "min.cleanable.dirty.ratio": 0,
            "cleanup.policy": "compact",
        },
        now_ms=START_MS,
        include_active=rng.random() < 0.15,
    )
    casts = {f"t-{n}": _Cast.drawn(rng) for n in range(rng.choice([1, 1, 1, 2, 3]))}
    for phase in range(rng.choice([1, 2, 3, 4])):
        if phase:
            settings.compact(root)
        settings.now_ms += STEP_MS
        ends = {}
        for name, cast in casts.items():
            ends[name] = append(root / name, cast.phase(rng, settings.now_ms), 100)
        # Records above the high watermark are not replicated yet.
        marks = {name: end - rng.choice([0, 0, 0, rng.randint(0, 6)]) for name, end in ends.items()}
        write_checkpoint(
            root,
            "replication-offset-checkpoint",
            {name: max(0, mark) for name, mark in marks.items()},
        )
    if rng.random() < 0.4:
        settings.config["cleanup.policy"] = "compact,delete"
        if rng.random() < 0.5:
            settings.config["retention.ms"] = rng.choice([STEP_MS // 2, STEP_MS, 3 * STEP_MS])
        else:
            settings.config["retention.bytes"] = rng.choice([1, 1000, 3000])
    if rng.random() < 0.25:
        starts = {name: rng.choice(bases(root / name)) + rng.randint(0, 3) for name in casts}
        held = {name: start for name, start in starts.items() if start <= marks[name]}
        write_checkpoint(root, "log-start-offset-checkpoint", held)
    settings.was_killed = rng.random() < 0.3
    if settings.was_killed:
        write_checkpoint(
            root,
            "recovery-point-offset-checkpoint",
            {n: rng.choice(bases(root / n)) for n in casts},
        )
        for name in casts:
            _hurt(rng, root / name)
    settings.now_ms += rng.choice([0, 1, STEP_MS])
    return settings


def _hurt(rng: random.Random, folder: Path) -> None:
    """Damage the last segment, and remove or add indexes of the closed segments, as a kill may."""
    last = max(folder.glob("*.log"))
    if rng.random() < 0.5:
        with open(last, "ab") as log:
            log.write(rng.choice([bytes(5000), rng.randbytes(rng.randint(1, 90))]))
    if rng.random() < 0.3:
        (folder / f"{rng.randint(0, 50) * 1000 + 999:020d}.index").touch()
    if rng.random() < 0.3:
        rng.choice(sorted(folder.glob("*.timeindex"))).unlink()
    if rng.random() < 0.3:
        rng.choice(sorted(folder.glob("*.index"))).unlink()


@dataclass
class _Cast:
    """The producers of a partition and their habits."""

    writers: list[Writer]
    keys: int
    has_old: bool
    bumps: bool

    @classmethod
    def drawn(cls, rng: random.Random) -> _Cast:
        ids = rng.choice([[], [7], [100], [7, 100, 101], [100, 101]])
        writers = [Writer(producer_id, producer_id >= 100) for producer_id in ids]
        return cls(writers, rng.choice([3, 10, 40]), rng.random() < 0.25, rng.random() < 0.3)

    def phase(self, rng: random.Random, now_ms: int) -> Phase:
        segments, offset = [], 0
        for _ in range(rng.randint(1, 4)):
            filled = []
            for _ in range(rng.randint(1, 5)):
                made = self._batch(rng, offset, now_ms)
                filled.append(made)
                offset = made.next_offset + rng.choice([0, 0, 0, 0, 1, 20])
            segments.append(tuple(filled))
        if rng.random() < 0.2:
            segments.append(())
        return Phase(tuple(segments), now_ms, 1.0, rng.random() < 0.7)

    def _batch(self, rng: random.Random, offset: int, now_ms: int) -> ModelBatch:
        writer = rng.choice([None, *self.writers])
        time_ms = now_ms - rng.randint(0, STEP_MS // 4)
        if writer is not None and writer.is_open and rng.random() < 0.4:
            return self._marker(rng, writer, offset, time_ms)
        records = tuple(
            ModelRecord(
                offset + n,
                time_ms + n,
                rng.choice([b"%d" % rng.randrange(self.keys)] * 9 + [None]),
                rng.choice([b"v" * rng.randint(0, 60), b"%d" % offset, b"%d" % offset, None]),
            )
            for n in range(rng.randint(1, 5))
        )
        made = ModelBatch(
            offset,
            offset + len(records) - 1 + rng.choice([0, 0, 2]),
            records,
            rng.choice([0, 0, 1, 2, 3, 4]),
            max_timestamp_ms=max(record.timestamp_ms for record in records),
            leader_epoch=0,
        )
        if writer is not None:
            sequence, writer.sequence = writer.sequence, writer.sequence + made.next_offset - offset
            writer.is_open = writer.transactional
            return replace(
                made,
                producer_id=writer.producer_id,
                producer_epoch=writer.epoch,
                base_sequence=sequence,
                transactional=writer.transactional,
            )
        return self._old(rng, made) if self.has_old and rng.random() < 0.6 else made

    def _marker(self, rng: random.Random, writer: Writer, offset: int, time_ms: int) -> ModelBatch:
        writer.is_open = False
        if self.bumps:
            writer.epoch, writer.sequence = writer.epoch + 1, 0
        key = rng.choice([b"\0\0\0\0", b"\0\0\0\1"])
        return ModelBatch(
            offset,
            offset,
            (ModelRecord(offset, time_ms, key, b"\0\0\0\0\0\7"),),
            max_timestamp_ms=time_ms,
            leader_epoch=0,
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            transactional=True,
            control=True,
        )

    @staticmethod
    def _old(rng: random.Random, made: ModelBatch) -> ModelBatch:
        magic = rng.choice([0, 1])
        codec = made.codec if made.codec < 4 else 0
        records = made.records if codec else made.records[:1]
        records = tuple(
            replace(record, timestamp_ms=record.timestamp_ms if magic else -1) for record in records
        )
        return ModelBatch(
            records[0].offset,
            records[-1].offset,
            records,
            codec,
            magic=magic,
            max_timestamp_ms=max(record.timestamp_ms for record in records),
        )


# ---------------------------------------------------------------------- the round


@dataclass
class Settings:
    """The settings of a round over a root."""

    config: dict[str, Any]
    now_ms: int
    include_active: bool
    was_killed: bool = False  # whether the root's broker was killed

    def compact(self, root: Path, **arguments: Any) -> None:
        report = lastwrite.compact(
            str(root),
            config=self.config,
            now_ms=self.now_ms,
            include_active=self.include_active,
            spark=INLINE,
            drop_keyless=True,
            **arguments,
        )
        assert report.exit_status == 0, [str(partition.reason) for partition in report.partitions]

    def without_retention(self) -> Settings:
        """The same settings without retention."""
        return replace(self, config={**self.config, "cleanup.policy": "compact"})

    def alive(self) -> Settings:
        """The same settings, as if the broker had not been killed."""
        return replace(self, was_killed=False)


@dataclass
class Round:
    """A root before its round, the result of an undisturbed round, and its number of operations."""

    origin: Path
    settings: Settings
    before: dict[str, Batches]  # batches by partition
    after: dict[
        str, Batches
    ]  # batches after the round, before retention, which only raises the log start
    done: dict[str, object]  # every file after an undisturbed round
    operations: int
    folders: list[str] = field(default_factory=list)


def prepare(seed: int, place: Path) -> Round:
    """Write the root of ``seed`` and run an undisturbed round over a copy.

    Draws again if the round has no work.
    """
    origin, done, cleaned = place / "origin", place / "done", place / "cleaned"
    operations = attempt = 0
    while not operations:
        for path in (origin, done):
            shutil.rmtree(path, ignore_errors=True)
        origin.mkdir()
        settings = lay_out(f"{seed}-{attempt}", origin)
        shutil.copytree(origin, done)
        files.faults = FaultPoints(1 << 30)
        try:
            settings.compact(done)
            operations = files.faults.passed
        finally:
            files.faults = FaultPoints()
        attempt += 1
    shutil.copytree(origin, cleaned)
    settings.without_retention().compact(cleaned)
    folders = sorted(path.name for path in origin.iterdir() if path.is_dir())
    before = {name: batches_seen(origin / name)[1] for name in folders}
    after = {name: batches_seen(cleaned / name)[1] for name in folders}
    for name in folders:
        log, left = batches_seen(done / name)
        assert left == from_start(after[name], log.log_start), (
            f"{name}: what expires is a whole number of segments"
        )
    return Round(origin, settings, before, after, files_of(done), operations, folders)


def batches_seen(folder: Path) -> tuple[PartitionLog, Batches]:
    """The partition as our own listing finds it, and its readable batches from the log start."""
    log = log_dir.read_partition(str(folder))
    wrong = [problem for problem in log.problems if problem.kind is not ProblemKind.RECOVERED]
    assert not wrong, wrong
    sources = [(Path(segment.path), segment.size_bytes) for segment in log.segments]
    return log, from_start(_batches(sources), log.log_start)


def batches_at(folder: Path, log_start: int) -> Batches:
    """The batches of all segments with final names, from ``log_start``."""
    return from_start(
        _batches([(path, path.stat().st_size) for path in sorted(folder.glob("*.log"))]), log_start
    )


def _batches(sources: list[tuple[Path, int]]) -> Batches:
    found = []
    for path, size_bytes in sources:
        data, at = path.read_bytes()[:size_bytes], 0
        while at < len(data):
            batch, taken = decode_model(data, at)
            found.append(batch)
            at += taken
    return tuple(found)


def from_start(batches: Batches, log_start: int) -> Batches:
    return tuple(batch for batch in batches if batch.last_offset >= log_start)


def files_of(root: Path) -> dict[str, object]:
    """The content of every file, with the modification time of segments.

    The lines of a checkpoint are sorted.
    """
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.name != ".lock":
            content = path.read_bytes()
            name = os.path.relpath(path, root)
            if path.name in CHECKPOINTS:
                found[name] = sorted(content.splitlines())
            else:
                # An empty segment has no comparable time: retention creates it when all others
                # expire.
                is_dated = path.suffix == ".log" and content
                found[name] = (content, path.stat().st_mtime_ns if is_dated else 0)
    return found


def odd_files(root: Path) -> list[str]:
    return [os.path.relpath(path, root) for path in root.rglob("*") if path.name.endswith(ODD)]
