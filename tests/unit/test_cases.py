"""Compaction by example: ``tests/cases``, in the form that its README describes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests import reference
from tests.engine import compact
from tests.logs import (
    NAME,
    bases,
    encode_model,
    headers_of,
    read_segments,
    write_checkpoint,
    write_segment,
)
from tests.model import ModelBatch, ModelRecord, ModelSegment

CASES = sorted((Path(__file__).parents[1] / "cases").glob("*.txt"))
BATCH = re.compile(r"(?P<first>\d+)(\.\.(?P<last>\d+))?( until (?P<horizon>\d+))?:(?P<records>.*)")
WRITTEN_MS = 1


class Case:
    """A case, read line by line into what is written and what is expected."""

    def __init__(self, text: str) -> None:
        self.config: dict[str, str] = {"cleanup.policy": "compact"}
        self.steps: list[tuple[str, list[str]]] = []
        for line in text.splitlines():
            line = line.partition("#")[0].rstrip()
            if not line:
                continue
            if line.startswith("config "):
                name, _, value = line.removeprefix("config ").partition("=")
                self.config[name.strip()] = value.strip()
            elif line.startswith(" "):
                self.steps[-1][1].append(line.strip())
            else:
                self.steps.append((line, []))

    def play(self, root: Path, clean: Callable[[Path, dict[str, str], int], object]) -> None:
        (root / NAME).mkdir(parents=True)
        before: tuple[ModelSegment, ...] = ()
        for step, lines in self.steps:
            words = step.split()
            match words[0]:
                case "log" | "append":
                    write(root / NAME, lines)
                case "round":
                    end = reference.listed(root).end_offset
                    settings = dict(zip(words[3::2], map(int, words[4::2]), strict=True))
                    write_checkpoint(
                        root,
                        "replication-offset-checkpoint",
                        {NAME: settings.get("watermark", end)},
                    )
                    if "checkpoint" in settings:
                        write_checkpoint(
                            root, "cleaner-offset-checkpoint", {NAME: settings["checkpoint"]}
                        )
                    before = read_segments(root / NAME)
                    clean(root, self.config, int(words[2]))
                case "leaves":
                    left = read_segments(root / NAME)
                    expected = before if step == "leaves nothing new" else segments(lines)
                    assert bare(left) == bare(expected)
                case unknown:
                    raise AssertionError(f"no step is called {unknown}")


def segments(lines: list[str]) -> tuple[ModelSegment, ...]:
    found: list[ModelSegment] = []
    for line in lines:
        if line.startswith("segment "):
            found.append(ModelSegment(int(line.split()[1]), ()))
        else:
            found[-1] = replace(found[-1], batches=(*found[-1].batches, batch(line)))
    return tuple(found)


def batch(line: str) -> ModelBatch:
    parts = BATCH.fullmatch(line)
    assert parts is not None, line
    first, horizon = int(parts["first"]), parts["horizon"]
    records = []
    for offset, word in enumerate(parts["records"].split(), first):
        key, _, value = word.partition("=")
        if word != "_":
            records.append(
                ModelRecord(
                    offset,
                    WRITTEN_MS,
                    None if key == "*" else key.strip("'").encode(),
                    None if value == "~" else value.encode(),
                )
            )
    return ModelBatch(
        first,
        int(parts["last"] or first),
        tuple(records),
        horizon_ms=int(horizon) if horizon else None,
        max_timestamp_ms=WRITTEN_MS,
    )


def write(folder: Path, lines: list[str]) -> None:
    """Write segments; lines before the first ``segment`` go into the active one."""
    present = bases(folder)
    if not lines[0].startswith("segment "):
        lines = [f"segment {present[-1]}", *lines]
    for segment in segments(lines):
        old = folder / f"{segment.base_offset:020d}.log"
        data = old.read_bytes() if old.exists() else b""
        there = (
            [data[at : at + header.size_bytes] for at, header in headers_of(old)] if data else []
        )
        write_segment(
            folder,
            segment.base_offset,
            [*there, *map(encode_model, segment.batches)],
            mtime_ms=WRITTEN_MS,
        )


def bare(segments: tuple[ModelSegment, ...]) -> list[tuple[int, list[ModelBatch]]]:
    """What cases speak of: no base timestamps, which nobody reads, and no leader epochs."""
    return [
        (
            segment.base_offset,
            [replace(b, base_timestamp_ms=0, max_timestamp_ms=0) for b in segment.batches],
        )
        for segment in segments
    ]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_reference_leaves_what_the_case_says(path: Path, tmp_path: Path) -> None:
    Case(path.read_text()).play(tmp_path, reference.compact)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_engine_leaves_what_the_case_says(path: Path, tmp_path: Path) -> None:
    def clean(root: Path, config: dict[str, str], now_ms: int) -> object:
        return compact(root, config, now_ms, like_broker=True)

    Case(path.read_text()).play(tmp_path, clean)
