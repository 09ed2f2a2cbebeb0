"""Runs a benchmark row: the contenders in turn, so that the machine's load affects all.

The results are compared afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from bench.least import least
from bench.logs import Logs
from bench.rows import Row
from bench.sampling import Peak
from bench.sides import Contender, Side, copy_floor, workers_of

Say = Callable[[str], None]


def measure(name: str, row: Row, logs: Logs, master: str, repeats: int, say: Say) -> dict[str, Any]:
    """Run a row. Returns all figures, for tables and JSON.

    Raises:
        SystemExit: The results differ, so that the figures mean nothing.
    """
    source, facts = logs.source(row.spec)
    load = os.getloadavg()[0]
    contenders: list[Contender] = []
    without_deciding: dict[str, float] = {}
    sides: list[Side] = []
    floor = Side("cp")
    try:
        contenders += row.contenders(master, row.spec.config)
        sides += [Side(one.name, setting_bytes=one.setting_bytes) for one in contenders]
        # The first run is a warm-up in which memory is sampled. Lastwrite's is sampled in a last
        # run, too.
        for repeat in range(-1, repeats + 1):
            is_timed = 0 <= repeat < repeats
            for contender, side in zip(contenders, sides, strict=True):
                if repeat >= min(contender.most, repeats) and not (
                    repeat == repeats and contender.setting_bytes
                ):
                    continue
                folder = logs.copy(source)
                peaks: list[Peak] = []
                outcome, cpu = contender.run(folder, None if is_timed else peaks)
                for peak in peaks:
                    side.sampled(peak)
                if is_timed:
                    side.take(outcome, cpu, folder if contender.leaves_a_log else None)
                    if side.name == "lastwrite":
                        copy_floor(source, folder, floor)
                        if repeat == repeats - 1:
                            without_deciding = least(source, folder, workers_of(master))
            tell(repeat, repeats, [*sides, floor], say)
    finally:
        for contender in contenders:
            contender.close()
        logs.clear()
    equal = check_equal(sides, row.same_bytes)
    ours = next(side for side in sides if side.name == "lastwrite")
    seconds = {side.name: side.median_seconds for side in [*sides, floor]}
    figures = {}
    if ours.peak and ours.setting_bytes:
        figures["of the setting"] = round(ours.peak.pss_bytes / ours.setting_bytes, 3)
    if row.loud_share:
        figures["written"] = round(
            ours.outcomes[-1].bytes_written / (facts["bytes"] * row.loud_share), 3
        )
    return {
        "row": name,
        "title": row.title,
        "records": facts["records"],
        "bytes": facts["bytes"],
        "segments": facts["segments"],
        "keys": row.spec.keys,
        "cores": master,
        "repeats": repeats,
        **equal,
        "sides": [side.to_dict() for side in [*sides, floor]],
        "figures": figures,
        "without_deciding": without_deciding,
        "targets": [target.judged(seconds, figures) for target in row.targets],
        "load_average": [load, os.getloadavg()[0]],
    }


def tell(repeat: int, repeats: int, sides: list[Side], say: Say) -> None:
    what = "warm-up" if repeat < 0 else f"repeat {repeat + 1}" if repeat < repeats else "memory"
    figures = ", ".join(
        f"{side.name} {side.seconds[-1]:.2f} s" for side in sides if 0 <= repeat < len(side.seconds)
    )
    say(f"  {what}: {figures or 'done'}")


def check_equal(sides: list[Side], same_bytes: bool) -> dict[str, object]:
    """Compare the results: record counts, checksums of the records and, if required, bytes.

    Raises:
        SystemExit: They differ.
    """
    counts = {side.name: side.outcomes[-1].records_left for side in sides}
    if len(set(counts.values())) != 1:
        raise SystemExit(f"records left differ: {counts}")
    logs = [side for side in sides if side.contents]
    contents = {side.name: side.contents for side in logs}
    if len(set(contents.values())) != 1 or any(
        found and found.records != counts[n] for n, found in contents.items()
    ):
        raise SystemExit(f"records differ: {contents}; counted {counts}")
    digests = {side.name: (side.bytes_left, side.digest) for side in logs}
    if same_bytes and len(set(digests.values())) != 1:
        raise SystemExit(f"bytes left differ: {digests}")
    return {"equal_records": True, "equal_bytes": len(set(digests.values())) == 1}
