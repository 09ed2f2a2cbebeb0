"""Updating tables, compared with merges of others:  python -m bench.kept_tables --keys 5000000

A topic with that many keys of 12 bytes and values of 88 becomes a table of each format. Then 2.2 %
of the keys, spread at random, are written (a tenth of these are deletes), and the table is updated.
The peers get the same rows: ``merge`` of delta-rs and, with ``--spark``, ``MERGE`` of Iceberg in
Spark. ``upsert`` of pyiceberg gets a hundredth, because it takes seconds for a thousand rows.

Each step is a process of its own. The results are its CPU seconds in all threads, those of a
process that only starts, its peak memory, and the new bytes on disk. With ``--warm``, each process
first does its step with 2,000 keys, and only the CPU seconds after that count: without imports and
loading of kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.sampling import cpu_seconds
from tests.support.kafka.growing import GrowingLog
from tests.support.tables.spark import SETTINGS, spark_environment

BUCKET_KEYS = 320_000  # approximate number of keys in a bucket
AT_ONCE = 1000  # records in a batch
SHARE = 0.022  # the share of the keys that an update writes
ROUNDS = 100  # consecutive updates
FORMATS = "iceberg", "iceberg-vectors", "delta", "delta-vectors", "parquet"
KEPT = FORMATS[:4]  # the formats of the test with many updates
VECTORS = "-vectors"
WARM_KEYS = 2_000


def key_of(number: int) -> bytes:
    return b"key-%08d" % number


def value_of(number: int, version: int) -> bytes:
    return random.Random(number * 1009 + version).randbytes(66).hex()[:88].encode()


def changes_of(keys: int, version: int) -> Iterator[tuple[bytes, bytes | None]]:
    draw = random.Random(version)
    for n, number in enumerate(draw.sample(range(keys), int(keys * SHARE))):
        yield key_of(number), None if n % 10 == 0 else value_of(number, version)


def append(log: GrowingLog, records: Iterator[tuple[bytes, bytes | None]]) -> None:
    """Append the records in batches."""
    waiting = []
    for key, value in records:
        waiting.append((key, value, 1_700_000_000_000 + log.end))
        if len(waiting) == AT_ONCE:
            log.append(waiting)
            waiting = []
    log.append(waiting)


# ---------------------------------------------------------------------- steps


def step_start(folder: Path, keys: int, of: str) -> None:
    import deltalake
    import pyiceberg.catalog.sql

    import lastwrite

    assert deltalake and pyiceberg.catalog.sql and lastwrite.table_to


def step_ours(folder: Path, keys: int, of: str) -> None:
    import lastwrite

    to = folder / of
    buckets = 1 << max(0, (keys // BUCKET_KEYS - 1)).bit_length()
    how: dict[str, Any] = {} if to.exists() else {"buckets": buckets}
    plain = of.removesuffix(VECTORS)
    how["vectors"] = plain != of
    lastwrite.table_to(str(folder / "log"), "t", to=str(to), format=plain, **how)


def _changed(keys: int, part: int = 1, version: int = 1) -> Any:
    import pyarrow as pa

    found = [change for change in changes_of(keys, version) if part == 1 or change[1]][::part]
    keys_, values = zip(*found, strict=True)
    return pa.table({"key": pa.array(keys_, pa.binary()), "value": pa.array(values, pa.binary())})


def step_whole_peer(folder: Path, keys: int, of: str) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake
    from pyiceberg.catalog import load_catalog

    numbers = range(keys)
    whole = pa.table(
        {
            "key": pa.array([key_of(n) for n in numbers], pa.binary()),
            "value": pa.array([value_of(n, 0) for n in numbers], pa.binary()),
        }
    )
    write_deltalake(str(folder / "delta-rs"), whole)
    (folder / "pyiceberg").mkdir()
    catalog = load_catalog(
        "peer",
        type="sql",
        uri=f"sqlite:///{folder}/pyiceberg/catalog.db",
        warehouse=f"file://{folder}/pyiceberg",
    )
    catalog.create_namespace("a")
    catalog.create_table("a.t", schema=whole.schema).append(whole)


def step_merge(folder: Path, keys: int, of: str) -> None:
    from deltalake import DeltaTable

    merge = DeltaTable(str(folder / "delta-rs")).merge(
        _changed(keys), "s.key = t.key", source_alias="s", target_alias="t"
    )
    merge = merge.when_matched_delete("s.value is null")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def step_upsert(folder: Path, keys: int, of: str) -> None:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("peer", type="sql", uri=f"sqlite:///{folder}/pyiceberg/catalog.db")
    catalog.load_table("a.t").upsert(_changed(keys, 100), join_cols=["key"])


def step_spark_merge(folder: Path, keys: int, of: str) -> None:
    """Time Iceberg's ``MERGE`` in Spark, on a table with position deletes.

    The first of two merges is a warm-up. Only the second, with other keys, is counted.
    """
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

    house = folder / "spark"
    settings = SETTINGS | {
        "spark.jars": os.environ["SPARK_PEER_JARS"],
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.catalog.peer": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.peer.type": "hadoop",
        "spark.sql.catalog.peer.warehouse": str(house),
    }
    spark: Any = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
    modes = ", ".join(f"'write.{each}.mode'='merge-on-read'" for each in ("update", "merge"))
    whole = spark.read.parquet(str(folder / "delta-rs"))
    whole.createTempView("whole")
    spark.sql(
        f"create table peer.a.t using iceberg tblproperties ('format-version'='2', {modes})"
        " as select * from whole"
    )
    used = 0.0
    for version in (2, 1):
        pq.write_table(_changed(keys, version=version), folder / f"changes-{version}.parquet")
        spark.read.parquet(str(folder / f"changes-{version}.parquet")).createTempView(f"s{version}")
        before = cpu_seconds(os.getpid())
        spark.sql(
            f"merge into peer.a.t t using s{version} s on s.key = t.key"
            " when matched and s.value is null then delete when matched then update set *"
            " when not matched and s.value is not null then insert *"
        )
        used = cpu_seconds(os.getpid()) - before
    print(json.dumps({"cpu_s": round(used, 2)}), flush=True)
    spark.stop()
    os._exit(0)


def step_read(folder: Path, keys: int, of: str) -> None:
    if of.startswith("delta"):
        from deltalake import DeltaTable

        assert DeltaTable(str(folder / of)).scan().read_all().num_rows
    else:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("lastwrite", type="sql", uri=f"sqlite:///{folder}/{of}/catalog.db")
        assert catalog.load_table(("lastwrite", "t")).scan().to_arrow().num_rows


STEPS = {
    name.removeprefix("step_"): step for name, step in globals().items() if name.startswith("step_")
}


def warm_up(step: str, of: str) -> None:
    """Run the step with few keys, so that everything that it needs is loaded."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "log").mkdir()
        log = GrowingLog(folder / "log")
        append(log, ((key_of(n), value_of(n, 0)) for n in range(WARM_KEYS)))
        before = {"merge": "whole_peer", "upsert": "whole_peer", "read": "ours"}.get(step, step)
        STEPS[before](folder, WARM_KEYS, of)
        append(log, changes_of(WARM_KEYS, 1))
        if step != "whole_peer":
            STEPS[step](folder, WARM_KEYS, of)


