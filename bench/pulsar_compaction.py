"""A real Pulsar's own compaction and Lastwrite's, of the same topics, in turn.

    python -m bench.pulsar_compaction [--messages 1000000] [--keys 250000] [--repeats 3] [--json
        FILE]

The Java client produces four topics: single messages and batches of 500, uncompressed and LZ4.
Pulsar's time is the one that the broker reports for a compaction of the whole topic: its
subscription is removed before each run. Lastwrite's is the whole call of ``lastwrite.compact`` on a
topic folder with the same raw ledgers and no earlier result, in a Spark session, and on one core
without Spark (``spark=INLINE``). All sides are warm: each has done the same job once. In every row
the compacted ledgers are compared entry for entry. The bytes must be equal, except for LZ4 batches,
which two libraries compress differently. For these, the ids, the metadata and the decompressed
payloads must be equal.

``LASTWRITE_PULSAR_HOME`` names a folder with Pulsar's jars. Without it, Maven fills one in the
user's cache. The topics stay in the work folder, so that a second run need not produce them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.rocketmq_compaction import Asked
from bench.sampling import Sampler, Stopwatch, machine
from tests.support.pulsar import archive
from tests.support.pulsar import entries as entries_of
from tests.support.pulsar.broker import Broker, Unavailable, pulsar_home
from tests.support.pulsar.driver import Driver

_COMPACTION = "__compaction"
_TICK = os.sysconf("SC_CLK_TCK")


class Row(NamedTuple):
    """One of the benchmark's topics."""

    name: str
    codec: str
    batch: int  # messages in an entry; 1 means single messages

    @property
    def topic(self) -> str:
        return f"persistent://public/default/{self.name}"


ROWS = [
    Row("single", "NONE", 1),
    Row("single-lz4", "LZ4", 1),
    Row("batch", "NONE", 500),
    Row("batch-lz4", "LZ4", 500),
]


class Theirs:
    """A standalone whose compaction is measured. Broker, bookie and ZooKeeper are one process."""

    def __init__(self, data: Path) -> None:
        self.broker = Broker(pulsar_home(), data, java=("-Xmx2g", "-XX:MaxDirectMemorySize=2g"))
        self.broker.start()
        self.driver = Driver(self.broker)
        self._exported = data.with_name("exported")

    def produce(self, row: Row, given: argparse.Namespace) -> None:
        with contextlib.suppress(RuntimeError):  # the topic only exists after an interrupted run
            self.driver.ask("delete", topic=row.topic)
        self.driver.create(row.topic)
        self.driver.ask(
            "load",
            topic=row.topic,
            count=given.messages,
            keys=given.keys,
            size=given.value,
            codec=row.codec,
            batch=row.batch > 1,
            most=row.batch,
        )
        self.driver.unload(row.topic)  # closes the last ledger

    def fetch(self, row: Row, folder: Path) -> int:
        """Write the raw ledgers as the offloader does. Returns their bytes."""
        node, ledgers = self.driver.ledgers(row.topic)
        folder.mkdir(parents=True)
        (folder / "managed-ledger").write_bytes(node)
        size = 0
        for ledger in ledgers:
            entries = self.driver.export(ledger.ledger, ledger.last, self._exported)
            if entries:
                size += (
                    archive.write_ledger(folder, ledger.ledger, entries, ledger.metadata)
                    .stat()
                    .st_size
                )
        return size

    def forget_compaction(self, row: Row) -> None:
        """Delete the compaction's subscription, so that the next compaction begins from scratch."""
        if self.driver.horizon(row.topic) is not None:
            self.driver.ask("unsubscribe", topic=row.topic, subscription=_COMPACTION)

    def compact(self, row: Row) -> dict[str, float]:
        """Compact from scratch.

        Returns wall and processor seconds, and the peak of resident memory.
        """
        self.forget_compaction(row)
        process = Path(f"/proc/{self.broker.pid}")
        (process / "clear_refs").write_text("5")
        before = _processor_seconds(process)
        answer = self.driver.compact(row.topic)
        if answer["status"] != "SUCCESS" or not answer["did"]:
            raise SystemExit(f"Pulsar: {answer}")
        return {
            "seconds": answer["millis"] / 1000,
            "cpu_seconds": _processor_seconds(process) - before,
            "peak_mib": _peak_kib(process) >> 10,
        }

    def records(self, row: Row) -> list[bytes]:
        horizon = self.driver.horizon(row.topic)
        assert horizon is not None
        return self.driver.export(horizon.compacted_ledger, -1, self._exported)

    def close(self) -> None:
        self.driver.close()
        self.broker.stop()


class Ours:
    """``lastwrite.compact`` in a long-lived session."""

    def __init__(self, kind: str, master: str) -> None:
        self.session = Asked([sys.executable, "-m", "bench.session", kind, master])
        self.session.read()

    def compact(self, root: Path) -> dict[str, Any]:
        answer = self.session.ask(
            {"path": str(root), "now_ms": time.time_ns() // 1_000_000, "config": {}}
        )
        if set(answer["statuses"]) != {"cleaned"}:
            raise SystemExit(
                f"lastwrite: {answer['statuses']} {answer['reasons']} {answer['problems']}"
            )
        return answer


def fresh(source: Path, copy: Path) -> Path:
    """Hard-link the raw ledgers to a new folder, without earlier results.

    The name is new to the session, which caches surveyed ledgers by name. No round changes the
    files.
    """
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, copy_function=os.link)
    os.sync()
    return copy


