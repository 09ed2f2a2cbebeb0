"""Lastwrite compared with Kafka's own cleaner, naive Spark and ``cp``, on the same files.

    python -m bench.run                     # every row, five repeats
    python -m bench.run none-warm naive     # these rows only
    python -m bench.run --list

A repeat of a row runs each side once, one after the other, so that the machine's load affects all.
The tables show medians. Every run gets a fresh copy of the log, which is synced before the clock
starts. After each row the remaining records are compared by a sum of their hashes. If the row
requires it, all bytes are compared, too.

README.md in this folder describes the rows, the columns and what is not measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import scaling
from bench.logs import Logs
from bench.measure import measure
from bench.rows import ROWS
from bench.sampling import machine, touch_memory
from bench.tables import least_of, markdown_of, profiles_of, sides_of, targets_of

_SCALING = {
    "size": "1 M, 16 M, 64 M, with --biggest 256 M records: the cost of one",
    "keys": "100 M distinct keys within 2 GiB (memory.py), beside 4 M",
    "partitions": "2,000 partitions of 1 MB (partitions.py)",
}
TITLES = {**{name: row.title for name, row in ROWS.items()}, **_SCALING}


def found_in(name: str, logs: Logs, given: argparse.Namespace) -> dict[str, Any]:
    if name == "size":
        return scaling.sizes(logs, given.master, given.repeats, say, given.biggest)
    if name == "keys":
        return scaling.keys(logs, given.work, given.master, say)
    if name == "partitions":
        return scaling.partitions(given.work, say)
    return measure(name, ROWS[name], logs, given.master, given.repeats, say)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Lastwrite beside Kafka's cleaner, naive Spark and cp."
    )
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"of: {', '.join(TITLES)}; default: all"
    )
    parser.add_argument("--list", action="store_true", help="say what the rows are")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--biggest", action="store_true", help="of the row size also 256 M records: 16 GB of disk"
    )
    parser.add_argument("--master", default="local[2]")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path(os.environ.get("TMPDIR", "/tmp")) / "lastwrite-bench",
        help="where logs and copies lie; the logs stay for the next run",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write everything measured to this file"
    )
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write the table of ratios to this file"
    )
    given = parser.parse_args()
    if given.list:
        for name, title in TITLES.items():
            print(f"{name:16}  {title}")
        return 0
    unknown = [name for name in given.rows if name not in TITLES]
    if unknown:
        parser.error(f"no such row: {', '.join(unknown)}")
    logs = Logs(given.work)
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {"machine": machine(), "rows": rows}
    try:
        for name in given.rows or TITLES:
            say(f"{name}: {TITLES[name]}")
            touch_memory()
            begin = time.perf_counter()
            rows.append(found_in(name, logs, given))
            rows[-1]["all_seconds"] = round(time.perf_counter() - begin, 1)
            if given.json:
                given.json.write_text(json.dumps(result, indent=1) + "\n")
            if given.markdown:
                given.markdown.write_text(markdown_of(rows))
    finally:
        logs.clear()
    seen = result["machine"]
    console = Console(width=None if sys.stdout.isatty() else 200)
    console.print(
        f"{seen['processor']}, {seen['cores']} cores, {seen['memory_mib'] / 1024:.0f} GiB; master {given.master}; "
        f"medians of {given.repeats} where no other number stands; load average at the begin "
        f"{seen['load_average']:.1f}; {sum(row['all_seconds'] for row in rows) / 60:.0f} minutes"
    )
    above = [row["title"] for row in rows if row["figures"].get("of the setting", 0) > 1]
    if above:
        console.print(f"Above the memory setting: {'; '.join(above)}", style="bold red")
    for table in (sides_of(rows), profiles_of(rows), least_of(rows), targets_of(rows)):
        console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