def run_step(
    step: str, folder: Path, keys: int, of: str = "", is_warm: bool = False
) -> dict[str, float]:
    """Run the step in a process of its own.

    Returns CPU and wall seconds, peak MiB and MB written.
    """
    command = [sys.executable, "-m", "bench.kept_tables", "--step", step, "--of", of]
    environment = spark_environment() if step == "spark_merge" else None
    command += ["--warm"] * is_warm
    before = _sizes(folder)
    began = time.monotonic()
    done = subprocess.run(
        [*command, "--keys", str(keys), "--folder", str(folder)],
        capture_output=True,
        text=True,
        env=environment,
    )
    wall_s = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"{step} {of}: {done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    after = _sizes(folder)
    written = sum(size for path, size in after.items() if path not in before)
    return found | {"wall_s": round(wall_s, 2), "written_mb": round(written / 1e6, 2)}


def _sizes(folder: Path) -> dict[Path, int]:
    return {
        path: path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and "log" not in path.relative_to(folder).parts[:1]
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.kept_tables", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--keys", type=int, default=5_000_000, help="of the topic")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="updates in a row")
    parser.add_argument(
        "--folder", type=Path, help="where all of it lies; default: a temporary one"
    )
    parser.add_argument("--warm", action="store_true", help="without imports")
    parser.add_argument("--spark", action="store_true", help="Iceberg's MERGE in Spark, too")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--of", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        if arguments.warm:
            warm_up(arguments.step, arguments.of)
        before = resource.getrusage(resource.RUSAGE_SELF)
        STEPS[arguments.step](arguments.folder, arguments.keys, arguments.of)
        used = resource.getrusage(resource.RUSAGE_SELF)
        peak = round(used.ru_maxrss / 1024)
        cpu_s = used.ru_utime + used.ru_stime
        if arguments.warm:
            cpu_s -= before.ru_utime + before.ru_stime
        found = {"cpu_s": round(cpu_s, 2), "peak_mib": peak}
        print(json.dumps(found), flush=True)
        os._exit(0)  # deltalake's threads may abort a process that exits normally
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        measure(Path(folder), arguments.keys, arguments.rounds, arguments.warm, arguments.spark)
    return 0


def measure(folder: Path, keys: int, rounds: int, is_warm: bool, has_spark: bool) -> None:
    run = partial(run_step, is_warm=is_warm)

    def tell(what: str, found: dict[str, float]) -> None:
        words = ", ".join(f"{name} {value}" for name, value in found.items())
        print(f"{what:<44} {words}", flush=True)

    (folder / "log").mkdir()
    log = GrowingLog(folder / "log")
    append(log, ((key_of(n), value_of(n, 0)) for n in range(keys)))
    run("start", folder, keys)
    tell("start alone", run("start", folder, keys))
    for format in FORMATS:
        tell(f"whole table, {keys:,} keys: {format}", run("ours", folder, keys, format))
    tell("peers' tables are written", run("whole_peer", folder, keys))
    append(log, changes_of(keys, 1))
    count = int(keys * SHARE)
    for format in FORMATS:
        tell(f"update of {count:,} keys: {format}", run("ours", folder, keys, format))
    tell(f"merge of {count:,} keys: delta-rs", run("merge", folder, keys))
    if has_spark:
        tell(f"MERGE of {count:,} keys: Iceberg in Spark", run_step("spark_merge", folder, keys))
    tell(f"upsert of {-(-count // 100):,} keys: pyiceberg", run("upsert", folder, keys))
    for format in KEPT:
        tell(f"a full read after one update: {format}", run("read", folder, keys, format))
    for number in range(2, rounds + 1):
        append(log, changes_of(keys, number))
        for format in KEPT:
            found = run("ours", folder, keys, format)
            if number in (2, rounds) or number % 20 == 0:
                tell(f"update {number} in a row: {format}", found)
    for format in KEPT:
        tell(f"a full read after {rounds} updates: {format}", run("read", folder, keys, format))


if __name__ == "__main__":
    sys.exit(main())
