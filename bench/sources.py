"""Reading rows and writing tables, compared with other programs on the same files.

    python -m bench.sources [ROW ...] [--records N] [--repeats N] [--json FILE]

One real broker on this machine has two partitions of uncompressed records in batches of 500. Keys
have 8 bytes and values 88, and keys are drawn from a quarter as many. All processes of a side
count, and the broker counts for both: the peer reads from it, Lastwrite reads its log directory.

    source       ``format("lastwrite")``, all columns, without a result; against Spark's Kafka
    source
    columns      ``read(columns=["key", "offset"])``; against the Kafka source and ``select``
    compacted    ``read(view="compacted")``; against the Kafka source and a window over the key
    table        ``lastwrite.table``; against ``lastwrite.latest`` of a commit before tables existed
                 (record by record), and against the first version of tables, for Kafka only
    iceberg      ``table_to`` a new table, from the log to its commit; against the Kafka source, a
                 window over the key and Iceberg's own writer, in Spark
    delta        the same for Delta
    look         ``table[key]`` of random keys, warm: in a folder, and in a bucket that delays each
                 request by 0.02 s
    batch        Lastwrite's part of a micro-batch, without Spark and without rows: list the files,
                 choose the end, plan

Sides take turns. The first run of each is not timed, and its memory is sampled. Each of Lastwrite's
Python processes must stay below a table's memory setting. The size of a session is up to its user:
it has four Spark daemons, its planners, and as many workers as cores. Both sessions are
``local[2]``. The peer's PySpark is the newest whose Kafka source is on Maven. The results are
compared once: the number of rows, the sum of their offsets and, for tables, the number of keys.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from bench import generate
from bench.sampling import Sampler, Stopwatch, machine
from tests.support.kafka.broker import Broker, kafka_home
from tests.support.kafka.clients import create_topic
from tests.support.kafka.spark_source import PYSPARK, environment_of, peer_home
from tests.support.objects import BUCKET, fault_proxy, s3_server
from tests.support.tables.spark import SETTINGS, kafka_jars, spark_environment

REPOSITORY = Path(__file__).parents[1]
TOPIC = "rows"
_PARTITIONS = 2
_WORDS = 11  # words of 8 bytes in a value
_SEGMENT_BYTES = 256 << 20
_DELAY_S = 0.02
_LOOKS, _BUCKET_LOOKS, _BATCHES = 20_000, 100, 200
FORMATS = "iceberg", "delta"
_HISTORY = {"latest as it was": "64fd284^", "first table": "91bd969^"}

Made = dict[str, Any]
Run = dict[str, float]


class Warm(Broker):
    """A long-lived broker whose JVM uses all compiler tiers."""

    def _java(self, *arguments: str) -> Sequence[str]:
        return [word for word in super()._java(*arguments) if "TieredStopAtLevel" not in word]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid


# ---------------------------------------------------------------------- sides, in processes


class Side:
    """A process of one side. Each line that it gets is a piece of work."""

    def __init__(self, name: str, kind: str, environment: dict[str, str], *more: str) -> None:
        self.name = name
        self._said = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.sources", "--side", kind, *more],
            cwd=REPOSITORY,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, work: str) -> Made:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(work, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._said.seek(0)
            raise RuntimeError(f"{self.name} ended: {self._said.read()[-4000:]}")
        found: Made = json.loads(line)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(120)


def serve(kind: str, path: str, address: str) -> None:
    """Run one side: it reads work from standard input, and writes results to standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    kinds = {"ours": ours, "peer": theirs, "python": python, "writer": writer}
    works = kinds[kind](path, address)
    for line in sys.stdin:
        work = works[line.strip()]
        begin = time.perf_counter()
        found = work()
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, **found}), file=answers, flush=True)


def _session(**settings: str) -> Any:
    from pyspark.sql import SparkSession

    made = SparkSession.builder.master("local[2]")
    usual = {"spark.ui.enabled": "false", "spark.driver.memory": "4g"}
    usual["spark.sql.shuffle.partitions"] = "4"
    for name, value in {**usual, **settings}.items():
        made = made.config(name, value)
    return made.getOrCreate()


