"""The cost of a record as logs, keys and partitions grow."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.logs import Logs, LogSpec, check_small, small_records
from bench.rows import Target
from bench.sampling import Peak, Sampler, touch_memory
from bench.sides import ColdLastwrite, Side, WarmLastwrite

SIZES = (1_000_000, 16_000_000, 64_000_000)
BIGGEST = 256_000_000
# larger logs are written again for each run: two of them would not fit in the page cache
_COPIED = 16_000_000
MANY_KEYS = 100_000_000
Say = Callable[[str], None]


def sizes(logs: Logs, master: str, repeats: int, say: Say, biggest: bool) -> dict[str, Any]:
    """Lastwrite's warm cost of a record for logs of growing sizes. The largest one runs once."""
    found: list[dict[str, Any]] = []
    sizes = (*SIZES, BIGGEST) if biggest else SIZES
    session = WarmLastwrite(master, _spec(SIZES[0]).config)
    try:
        for records in sizes:
            times = repeats if records <= _COPIED else min(repeats, 3) if records < BIGGEST else 1
            found.append(_size(session, records, logs, times, say))
    finally:
        session.close()
        logs.clear()
    cost = [side["median_seconds"] / side["records"] for side in found]
    for side, one in zip(found, cost, strict=True):
        side["nanoseconds_a_record"] = round(one * 1e9, 1)
    figures = {
        "spread": round(max(cost) / min(cost), 3),
        "spread from 16 M on": round(max(cost[1:]) / min(cost[1:]), 3),
    }
    return _row(
        "size",
        f"{', '.join(str(size // 1_000_000) for size in sizes)} M records of 40 bytes",
        found,
        figures,
        (
            Target("spread", 1.2, 1.4, at_most=True),
            Target("spread from 16 M on", 1.15, 1.3, at_most=True),
        ),
        master,
        repeats,
    )


