"""Tests of the pictures in README: they show published figures and current output."""

from __future__ import annotations

import re

import pytest

from tests.pictures import IMAGES, ROOT, draw_speed, draw_terminal, published_rows, terminal_lines


def test_speed_picture_shows_rows_of_the_speed_page() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    seconds = {(cells[2], cells[3]) for cells in rows if len(cells) > 4}
    for row in published_rows():
        ours, theirs = row["lastwrite_seconds"], row["peer_seconds"]
        assert any(
            re.fullmatch(rf"{theirs}0* s", peer) and re.fullmatch(rf"{ours}0* s", found)
            for peer, found in seconds
        ), row
    assert draw_speed(published_rows()) == (IMAGES / "speed.svg").read_text(encoding="utf-8")


@pytest.mark.spark
def test_terminal_picture_shows_the_present_output() -> None:
    picture = (IMAGES / "terminal.svg").read_text(encoding="utf-8")
    assert draw_terminal(terminal_lines()) == picture, "run python -m tests.pictures --write"