def _into_nothing(frame: Any) -> Made:
    frame.write.format("noop").mode("overwrite").save()
    return {}


def _sums(frame: Any) -> Made:
    rows, total = frame.selectExpr("count(*)", "sum(offset)").first()
    return {"rows": rows, "sum": total}


def ours(path: str, address: str) -> dict[str, Callable[[], Made]]:
    import lastwrite

    spark = _session()

    def source() -> Any:
        return spark.read.format("lastwrite").option("subscribe", TOPIC).load(path)

    def columns() -> Any:
        return lastwrite.read(path, TOPIC, spark=spark, columns=["key", "offset"])

    def compacted() -> Any:
        return lastwrite.read(path, TOPIC, spark=spark, view="compacted")

    return _works(source, columns, compacted)


def theirs(path: str, address: str) -> dict[str, Callable[[], Made]]:
    from pyspark.sql import Window
    from pyspark.sql.functions import col, row_number

    spark = _session(**{"spark.jars": os.environ["SPARK_PEER_JARS"]})

    def source() -> Any:
        asked = {"kafka.bootstrap.servers": address, "subscribe": TOPIC}
        return spark.read.format("kafka").options(**asked).load()

    def columns() -> Any:
        return source().select("key", "offset")

    def compacted() -> Any:
        last = Window.partitionBy("partition", "key").orderBy(col("offset").desc())
        first = source().withColumn("place", row_number().over(last)).where("place = 1")
        return first.where("value is not null").drop("place")

    return _works(source, columns, compacted)


def _works(*frames: Callable[[], Any]) -> dict[str, Callable[[], Made]]:
    found: dict[str, Callable[[], Made]] = {}
    for frame in frames:
        found[frame.__name__] = lambda frame=frame: _into_nothing(frame())
        found[f"{frame.__name__}?"] = lambda frame=frame: _sums(frame())
    return found


def writer(path: str, address: str) -> dict[str, Callable[[], Made]]:
    """The work of the side that writes tables with Spark."""
    from pyspark.sql import Window
    from pyspark.sql.functions import col, row_number

    house = f"{path}-written"
    catalog = {
        "spark.sql.catalog.peer": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.peer.type": "hadoop",
        "spark.sql.catalog.peer.warehouse": f"{house}/iceberg",
    }
    spark = _session(**{"spark.jars": os.environ["SPARK_PEER_JARS"]}, **SETTINGS, **catalog)

    def last_writes() -> Any:
        asked = {"kafka.bootstrap.servers": address, "subscribe": TOPIC}
        names = "key", "value", "partition", "offset", "timestamp"
        rows = spark.read.format("kafka").options(**asked).load().select(*names)
        last = Window.partitionBy("partition", "key").orderBy(col("offset").desc())
        first = rows.withColumn("place", row_number().over(last)).where("place = 1")
        return first.where("value is not null").drop("place")

    def iceberg() -> Made:
        spark.sql("drop table if exists peer.bench.rows purge")
        last_writes().writeTo("peer.bench.rows").using("iceberg").create()
        return {}

    def delta() -> Made:
        shutil.rmtree(f"{house}/delta", ignore_errors=True)
        last_writes().write.format("delta").save(f"{house}/delta")
        return {}

    return {
        "iceberg": iceberg,
        "iceberg?": lambda: _sums(spark.table("peer.bench.rows")),
        "delta": delta,
        "delta?": lambda: _sums(spark.read.format("delta").load(f"{house}/delta")),
    }


