"""Runs the commands and programs of a documentation page, and checks their output.

A block ``console`` has lines ``$ command`` with their standard output. A block ``python`` is a
program, and the block after it has its output. In an output, ``…`` stands for any text, and a line
with only ``…`` for any lines. ``lastwrite serve`` runs until the page ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from lastwrite.cli import run

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_COMMAND = re.compile(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
_PATIENCE_S = 300


class Step(NamedTuple):
    """A command of a page, as arguments of a process, and its expected output."""

    name: str
    arguments: list[str]
    shown: str

    @property
    def is_server(self) -> bool:
        return self.name.startswith("lastwrite serve ")


def read_steps(page: str) -> Iterator[Step]:
    """The steps of ``page`` in their order. Blocks in other languages are left out."""
    blocks = list(_FENCE.finditer(page))
    for at, block in enumerate(blocks):
        if block[1] == "console":
            for command, shown in _COMMAND.findall(block[2]):
                yield Step(command, ["bash", "-c", command], shown)
        elif block[1] == "python":
            shown = ""
            if at + 1 < len(blocks) and not page[block.end() : blocks[at + 1].start()].strip():
                shown = blocks[at + 1][2]
            yield Step(block[2], [sys.executable, "-c", block[2]], shown)


def run_steps(steps: list[Step], folder: Path) -> list[str]:
    """Run ``steps`` in ``folder``. Commands of Lastwrite run in this process and share its Spark.

    Returns:
        A text for each step with another output or exit status than expected.
    """
    environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    differences = []
    with ExitStack() as at_end:
        for step in steps:
            if step.is_server:
                status, printed = 0, _start(step, folder, environment, at_end)
            elif step.name.startswith("lastwrite "):
                status, printed = _run_here(step, folder)
            else:
                done = subprocess.run(
                    step.arguments,
                    cwd=folder,
                    env=environment,
                    stdout=subprocess.PIPE,
                    text=True,
                    timeout=_PATIENCE_S,
                    check=False,
                )
                status, printed = done.returncode, done.stdout
            if status or not matches(step.shown, printed):
                differences.append(f"$ {step.name}\n{printed}(exit status {status})")
    return differences


def _run_here(step: Step, folder: Path) -> tuple[int, str]:
    """The exit status and the standard output of a command of Lastwrite."""
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        return run(shlex.split(step.name.replace("\\\n", " "))[1:]), printed.getvalue()


def _start(step: Step, folder: Path, environment: dict[str, str], at_end: ExitStack) -> str:
    """Start a server, and return its output as soon as it has a whole line."""
    output = folder / "server-output"
    with output.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", *shlex.split(step.name)],
            cwd=folder,
            env=environment,
            stdout=file,
        )
    at_end.callback(server.wait, _PATIENCE_S)
    at_end.callback(server.terminate)
    ends = time.monotonic() + _PATIENCE_S
    while not output.read_text().endswith("\n"):
        assert server.poll() is None and time.monotonic() < ends, f"$ {step.name}"
        time.sleep(0.05)
    return output.read_text()


def matches(shown: str, printed: str) -> bool:
    """Whether ``printed`` is the output ``shown`` on a page, apart from spaces at ends of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else re.escape(line.rstrip()).replace("…", ".*") + "[ ]*\n"
        for line in shown.splitlines()
    )
    return re.fullmatch(pattern, printed) is not None
