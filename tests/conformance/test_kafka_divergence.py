"""Tests of an archive whose history differs from its log: the rest is set aside."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.kafka.rules.forks import common_end
from lastwrite.kafka.store.divergence import set_aside
from tests.conformance.test_kafka_archive import (
    NAME,
    START_MS,
    Archive,
    all_killed,
    brought,
    check_no_waste,
    compact,
    void,
    write_log,
)

Epochs = list[tuple[int, int]]


def epochs_of(history: list[int]) -> Epochs:
    """The start offset of each leader epoch, given the epoch of each offset."""
    begins = [0] if history else []
    begins += [n for n, (a, b) in enumerate(pairwise(history), 1) if a != b]
    return [(history[n], n) for n in begins]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """The leader epoch of each offset, of an archive and of a log.

    Each leader continues from a prefix of either, with a new epoch.
    """
    copies: list[list[int]] = [[], []]
    for epoch in range(draw(st.integers(1, 8))):
        which = draw(st.integers(0, 1))
        kept = draw(st.integers(0, len(copies[which])))
        led = copies[which][:kept] + [epoch] * draw(st.integers(0, 4))
        copies[draw(st.integers(0, 1))] = led
    return copies[0], copies[1]


@given(histories())
def test_common_end_of_two_histories_is_found(drawn: tuple[list[int], list[int]]) -> None:
    here, there = drawn
    epochs = epochs_of(there)

    def ask(epoch: int) -> tuple[int, int]:
        known = [n for n, (each, _) in enumerate(epochs) if each <= epoch]
        if not known:
            return -1, -1
        n = known[-1]
        return epochs[n][0], (epochs[n + 1][1] if n + 1 < len(epochs) else len(there))

    alike = next((n for n, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), None)
    expected = min(len(here), len(there)) if alike is None else alike
    assert (common_end(epochs_of(here), len(here), ask) or 0) == expected


def aside_of(address: str) -> Archive:
    return Archive(Path(address), NAME)


def bring(tmp_path: Path) -> Archive:
    root, archive = tmp_path / "log", Archive(tmp_path / "archive")
    write_log(root, {0: range(20), 20: range(20, 40), 40: range(40, 41)}, {0: 0})
    brought(root, archive.to, include_active=True)
    return archive


def test_diverging_tail_is_set_aside(tmp_path: Path) -> None:
    """Every batch is below the cut, or in the archive that was set aside."""
    archive = bring(tmp_path)
    shutil.copytree(archive.to, tmp_path / "begin")
    old, before = archive.batches(), archive.log()
    for cut in (13, 20, before["end_offset"]):
        shutil.rmtree(archive.to)
        shutil.copytree(tmp_path / "begin", archive.to)
        aside = aside_of(set_aside(str(archive.to), str(archive.folder), cut, 0))
        assert archive.batches() + aside.batches() == old
        log = archive.log()
        assert log["end_offset"] == aside.log()["log_start"] == cut
        assert aside.log()["end_offset"] == before["end_offset"]
        assert all(start < cut for _, start in log["epochs"])
        archive.submit(tmp_path / "out")
        assert lastwrite.verify(str(archive.to)).exit_status == 0
        assert lastwrite.verify(str(aside.to)).exit_status == 0
        check_no_waste(archive)
        check_no_waste(aside)


def test_cleaned_log_is_set_aside_completely(tmp_path: Path) -> None:
    """A compaction may have removed records below the cut because of records above it."""
    archive = bring(tmp_path)
    compact(archive.to, {}, START_MS)
    old, table = archive.batches(), lastwrite.latest(str(archive.to))
    aside = aside_of(set_aside(str(archive.to), str(archive.folder), 27, 0))
    assert aside.batches() == old and archive.batches() == []
    assert lastwrite.latest(str(aside.to)) == table
    log = archive.log()
    assert (log["log_start"], log["end_offset"], log["epochs"]) == (0, 0, [])
    assert aside.log()["checkpoint"] == 41
    assert lastwrite.inspect(str(archive.to)).exit_status == 0
    check_no_waste(archive)


def test_log_that_begins_after_the_archive_sets_it_aside(tmp_path: Path) -> None:
    archive = bring(tmp_path)
    old = archive.batches()
    aside = aside_of(set_aside(str(archive.to), str(archive.folder), None, 70))
    assert aside.batches() == old
    assert (archive.log()["log_start"], archive.log()["end_offset"]) == (70, 70)


@pytest.mark.slow
@pytest.mark.long
def test_kill_at_any_point_loses_no_record(tmp_path: Path) -> None:
    archive = bring(tmp_path)
    shutil.copytree(archive.to, tmp_path / "begin")
    old = archive.batches()

    def start() -> None:
        shutil.rmtree(archive.to)
        shutil.copytree(tmp_path / "begin", archive.to)

    def work() -> str:
        return set_aside(str(archive.to), str(archive.folder), 27, 0)

    for point in all_killed(lambda: void(work()), start):
        manifest = json.loads((archive.folder / "manifest.json").read_bytes())
        if manifest["log"]["end_offset"] == 41:
            assert archive.batches() == old, point
            aside = aside_of(work())
        else:
            (found,) = (archive.to / "_lastwrite/aside").iterdir()
            aside = aside_of(str(found))
        assert archive.batches() + aside.batches() == old, point
        assert lastwrite.verify(str(aside.to)).exit_status == 0
        check_no_waste(archive)
        check_no_waste(aside)