def python(path: str, address: str) -> dict[str, Callable[[], Made]]:
    import lastwrite

    def written(format: str) -> Made:
        shutil.rmtree(f"{path}-{format}", ignore_errors=True)
        lastwrite.table_to(path, TOPIC, to=f"{path}-{format}", format=format)
        return {}

    def sums(format: str) -> Made:
        from deltalake import DeltaTable

        from tests.support.tables.judges import iceberg_table

        if format == "delta":
            found = DeltaTable(f"{path}-delta").to_pyarrow_table(columns=["_offset"])
        else:
            table = iceberg_table(Path(f"{path}-iceberg"))
            found = table.scan(selected_fields=("_offset",)).to_arrow()
        return {"rows": len(found), "sum": int(np.asarray(found.column("_offset")).sum())}

    def table() -> Made:
        with lastwrite.table(path, TOPIC) as found:
            return {"keys": len(found)}

    def latest() -> Made:
        return {"keys": len(lastwrite.latest(path, TOPIC, limit_bytes=1 << 40))}

    def look() -> Made:
        with lastwrite.table(path, TOPIC) as found:
            return {"look": _looked(found, _LOOKS, 1e6)}

    tables = {format: partial(written, format) for format in FORMATS}
    sums_of = {f"{format}?": partial(sums, format) for format in FORMATS}
    return {"table": table, "latest": latest, "look": look, **tables, **sums_of}


# ---------------------------------------------------------------------- rows


