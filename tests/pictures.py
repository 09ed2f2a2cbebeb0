"""Draws the pictures of README: ``python -m tests.pictures --write``.

``docs/images/terminal.svg`` shows commands with their real output, run on the demo's sample.
``docs/images/speed.svg`` shows the figures of ``bench/published.json``.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path

from rich.console import Console
from rich.text import Text

from lastwrite.cli import run
from lastwrite.demo.sample_topic import SampleTopic
from lastwrite.model.progress import NoProgress

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
COMMANDS = (
    ("compact", "kafka-logs"),
    ("dump", "kafka-logs", "--topic", "orders", "--last", "2"),
    ("verify", "kafka-logs"),
)
_COLUMNS = 118
_NOW_MS = 1_790_100_000_000
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {terminal_width} {height}">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; white-space: pre }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="100%" height="100%" rx="8" fill="#1d1f27"/>
<g transform="translate(18, 14)" class="{unique_id}-matrix">
{backgrounds}
{matrix}
</g>
</svg>
"""


def terminal_lines() -> list[str]:
    """The commands with their outputs, without lines that contain times."""
    lines = []
    for command, output in _outputs():
        lines += [f"$ {command}", *output, ""]
    return lines[:-1]


def _outputs() -> Iterator[tuple[str, list[str]]]:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        SampleTopic().write("kafka-logs", NoProgress())
        columns, os.environ["COLUMNS"] = os.environ.get("COLUMNS"), str(_COLUMNS)
        try:
            for words in COMMANDS:
                now = ["--now", str(_NOW_MS)] if words[0] == "compact" else []
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
                    status = run([*words, *now])
                assert status == 0, (words, printed.getvalue())
                lines = printed.getvalue().rstrip().splitlines()
                if words[0] != "dump":
                    lines = lines[: lines.index("")]  # a summary with times follows
                yield " ".join(["lastwrite", *words]), lines
        finally:
            os.environ.pop("COLUMNS")
            if columns is not None:
                os.environ["COLUMNS"] = columns


def draw_terminal(lines: list[str]) -> str:
    """An SVG of a terminal that shows ``lines``."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines:
        style = "bold green" if line.startswith("$ ") else ""
        console.print(Text(line, style=style), soft_wrap=True)
    return console.export_svg(title="lastwrite", code_format=_SVG, unique_id="lastwrite")


def draw_speed(rows: list[dict[str, str | float]]) -> str:
    """An SVG of horizontal bars: for each row, the seconds of the peer and of Lastwrite."""
    longest = max(float(row["peer_seconds"]) for row in rows)
    height = 52 * len(rows) + 16
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" '
        'font-family="system-ui, sans-serif" font-size="14">',
        "<style>text{fill:#24292f}@media(prefers-color-scheme:dark){text{fill:#e6edf3}}</style>",
    ]
    for number, row in enumerate(rows):
        top = 52 * number + 8
        drawn.append(f'<text x="0" y="{top + 24}">{escape(str(row["work"]))}</text>')
        for at, key, color in ((0, "peer", "#8c959f"), (22, "lastwrite", "#2da44e")):
            seconds = float(row[f"{key}_seconds"])
            width = max(2.0, 360 * seconds / longest)
            name = row["peer"] if key == "peer" else "Lastwrite"
            drawn += [
                f'<rect x="190" y="{top + at}" width="{width:.1f}" height="18" fill="{color}"/>',
                f'<text x="{196 + width:.1f}" y="{top + at + 14}">'
                f"{seconds:g} s, {escape(str(name))}</text>",
            ]
    return "\n".join([*drawn, "</svg>", ""])


def published_rows() -> list[dict[str, str | float]]:
    rows: list[dict[str, str | float]] = json.loads(
        (ROOT / "bench" / "published.json").read_text(encoding="utf-8")
    )
    return rows


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        sys.exit("usage: python -m tests.pictures --write")
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "terminal.svg").write_text(draw_terminal(terminal_lines()), encoding="utf-8")
    (IMAGES / "speed.svg").write_text(draw_speed(published_rows()), encoding="utf-8")


if __name__ == "__main__":
    main()
