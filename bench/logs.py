"""The logs of the benchmark rows: written once, and copied for each run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import generate, peer
from bench.contents import contents_of

NOW_MS = 1_700_001_000_000
CHECKPOINT = "cleaner-offset-checkpoint"
MAP_BYTES = 536_870_912  # Kafka's key map, large enough to clean all keys of a row in one round
CLEAN_END = 16_000_000  # in logs for a second round, offsets below this one are clean
_WORDS = 11  # values of 88 bytes


@dataclass(frozen=True, slots=True)
class LogSpec:
    """A log of the benchmarks. ``make`` writes it to a folder, and returns facts about it."""

    label: str  # the name of its folder
    keys: int  # the number of distinct keys, or of keys to draw from
    segment_bytes: int
    make: Callable[[Path], dict[str, Any]]

    @property
    def config(self) -> dict[str, str]:
        """The topic's settings for both cleaners. Both clean whatever the dirty ratio is."""
        return {"segment.bytes": str(self.segment_bytes), "min.cleanable.dirty.ratio": "0"}


def written_by_kafka(codec: str, **settings: int) -> LogSpec:
    """A log with random keys, written by Kafka's own append path."""
    label = "-".join([codec, *(str(value) for value in settings.values())])
    return LogSpec(
        label,
        settings["keys"],
        settings["segment_bytes"],
        lambda folder: peer.write_log(folder, codec=codec, **settings),
    )


def second_round(name: str, dirty: generate.Numbers) -> LogSpec:
    """16 M clean records of 106 bytes with distinct keys, then 1 M dirty records."""
    end, segment_bytes = CLEAN_END + 1_000_000, 268_435_456

    def make(folder: Path) -> dict[str, Any]:
        generate.write_log(folder, generate.counted, 0, CLEAN_END, _WORDS, segment_bytes)
        clean_by_us(folder, segment_bytes)
        generate.write_log(folder, dirty, CLEAN_END, end, _WORDS, segment_bytes)
        return facts_of(folder, end, end)

    return LogSpec(name, CLEAN_END, segment_bytes, make)


def second_first_row(first: LogSpec) -> LogSpec:
    """The first row's log, cleaned by Kafka, then 1 M dirty records with the same keys.

    Lastwrite cleans the log once more before the dirty records are appended, and changes nothing.
    """

    def make(folder: Path) -> dict[str, Any]:
        first.make(folder)
        peer.clean_cold(folder, first.config, NOW_MS, MAP_BYTES)
        (folder.parent / CHECKPOINT).unlink()
        clean_by_us(folder, first.segment_bytes)
        left = contents_of(folder).records
        peer.write_log(
            folder,
            codec="none",
            records=1_000_000,
            keys=first.keys,
            batch=500,
            value=88,
            segment_bytes=first.segment_bytes,
            seed=2,
        )
        return facts_of(folder, left + 1_000_000, CLEAN_END + 1_000_000)

    return LogSpec("second-first-row", first.keys, first.segment_bytes, make)


def quiet_log() -> LogSpec:
    """36 segments of 400,000 records with distinct keys, then four that repeat their own keys."""
    records, a_segment = 16_000_000, 400_000
    loud = 36 * a_segment
    again = generate.drawn(400_000, lowest=loud)

    def numbers(first: int, end: int) -> generate.Int64s:
        return generate.counted(first, end) if end <= loud else again(first, end)

    def make(folder: Path) -> dict[str, Any]:
        return generate.write_log(folder, numbers, 0, records, _WORDS, 1 << 30, a_segment)

    return LogSpec("quiet", loud + 400_000, 67_108_864, make)


QUIET_SHARE = 0.1  # share of quiet_log's bytes in segments that lose records


def small_records(records: int, keys: int) -> LogSpec:
    """Records of 40 bytes with random keys. ``check_small`` checks the result."""

    def make(folder: Path) -> dict[str, Any]:
        return generate.write_log(folder, generate.drawn(keys), 0, records, 3, 268_435_456)

    return LogSpec(f"small-{records}-{keys}", keys, 268_435_456, make)


def check_small(folder: Path, records: int, keys: int) -> int:
    """Check what a compaction of ``small_records`` left. Returns the number of records."""
    last = generate.last_offsets(generate.drawn(keys), keys, records)
    return generate.check(folder, last, 3)["records_left"]


def clean_by_us(folder: Path, segment_bytes: int) -> None:
    """Clean the log in ``folder``, so that everything below ``CLEAN_END`` is clean.

    Raises:
        SystemExit: The cleaner checkpoint has another offset.
    """
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "lastwrite.cli",
            "compact",
            str(folder),
            "--json",
            "--now",
            str(NOW_MS),
            "--config",
            f"segment.bytes={segment_bytes}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    checkpoint = folder.parent / CHECKPOINT
    said = checkpoint.read_text().split() if checkpoint.exists() else []
    if said[-1:] != [str(CLEAN_END)]:
        raise SystemExit(
            f"not clean below {CLEAN_END}: {said}; {json.loads(done.stdout)['partitions']}"
        )


def facts_of(folder: Path, records: int, end: int) -> dict[str, Any]:
    logs = list(folder.glob("*.log"))
    return {
        "records": records,
        "bytes": sum(log.stat().st_size for log in logs),
        "segments": len(logs),
        "log_end": end,
    }


class Logs:
    """The original logs in ``work``/logs, and their copies in ``work``/run."""

    def __init__(self, work: Path) -> None:
        self._work = work

    def source(self, spec: LogSpec) -> tuple[Path, dict[str, Any]]:
        """The folder of an original log, which is written on first use, and facts about it."""
        folder = self._work / "logs" / spec.label / "perf-0"
        done = folder.parent / "done"
        if not done.exists():
            shutil.rmtree(folder.parent, ignore_errors=True)
            folder.parent.mkdir(parents=True)
            done.write_text(json.dumps(spec.make(folder)))
        facts: dict[str, Any] = json.loads(done.read_text())
        return folder, facts

    def copy(self, source: Path) -> Path:
        """Copy a partition's folder and its checkpoint files to a root of their own.

        The copy is synced, in the page cache, and has the source's modification times.
        """
        root = self._work / "run"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(source.parent, root, ignore=shutil.ignore_patterns("done"))
        for file in root.rglob("*"):
            if file.is_file():
                with open(file, "rb") as handle:
                    os.fsync(handle.fileno())
        return root / source.name

    def fresh(self, spec: LogSpec) -> tuple[Path, dict[str, Any]]:
        """Write a log in place of a copy, for one run: it is too large to be on disk twice."""
        root = self._work / "run"
        shutil.rmtree(root, ignore_errors=True)
        folder = root / "perf-0"
        folder.parent.mkdir(parents=True)
        return folder, spec.make(folder)

    def clear(self) -> None:
        shutil.rmtree(self._work / "run", ignore_errors=True)