class Bench:
    """The broker with its topic, and the number of repeats."""

    def __init__(self, folder: Path, records: int, repeats: int) -> None:
        self.folder, self.repeats = folder, repeats
        self.data, self.records, self.keys = folder / "data", records, records // 4
        settings = {"replica.high.watermark.checkpoint.interval.ms": "500"}
        self._broker = Warm(kafka_home(), self.data, settings)

    def __enter__(self) -> Bench:
        with self._broker as broker:
            create_topic(broker, TOPIC, {}, _PARTITIONS)
        each, keys = self.records // _PARTITIONS, self.keys // _PARTITIONS
        for n in range(_PARTITIONS):
            log = self.data / f"{TOPIC}-{n}"
            for file in log.glob("0*"):
                file.unlink()
            numbers = generate.drawn(keys, seed=n + 1, lowest=n * keys)
            generate.write_log(log, numbers, 0, each, _WORDS, _SEGMENT_BYTES, is_drawn=True)
        self._broker.start()
        time.sleep(3)  # until the broker has written its high watermarks
        return self

    def __exit__(self, *error: object) -> None:
        self._broker.stop()

    def side(self, name: str, kind: str, **environment: str) -> Side:
        return Side(name, kind, environment, str(self.data), self._broker.address)

    def spark_sides(self) -> list[Side]:
        home = peer_home()
        environment = environment_of(home, home / "jars")
        return [self.side("lastwrite", "ours"), self.side("Kafka source", "peer", **environment)]

    def turns(self, sides: Sequence[tuple[Side, str, int]]) -> dict[str, Any]:
        """Run the sides in turn, each with its work and its maximum number of runs."""
        runs: dict[str, list[Run]] = {side.name: [] for side, _, _ in sides}
        peaks: dict[str, Any] = {}
        for repeat in range(-1, self.repeats):
            for side, work, most in sides:
                if repeat < 0:
                    with Sampler(side.pid) as sampler:
                        side.ask(work)
                    peaks[side.name] = sampler.peak.to_dict()
                elif repeat < most:
                    runs[side.name].append(self._timed(side, work))
        found = {}
        for side, _, _ in sides:
            mine = runs[side.name]
            medians = {name: statistics.median(run[name] for run in mine) for name in mine[0]}
            found[side.name] = {"median": medians, "runs": mine, "memory": peaks[side.name]}
        return found

    def _timed(self, side: Side, work: str) -> Run:
        pid = self._broker.pid
        with Stopwatch(side.pid) as own, Stopwatch(pid) as of_broker:
            found = side.ask(work)
        return {
            "seconds": found["seconds"],
            "cpu": own.cpu_seconds + of_broker.cpu_seconds,
            "of it broker": of_broker.cpu_seconds,
        }

    # ------------------------------------------------------------------ Spark

    def in_spark(self, works: Sequence[str]) -> Iterator[tuple[str, Made]]:
        sides = self.spark_sides()
        try:
            for work in works:
                sums = {side.name: side.ask(f"{work}?") for side in sides}
                _hold(list(sums.values()), work)
                most = 1 if work == "compacted" and self.records > 4_000_000 else self.repeats
                found = self.turns([(sides[0], work, self.repeats), (sides[1], work, most)])
                yield work, {**found, "rows": sums["lastwrite"]["rows"]}
        finally:
            for side in sides:
                side.close()

    # ------------------------------------------------------------------ tables

    def written(self, formats: Sequence[str]) -> Iterator[tuple[str, Made]]:
        environment = spark_environment(kafka_jars())
        sides = [self.side("lastwrite", "python"), self.side("Spark", "writer", **environment)]
        try:
            for format in formats:
                found = self.turns([(side, format, self.repeats) for side in sides])
                sums = [side.ask(f"{format}?") for side in sides]
                _hold(sums, format)
                yield format, {**found, "rows": sums[0]["rows"]}
        finally:
            for side in sides:
                side.close()

    def table(self) -> Made:
        sides = [(self.side("lastwrite", "python"), "table", self.repeats)]
        for name, commit in _HISTORY.items():
            # a shallow clone lacks these commits
            with contextlib.suppress(subprocess.CalledProcessError):
                root = self._checked_out(commit)
                work, most = ("table", self.repeats) if "table" in name else ("latest", 1)
                path = os.pathsep.join([str(root / "src"), str(REPOSITORY)])
                sides.append((self.side(name, "python", PYTHONPATH=path), work, most))
        try:
            _hold([side.ask(work) for side, work, _ in sides], "table")
            return self.turns(sides)
        finally:
            for side, _, _ in sides:
                side.close()

    def _checked_out(self, commit: str) -> Path:
        root = self.folder / commit.rstrip("^")
        root.mkdir()
        packed = subprocess.run(
            ["git", "archive", commit, "src"], cwd=REPOSITORY, check=True, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "-C", str(root)], input=packed, check=True)
        return root

    def look(self) -> Made:
        import lastwrite

        found: Made = {}
        side = self.side("lastwrite", "python")
        with Sampler(side.pid) as sampler:
            found["folder, µs"] = side.ask("look")["look"]
        side.close()
        found["memory"] = sampler.peak.to_dict()
        with s3_server(self.folder / "s3") as server, fault_proxy(server.endpoint) as proxy:
            config = {"storage.endpoint": proxy.endpoint, "storage.allowHttp": "true"}
            address = f"s3://{BUCKET}/bench"
            done = lastwrite.fetch(
                [str(self.data)], address, topic=TOPIC, include_active=True, config=config
            )
            assert done.exit_status == 0, done
            with lastwrite.table(address, TOPIC, config=config) as table:
                proxy.spoil({"do": "slow", "seconds": _DELAY_S})
                found["bucket, ms"] = _looked(table, _BUCKET_LOOKS, 1e3)
        return found

    # ------------------------------------------------------------------ streams

    def batch(self) -> Made:
        from pyspark.sql.streaming.datasource import ReadMaxRows

        from lastwrite.rows.decoded import DecodedRows
        from lastwrite.source.options import parse
        from lastwrite.source.stream import StreamReader

        step = max(1, self.records // _BATCHES)
        given = {"path": str(self.data), "subscribe": TOPIC, "startingOffsets": "earliest"}
        asked = parse({**given, "maxOffsetsPerTrigger": str(step)}, is_stream=True)
        reader = StreamReader(asked, DecodedRows(asked.decoding, None, lambda: TOPIC))
        start, taken = reader.initialOffset(), []
        for _ in range(_BATCHES):
            begin = time.perf_counter()
            end = reader.latestOffset(start, ReadMaxRows(step))
            pieces = reader.partitions(start, end)
            taken.append(1e3 * (time.perf_counter() - begin))
            assert pieces and end != start
            start = end
        return {"ms": _shares(taken)}


def _looked(table: Any, count: int, unit: float) -> Made:
    keys = list(islice(table, 0, None, max(1, len(table) // count)))
    random.Random(1).shuffle(keys)
    for key in keys[:100]:
        table[key]
    taken = []
    for key in keys:
        begin = time.perf_counter()
        table[key]
        taken.append(unit * (time.perf_counter() - begin))
    return _shares(taken)


def _shares(taken: list[float]) -> Made:
    hundredths = statistics.quantiles(taken, n=100)
    return {"median": round(hundredths[49], 3), "99 of 100": round(hundredths[98], 3)}


def _hold(found: list[Made], work: str) -> None:
    """Compare the sides' results.

    Raises:
        SystemExit: They differ, so that the figures mean nothing.
    """
    if any({**each, "seconds": 0} != {**found[0], "seconds": 0} for each in found):
        raise SystemExit(f"{work}: results differ: {found}")


# ---------------------------------------------------------------------- targets

_BARS = {  # row: peer, required ratio, goal; in processor seconds
    "source": ("Kafka source", 2.5, 4),
    "columns": ("Kafka source", 6, 10),
    "compacted": ("Kafka source", 8, 15),
    "table": ("latest as it was", 20, 50),
    "iceberg": ("Spark", 5, 8),
    "delta": ("Spark", 5, 8),
}
_LIMITS = {  # (row, figure): required limit, goal
    ("look", "folder, µs"): (200, 50),
    ("look", "bucket, ms"): (45, 25),
    ("batch", "ms"): (150, 50),
}


def told(row: str, found: Made) -> Iterator[str]:
    for name, side in found.items():
        if isinstance(side, dict) and "runs" in side:
            median, memory = side["median"], side["memory"]
            yield (
                f"{row:10} {name:17} {median['seconds']:7.2f} s  CPU {median['cpu']:7.2f} s "
                f"(broker {median['of it broker']:.2f}), {len(side['runs'])} runs, "
                f"peak {memory['peak_pss_mib']} MiB {memory['at_peak_pss_mib']}"
            )
    if row in _BARS and _BARS[row][0] in found:
        other, must, goal = _BARS[row]
        sides = (found[name]["median"] for name in (other, "lastwrite"))
        theirs, mine = sides
        for what in ("cpu", "seconds"):
            ratio = theirs[what] / mine[what]
            said = _judged(ratio, goal, must, False) if what == "cpu" else ""
            yield f"{row:10} {ratio:.1f} times less {what} than {other} {said}"
    memory = found.get("lastwrite", found).get("memory")
    if memory is not None:
        from lastwrite.commands.table import MEMORY  # older commits do not have this module
        from lastwrite.spark.memory import parse_bytes

        setting = parse_bytes(MEMORY) >> 20
        largest = memory["largest_python_mib"]
        judged = "kept" if largest <= setting else "MISSED"
        yield f"{row:10} largest Python process {largest} of {setting} MiB: {judged}"
    for (of, name), (must, goal) in _LIMITS.items():
        if of == row:
            judged = _judged(found[name]["median"], goal, must, True)
            yield f"{row:10} {name}: {found[name]} {judged}"


def _judged(value: float, goal: float, must: float, is_most: bool) -> str:
    sign = -1 if is_most else 1
    reached = "goal" if sign * value >= sign * goal else "must"
    reached = "MISSED" if sign * value < sign * must else reached
    return f"(must {must}, goal {goal}: {reached})"


ROWS = ("source", "columns", "compacted", *FORMATS, "table", "look", "batch")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--records", type=float, default=16e6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        serve(*asked.side)
        return 0
    wanted = asked.rows or ROWS
    if set(wanted) - set(ROWS):
        parser.error(f"rows are {', '.join(ROWS)}")
    found: Made = {"records": int(asked.records), "machine": machine(), "peer": PYSPARK}
    print(found, flush=True)

    def tell(row: str, some: Made) -> None:
        found[row] = some
        print(*told(row, some), sep="\n", flush=True)

    folder = Path(tempfile.mkdtemp(prefix="lastwrite-bench-"))
    try:
        with Bench(folder, int(asked.records), asked.repeats) as bench:
            in_spark = [row for row in wanted if row in ROWS[:3]]
            for row, some in bench.in_spark(in_spark) if in_spark else ():
                tell(row, some)
            written = [row for row in wanted if row in FORMATS]
            for row, some in bench.written(written) if written else ():
                tell(row, some)
            for row in (row for row in wanted if row in ROWS[5:]):
                tell(row, getattr(bench, row)())
    finally:
        shutil.rmtree(folder)
    found["load"] = os.getloadavg()[0]
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