def _spec(records: int) -> LogSpec:
    return small_records(records, records // 4)


def _size(
    session: WarmLastwrite, records: int, logs: Logs, repeats: int, say: Say
) -> dict[str, Any]:
    spec = _spec(records)
    side = Side(f"{records // 1_000_000} M", setting_bytes=session.setting_bytes)
    size = 0
    # A session that is warm for a small log is warm for a large one.
    for repeat in range(-1 if records <= _COPIED else 0, repeats):
        if records <= _COPIED:
            source, facts = logs.source(spec)
            folder = logs.copy(source)
        else:
            folder, facts = logs.fresh(spec)
            touch_memory()  # the log has taken the memory that was touched before
        size = facts["bytes"]
        # rare enough to cost less than 1 %
        with Sampler(session.pid, every_seconds=0.5) as sampler:
            outcome, cpu = session.run(folder, None)
        side.sampled(sampler.peak)
        if repeat >= 0:
            side.take(outcome, cpu, None)
            side.bytes_left = outcome.bytes_left
        if repeat == 0 and check_small(folder, records, spec.keys) != outcome.records_left:
            raise SystemExit(f"{side.name}: {outcome.records_left} records were reported")
    say(f"  {side.name}: {', '.join(f'{s:.2f}' for s in side.seconds)} s")
    return {**side.to_dict(), "records": records, "bytes": size}


def keys(logs: Logs, work: Path, master: str, say: Say) -> dict[str, Any]:
    """100 M distinct keys within 2 GiB, compared with 4 M keys in as many records of the same size.

    Both are command lines, timed as a whole.
    """
    records, few_keys, memory = MANY_KEYS + MANY_KEYS // 10, 4_000_000, 2 << 30
    spec = small_records(records, few_keys)
    few = Side("4 M keys", setting_bytes=memory)
    folder, facts = logs.fresh(spec)
    peaks: list[Peak] = []
    outcome, cpu = ColdLastwrite(master, spec.config, memory).run(
        folder, peaks
    )  # sampled, as in memory.py
    few.take(outcome, cpu, None)
    few.sampled(peaks[0])
    if check_small(folder, records, few_keys) != outcome.records_left:
        raise SystemExit(f"4 M keys: {outcome.records_left} records were reported")
    few.bytes_left = outcome.bytes_left
    logs.clear()
    say(f"  4 M keys: {few.median_seconds:.2f} s")
    told = _program(
        "memory",
        "--keys",
        str(MANY_KEYS),
        "--memory",
        "2g",
        "--master",
        master,
        "--work",
        str(work),
    )
    say(f"  {MANY_KEYS // 1_000_000} M keys: {told['seconds']:.2f} s, {told['peak_pss_mib']} MiB")
    many = {
        "name": f"{MANY_KEYS // 1_000_000} M keys",
        "repeats": 1,
        "seconds": [told["seconds"]],
        "median_seconds": told["seconds"],
        "best_seconds": told["seconds"],
        "stage_seconds": told["stage_seconds"],
        "profile": told.get("profile", {}),
        "records_left": told["records_left"],
        "bytes_left": told["bytes_left"],
        "records": told["records"],
        "bytes": told["bytes"],
        "memory_setting_mib": 2048,
        **{name: told[name] for name in ("peak_pss_mib", "peak_rss_mib", "at_peak_pss_mib")},
    }
    few_costs = few.median_seconds / records
    figures = {
        "4 M keys": round(many["median_seconds"] / many["records"] / few_costs, 3),
        "of the setting": round(many["peak_pss_mib"] / 2048, 3),
    }
    found = [{**few.to_dict(), "records": records, "bytes": facts["bytes"]}, many]
    for side in found:
        side["nanoseconds_a_record"] = round(side["median_seconds"] / side["records"] * 1e9, 1)
    return _row(
        "keys",
        "100 M distinct keys within 2 GiB, 110 M records, cold",
        found,
        figures,
        (Target("4 M keys", 2, 2, at_most=True), Target("of the setting", 1, 1, at_most=True)),
        master,
        1,
    )


def partitions(work: Path, say: Say) -> dict[str, Any]:
    """2,000 partitions of 1 MB in one command, against Kafka's rounds over a tenth of them."""
    told = _program(
        "partitions",
        "--many-only",
        "--partitions",
        "2000",
        "--kib",
        "1024",
        "--kafka",
        "200",
        "--folder",
        str(work),
    )
    say(f"  {told}")
    ours, theirs = told["round_ms_each"] / 1e3, told["kafka_round_ms_each"] / 1e3
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "repeats": 1,
            "median_seconds": round(2000 * each, 3),
            "best_seconds": round(2000 * each, 3),
        }
        for name, each in (("kafka", theirs), ("lastwrite", ours))
    ]
    found[1] |= {name: told[name] for name in ("peak_pss_mib", "peak_rss_mib", "at_peak_pss_mib")}
    return {
        **_row(
            "partitions",
            "2,000 partitions of 1 MB",
            found,
            {},
            (Target("kafka", 10, 5),),
            "local[*]",
            1,
        ),
        "told": told,
    }


def _program(name: str, *options: str) -> dict[str, Any]:
    """The JSON output of another benchmark.

    Its exit status only tells whether it reached its target.
    """
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as said:
        done = subprocess.run(
            [sys.executable, "-m", f"bench.{name}", *options],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            check=False,
        )
        said.seek(0)
        if not done.stdout.lstrip().startswith("{"):
            raise SystemExit(f"{name} ended with {done.returncode}: {said.read()[-2000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return {**answer, "all_seconds": round(time.perf_counter() - begin, 1)}


def _row(
    name: str,
    title: str,
    sides: list[dict[str, Any]],
    figures: dict[str, float],
    targets: tuple[Target, ...],
    master: str,
    repeats: int,
) -> dict[str, Any]:
    seconds = {side["name"]: side["median_seconds"] for side in sides}
    return {
        "row": name,
        "title": title,
        "cores": master,
        "repeats": repeats,
        "sides": sides,
        "figures": figures,
        "targets": [target.judged(seconds, figures) for target in targets],
    }
