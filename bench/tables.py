"""Prints the results: on a terminal, and as the table of the README."""

from __future__ import annotations

from typing import Any

from rich.table import Table

Found = dict[str, Any]


def sides_of(rows: list[Found]) -> Table:
    table = Table(header_style="bold")
    for column in (
        "Work",
        "",
        "Runs",
        "Median s",
        "Best s",
        "CPU s",
        "of it JVM",
        "M rec/s",
        "MB/s in",
        "Left",
        "MB left",
        "MB written",
        "Peak MiB",
        "of",
    ):
        table.add_column(column, justify="left" if column in ("Work", "") else "right")
    for row in rows:
        for n, side in enumerate(row["sides"]):
            seconds = side["median_seconds"]
            is_floor = side["name"] == "cp"
            records = 0 if is_floor else side.get("records", row.get("records", 0))
            size = side["bytes_left"] if is_floor else side.get("bytes", row.get("bytes", 0))
            table.add_row(
                row["title"] if n == 0 else "",
                side["name"],
                str(side["repeats"]),
                f"{seconds:.2f}",
                f"{side['best_seconds']:.2f}",
                _figure(side.get("median_cpu_seconds")),
                _figure(side.get("median_cpu_seconds_of", {}).get("jvm")),
                _figure(records / seconds / 1e6),
                f"{size / seconds / 1e6:.0f}" if size else "",
                f"{side['records_left']:,}" if side.get("records_left") else "",
                _megabytes(side.get("bytes_left")),
                _megabytes(side.get("bytes_written")),
                str(side.get("peak_pss_mib", "")),
                str(side.get("memory_setting_mib") or ""),
                end_section=n == len(row["sides"]) - 1,
            )
    return table


def _megabytes(size: int | None) -> str:
    return f"{size / 1e6:.1f}" if size else ""


def _figure(value: float | None) -> str:
    return f"{value:.2f}" if value else ""


def profiles_of(rows: list[Found]) -> Table:
    """The time of each stage in each row's median run. JVM and driver are in processor seconds."""
    table = Table(
        title="Lastwrite, stage by stage, of the median run",
        title_justify="left",
        header_style="bold",
    )
    for column in (
        "Work",
        "Stage",
        "Seconds",
        "Tasks",
        "in tasks",
        "their CPU",
        "outside",
        "between",
        "Largest steps",
    ):
        table.add_column(
            column, justify="left" if column in ("Work", "Stage", "Largest steps") else "right"
        )
    for row in rows:
        for side in row["sides"]:
            stages, profile = side.get("stage_seconds") or {}, side.get("profile") or {}
            if not stages or side["name"] == "kafka":
                continue
            work = (
                row["title"] if side["name"] == "lastwrite" else f"{row['title']}: {side['name']}"
            )
            names = [*stages, *(name for name in profile if name not in stages)]
            for n, name in enumerate(names):
                found = profile.get(name, {})
                steps = sorted(found.get("steps", {}).items(), key=lambda step: -step[1])[:5]
                table.add_row(
                    work if n == 0 else "",
                    name,
                    f"{found.get('seconds', stages.get(name, 0.0)):.2f}",
                    str(found.get("tasks", "")),
                    *(
                        _figure(found.get(f"{part}_seconds"))
                        for part in ("task", "task_cpu", "outside", "between")
                    ),
                    ", ".join(f"{step} {seconds:.2f}" for step, seconds in steps),
                )
            cpu = side.get("median_cpu_seconds_of")
            if not cpu:
                table.add_section()
                continue
            table.add_row(
                "",
                "processor",
                _figure(sum(cpu.values())),
                "",
                "",
                "",
                "",
                "",
                ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in cpu.items()),
                end_section=True,
            )
    return table


def least_of(rows: list[Found]) -> Table:
    """The time of two passes without decisions (``bench.least``), and a peer's as its multiple."""
    table = Table(title="Two passes that decide nothing", title_justify="left", header_style="bold")
    for column in ("Work", "Seconds", "Ours", "Kafka, times it", "Steps"):
        table.add_column(column, justify="left" if column in ("Work", "Steps") else "right")
    for row in rows:
        steps = row.get("without_deciding")
        if not steps:
            continue
        took = {side["name"]: side["median_seconds"] for side in row["sides"]}
        whole = sum(steps.values())
        table.add_row(
            row["title"],
            f"{whole:.2f}",
            f"{took['lastwrite']:.2f}",
            f"{took['kafka'] / whole:.1f}" if "kafka" in took else "",
            ", ".join(f"{step} {seconds:.2f}" for step, seconds in steps.items()),
        )
    return table


def targets_of(rows: list[Found]) -> Table:
    table = Table(title="What should be reached", title_justify="left", header_style="bold")
    for column in ("Work", "Ratio", "Found", "Goal", "Must", "Reached"):
        table.add_column(
            column, justify="left" if column in ("Work", "Ratio", "Reached") else "right"
        )
    for row in rows:
        for n, target in enumerate(row["targets"]):
            goal, must = _bars(target)
            table.add_row(
                row["title"] if n == 0 else "",
                _ratio_name(target),
                f"{target['value']:.2f}",
                goal,
                must,
                target["reached"],
                end_section=n == len(row["targets"]) - 1,
            )
    return table


def _bars(target: Found) -> tuple[str, str]:
    sign = "≤ " if target["at_most"] else ""
    goal, must = (
        "" if target[bar] is None else f"{sign}{target[bar]:g}" for bar in ("goal", "must")
    )
    return goal, must


_NAMES = {
    "cp": "of cp's time",
    "written": "written, of the bytes of segments that lose records",
    "spread": "dearest record to cheapest",
    "spread from 16 M on": "dearest record to cheapest, from 16 M on",
    "4 M keys": "of a record's time with 4 M keys",
    "of the setting": "of the memory setting",
}


def _ratio_name(target: Found) -> str:
    name = _NAMES.get(target["other"], f"times as fast as {target['other']}")
    return name if target["ours"] == "lastwrite" else f"{name}, {target['ours']}"


def markdown_of(rows: list[Found]) -> str:
    """A line for each target: work, both sides' seconds, ratio, goal, requirement and result."""
    lines = [
        "| Work | Beside us | Its time | Ours | Ratio | Goal | Must | Reached | Peak MiB (PSS) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        sides = {side["name"]: side for side in row["sides"]}
        for n, target in enumerate(row["targets"]):
            goal, must = _bars(target)
            other = sides.get(target["other"])
            ours = sides.get(target["ours"]) or row["sides"][-1]
            as_name = f", {target['ours']}" if target["ours"] != "lastwrite" else ""
            ratio = f"{target['value']:.1f}" if target["value"] >= 10 else f"{target['value']:.2f}"
            lines.append(
                f"| {row['title'] if n == 0 else ''} | {other['name'] if other else _ratio_name(target)} "
                f"| {_seconds(other)} | {_seconds(ours)}{as_name} | {ratio} | {goal} | {must} | {target['reached']} "
                f"| {ours.get('peak_pss_mib', '')} |"
            )
    return "\n".join(lines) + "\n"


def _seconds(side: Found | None) -> str:
    if side is None:
        return ""
    few = (
        f" ({side['repeats']} runs)"
        if 1 < side["repeats"] < 3
        else " (1 run)"
        if side["repeats"] == 1
        else ""
    )
    return (
        f"{side['median_seconds']:.2f} s{few}"
        if side["median_seconds"] < 10
        else (f"{side['median_seconds']:.1f} s{few}")
    )