def compare(ours: Sequence[bytes], theirs: Sequence[bytes]) -> int:
    """Compare the entries of both. Returns their number.

    Raises:
        SystemExit: They differ.
    """
    if len(ours) != len(theirs):
        raise SystemExit(f"{len(theirs)} entries are left by Pulsar, {len(ours)} by us")
    for one, two in zip(ours, theirs, strict=True):
        if one != two and _said(one) != _said(two):
            raise SystemExit(
                f"entry {entries_of.record(two)[0]} differs: Pulsar {two[:200]!r}, we {one[:200]!r}"
            )
    return len(ours)


def _said(record: bytes) -> object:
    _, ident, body = entries_of.record(record)
    entry = entries_of.entry(body)
    return ident, entry.prefix, entry.metadata, entry.plain()


def measure(
    row: Row, given: argparse.Namespace, theirs: Theirs, ours: dict[str, Ours]
) -> dict[str, Any]:
    source = given.work / f"{row.name}-{given.messages}-{given.keys}-{given.value}"
    folder = archive.topic_folder(source, row.topic)
    if not source.exists():
        theirs.produce(row, given)
        making = source.with_name("making")
        shutil.rmtree(making, ignore_errors=True)
        theirs.fetch(row, archive.topic_folder(making, row.topic))
        making.rename(source)
    raw_bytes = sum(
        path.stat().st_size
        for path in folder.glob("*-ledger-*")
        if not path.name.endswith("-index")
    )
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in ("pulsar", *ours)}
    for repeat in range(given.repeats + 1):
        told = {"pulsar": theirs.compact(row)}
        for side, contender in ours.items():
            copy = fresh(source, given.work / f"{side}-{repeat}")
            with Stopwatch(contender.session.process.pid) as watch:
                answer = contender.compact(copy)
            told[side] = {"seconds": answer["seconds"], "cpu_seconds": watch.cpu_seconds}
            if not repeat:  # the results of all repeats are the same
                left = compare(_records(copy, row), theirs.records(row))
            shutil.rmtree(copy)
        if repeat:
            for side, run in told.items():
                runs[side].append(run)
            print(
                f"  {row.name}, repeat {repeat}: ",
                *(f"{side} {run['seconds']:.2f} s" for side, run in told.items()),
            )
            sys.stdout.flush()
    peaks = {"pulsar": max(run["peak_mib"] for run in runs["pulsar"])}
    for side, contender in ours.items():
        copy = fresh(source, given.work / f"{side}-sampled")
        with Sampler(contender.session.process.pid) as sampler:
            contender.compact(copy)
        peaks[side] = sampler.peak.pss_bytes >> 20
        shutil.rmtree(copy)
    return {
        "row": row.name,
        "messages": given.messages,
        "keys": given.keys,
        "bytes": raw_bytes,
        "entries_left": left,
        "sides": {
            side: {
                "seconds": _median(found, "seconds"),
                "cpu_seconds": _median(found, "cpu_seconds"),
                "times_as_fast": _median(runs["pulsar"], "seconds") / _median(found, "seconds"),
                "peak_mib": peaks[side],
                "runs": found,
            }
            for side, found in runs.items()
        },
    }


def _records(root: Path, row: Row) -> list[bytes]:
    folder = archive.topic_folder(root, row.topic)
    return archive.read_ledger(
        folder / json.loads((folder / "compacted.json").read_text())["object"]
    )


def _median(runs: Iterable[dict[str, float]], figure: str) -> float:
    return statistics.median(run[figure] for run in runs)


def _processor_seconds(process: Path) -> float:
    text = (process / "stat").read_text()
    user, system = text[text.rindex(")") + 2 :].split()[11:13]
    return (int(user) + int(system)) / _TICK


def _peak_kib(process: Path) -> int:
    lines = (process / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "rows", nargs="*", choices=[[], *(row.name for row in ROWS)], help="default: all"
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=250_000)
    parser.add_argument(
        "--value", type=int, default=120, help="bytes; 120 make messages of about 150"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--master", default="local[2]")
    home = Path(os.environ.get("TMPDIR", "/tmp"))
    parser.add_argument("--work", type=Path, default=home / "lastwrite-bench-pulsar")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    try:
        theirs = Theirs(given.work / "standalone")
    except Unavailable as reason:
        raise SystemExit(str(reason)) from reason
    ours = {"spark": Ours("lastwrite", given.master), "inline": Ours("inline", "-")}
    try:
        rows = [
            measure(row, given, theirs, ours)
            for row in ROWS
            if not given.rows or row.name in given.rows
        ]
    finally:
        for contender in ours.values():
            contender.session.close()
        theirs.close()
    for found in rows:
        print(
            f"{found['row']}: {found['messages']} messages, {found['bytes'] / 1e6:.0f} MB, {found['entries_left']} "
            "entries left"
        )
        for side, told in found["sides"].items():
            print(
                f"    {side:7} {told['seconds']:7.2f} s, {told['cpu_seconds']:6.1f} s of processors, "
                f"at most {told['peak_mib']:5} MiB, {told['times_as_fast']:5.1f} times as fast"
            )
    if given.json:
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
