"""Tests of the server's local copies: size limit and removal of the least recently used."""

from __future__ import annotations

import os
from pathlib import Path

from lastwrite.server.copy_store import CopyStore


def made(copies: CopyStore, *what: object, size: int = 100) -> str:
    place = copies.path_of(*what)
    inside = Path(copies.temporary_path(place)) / "kafka" / "orders"
    inside.mkdir(parents=True)
    (inside / "log").write_bytes(bytes(size))
    copies.install(place)
    copies.used(place)
    return place


def test_same_arguments_give_the_same_place(tmp_path: Path) -> None:
    copies = CopyStore(str(tmp_path / "copies"), 1000)
    place = made(copies, "orders", 0, None)
    assert CopyStore(str(tmp_path / "copies"), 1000).path_of("orders", 0, None) == place
    assert copies.path_of("orders", 0, 7) != place
    assert os.path.isdir(place)


def test_least_recently_used_copy_is_deleted(tmp_path: Path) -> None:
    copies = CopyStore(str(tmp_path / "copies"), 250)
    first, second = made(copies, 1), made(copies, 2)
    for n, place in enumerate((second, first)):
        os.utime(place, (1_000_000_000 + n, 1_000_000_000 + n))
    third = made(copies, 3)
    assert [os.path.isdir(place) for place in (first, second, third)] == [True, False, True]


def test_copy_larger_than_the_limit_is_the_only_one(tmp_path: Path) -> None:
    copies = CopyStore(str(tmp_path / "copies"), 250)
    first = made(copies, 1)
    large = made(copies, 2, size=1000)
    assert [os.path.isdir(place) for place in (first, large)] == [False, True]


def test_unfinished_copy_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    copies = CopyStore(str(tmp_path / "copies"), 250)
    aside = Path(copies.temporary_path(copies.path_of(1)))
    aside.mkdir()
    (aside / "half").write_bytes(b"x")
    CopyStore(str(tmp_path / "copies"), 250)
    assert not aside.exists()
