"""Tests of random histories of an archive: the short form of ``python -m tests.archives``."""

from __future__ import annotations

import pytest

from tests.archives.model import play

_AT_ONCE = 50


@pytest.mark.parametrize("first", range(0, 300, _AT_ONCE))
def test_some_generation_is_always_readable(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        play(seed)


def test_same_seed_gives_the_same_run() -> None:
    assert play(7) == play(7)
