"""Counts of a round's system calls, bytes and batches, which are the same on every machine.

    python -m bench.counts                # as JSON
    python -m bench.counts --write        # into counts.json, which tests/unit/test_counts.py checks

Small logs are compacted in this process, each once before it is counted:

    read_calls, write_calls    system calls, and the bytes that they read and wrote
    opened, listed, renamed, removed    files and folders
    decompressed, compressed   batches
    units                      units of work by stage, which Spark would run in tasks
    allocated_peak             peak bytes of Python's and NumPy's memory, for Kafka logs
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import gc
import json
import shutil
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lastwrite
from bench import generate
from lastwrite.encoding.compression import Codec
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.spark.inline import INLINE
from lastwrite.spark.work import InlineRunner
from lastwrite.storage import run_folder
from tests.support.kafka.logs import encode_model, write_checkpoint, write_segment
from tests.support.kafka.model import ModelBatch, ModelRecord

Counts = dict[str, int]
RECORDED = Path(__file__).with_name("counts.json")
_CORPUS = Path(__file__).parents[1] / "tests/corpus"
_NOW_MS = 1_700_001_000_000
_SEGMENT = 4 << 20
_WORDS = 11  # values of 88 bytes
_CONFIG = {"min.cleanable.dirty.ratio": 0, "cleanup.policy": "compact", "segment.bytes": _SEGMENT}
_EVENTS = {
    "open": "opened",
    "os.listdir": "listed",
    "os.scandir": "listed",
    "os.rename": "renamed",
    "os.remove": "removed",
}
_seen: collections.Counter[str] = collections.Counter()


def _compact(root: Path, **config: object) -> None:
    told = _CONFIG if root.name == "log" else {}
    report = lastwrite.compact(str(root), config={**told, **config}, now_ms=_NOW_MS, spark=INLINE)
    if not all(each.status == "cleaned" for each in report.partitions):
        raise SystemExit(f"{root}: {[(each.status, each.reason) for each in report.partitions]}")


def _plain(root: Path) -> None:
    """Write 100,000 records of 106 bytes with 25,000 keys, in four segments."""
    generate.write_log(root / "t-0", generate.drawn(25_000), 0, 100_000, _WORDS, _SEGMENT)


def _second(dirty: generate.Numbers) -> Callable[[Path], None]:
    """Write 100,000 clean records with distinct keys, and then 1,000 dirty ones."""

    def make(root: Path) -> None:
        folder = root / "t-0"
        generate.write_log(folder, generate.counted, 0, 100_000, _WORDS, _SEGMENT)
        write_checkpoint(root, "cleaner-offset-checkpoint", {"t-0": 100_000})
        generate.write_log(folder, dirty, 100_000, 101_000, _WORDS, _SEGMENT)

    return make


def _zstd(root: Path) -> None:
    """Write 100 batches of 200 records. The last ten repeat every other key of the first ten."""
    batches = []
    for batch in range(100):
        key, step = batch % 90, 1 + batch // 90
        records = tuple(
            ModelRecord(
                200 * batch + i,
                _NOW_MS,
                b"%d-%d" % (key, i // step * step),
                b"value %d" % i * 10,
            )
            for i in range(200)
        )
        batches.append(
            encode_model(
                ModelBatch(
                    records[0].offset,
                    records[-1].offset,
                    records,
                    codec=Codec.ZSTD,
                    base_timestamp_ms=_NOW_MS,
                    max_timestamp_ms=_NOW_MS,
                )
            )
        )
    write_segment(root / "t-0", 0, batches, mtime_ms=_NOW_MS)
    write_segment(root / "t-0", 20_000, [], mtime_ms=_NOW_MS)


def _partitions(root: Path) -> None:
    """Write 50 partitions of 200 records."""
    for number in range(50):
        generate.write_log(root / f"t-{number}", generate.drawn(50), 0, 200, _WORDS, _SEGMENT)


def _store(root: Path) -> None:
    """Copy a RocketMQ broker's store."""
    shutil.copytree(_CORPUS / "rocketmq/5.5.0", root)


def _topics(root: Path) -> None:
    """Copy a Pulsar broker's offloaded topics as an archive."""
    lastwrite.fetch(str(_CORPUS / "pulsar/offloaded"), to=str(root))


ROWS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "first round": ("log", _plain),
    "second round, newest keys": ("log", _second(generate.drawn(1_000, lowest=99_000))),
    "second round, any keys": ("log", _second(generate.drawn(100_000))),
    "zstd": ("log", _zstd),
    "50 partitions": ("log", _partitions),
    "rocketmq": ("store", _store),
    "pulsar": ("archive", _topics),
}


def _io() -> collections.Counter[str]:
    """The read and write counts of this process, from the kernel. See proc(5)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    found = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return collections.Counter(
        read_calls=found["syscr"],
        bytes_read=found["rchar"],
        write_calls=found["syscw"],
        bytes_written=found["wchar"],
    )


@contextlib.contextmanager
def _counted(counts: Counts) -> Iterator[None]:
    """Add the counts of the block to ``counts``."""
    _seen.clear()
    before = _io()
    yield
    counts |= dict(_io() - before)
    counts |= dict(_seen)


def _note(event: str, _: tuple[Any, ...]) -> None:
    name = _EVENTS.get(event)
    if name is not None:
        _seen[name] += 1


def _noting(owner: Any, method: str, name: Callable[..., tuple[str, int]]) -> None:
    """Count the calls of a method. ``name`` returns the counter and the number to add."""
    done = getattr(owner, method)

    def noting(self: Any, *arguments: Any, **named: Any) -> Any:
        found = done(self, *arguments, **named)
        word, times = name(found, *arguments, **named)
        _seen[word] += times
        return found

    setattr(owner, method, noting)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Use an empty scratch folder, because a round also looks for files of killed runs."""
    before = tempfile.tempdir, run_folder._MEMORY_HOME
    with tempfile.TemporaryDirectory(prefix="lastwrite-counts-") as folder:
        tempfile.tempdir, run_folder._MEMORY_HOME = folder, Path(folder)
        try:
            yield
        finally:
            tempfile.tempdir, run_folder._MEMORY_HOME = before


@_alone()
def measured() -> dict[str, Counts]:
    """The counts of every row."""
    sys.addaudithook(_note)
    _noting(KafkaFormat, "_open", lambda last, _, __, first, *___: ("decompressed", last - first))
    _noting(KafkaFormat, "_pack", lambda _, __, first, last, *___: ("compressed", last - first))
    _noting(
        InlineRunner, "begin_tasks", lambda _, name, __, units, *___: (f"units: {name}", len(units))
    )
    found = {}
    for name, (place, make) in ROWS.items():
        with tempfile.TemporaryDirectory(prefix="lastwrite-counts-") as folder:
            roots = [Path(folder) / str(number) / place for number in range(3)]
            for root in roots:
                root.parent.mkdir()
            make(roots[0])
            for root in roots[1:]:
                shutil.copytree(roots[0], root)
            counts: Counts = {}
            _compact(roots[0])  # the first round imports modules and fills caches
            gc.collect()
            with _counted(counts):
                _compact(roots[1])
            if place == "log":  # other systems size their buffers by the machine's memory
                tracemalloc.start()
                _compact(roots[2])
                counts["allocated_peak"] = tracemalloc.get_traced_memory()[1]
                tracemalloc.stop()
            found[name] = dict(sorted(counts.items()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="record them")
    text = json.dumps(measured(), indent=1) + "\n"
    if parser.parse_args().write:
        RECORDED.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
