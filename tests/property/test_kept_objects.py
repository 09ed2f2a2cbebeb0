"""Properties of stored scans in an archive: rounds with and without them have the same result."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.reports.compaction import CompactionReport
from tests.conformance.test_kafka_archive import HIGH_WATERMARKS, Archive, brought, replicated
from tests.property.test_compaction import empty_root
from tests.property.test_scan_cache import keeping_everything, plain_lives, told
from tests.support.engine import compact
from tests.support.kafka.logs import NAME, write_checkpoint
from tests.support.kafka.strategies import Life, append, lives

SECRET = "_lastwrite/kept.secret"


def kept_of(archive: Archive) -> dict[int, Path]:
    """The stored scan that the manifest names for each segment, by base offset."""
    return {
        each["base_offset"]: archive.folder / each["kept"]["key"]
        for each in archive.log()["segments"]
        if each.get("kept")
    }


def contents(archive: Archive) -> list[dict[str, bytes]]:
    """The contents of the log's objects by segment, without their names."""
    return [
        {path.suffix: path.read_bytes() for path in stem.parent.glob(f"{stem.name}.*[!t]")}
        | {"base": b"%d" % base}
        for base, stem in archive.segments()
    ]


def said(archive: Archive) -> dict[str, Any]:
    log = archive.log()
    for segment in log["segments"]:
        for name in ("folder", "etag", "kept"):
            segment.pop(name, None)
    del log["brought_ms"], log["snapshot"]
    return log


def assert_whole(archive: Archive, *, with_kept: bool) -> None:
    """Assert that all objects of the manifest exist and have the right sizes."""
    for each in archive.manifest()["objects"]:
        if with_kept or not each["key"].endswith(".kept"):
            assert (archive.folder / each["key"]).stat().st_size == each["bytes"], each


def spoil(path: Path, how: str, at: int) -> None:
    """Damage a stored scan, as a faulty store may."""
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: at % len(content)])
    elif how == "flipped":
        at %= len(content)
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
    else:
        path.write_bytes(bytes(len(content)))


def same_stories(
    ours: CompactionReport, wanted: CompactionReport, places: tuple[Path, Path]
) -> None:
    assert repr(told(ours)).replace(*map(str, places)) == repr(told(wanted))


@settings(max_examples=15)
@given(
    life=plain_lives() | lives(min_rounds=2, max_rounds=5),
    piece_bytes=st.sampled_from([1, 200, 1000]),
    part_bytes=st.sampled_from([1, 300, 1 << 20]),
    bits=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    spoilt=st.lists(
        st.tuples(
            st.sampled_from(["", "", "removed", "cut", "flipped", "zeros", "secret", "swapped"]),
            st.integers(0, 1 << 20),
        ),
        min_size=5,
        max_size=5,
    ),
    fetches=st.lists(st.booleans(), min_size=5, max_size=5),
    sweeps=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_stored_scans_do_not_change_the_archive(
    life: Life,
    piece_bytes: int,
    part_bytes: int,
    bits: list[int],
    spoilt: list[tuple[str, int]],
    fetches: list[bool],
    sweeps: list[bool],
) -> None:
    with empty_root() as root:
        ours, wanted = Archive(root.with_name("ours")), Archive(root.with_name("wanted"))
        for n, phase in enumerate(life.phases):
            append(root / NAME, phase, life.interval_bytes)
            write_checkpoint(
                root, HIGH_WATERMARKS, {NAME: replicated(root / NAME, phase.replicated)}
            )
            with keeping_everything(piece_bytes, part_bytes, bits[n]):
                brought(root, ours.to, include_active=True, keep_scans=fetches[n])
            brought(root, wanted.to, include_active=True)
            # without those damaged before an earlier round that had nothing to do
            kept = sorted(path for path in kept_of(ours).values() if path.exists())
            how, at = spoilt[n]
            if how == "secret":
                (ours.to / SECRET).unlink(missing_ok=True)
            elif how == "swapped" and len(kept) > 1:
                one, other = kept[at % len(kept)], kept[at % len(kept) - 1]
                content = one.read_bytes()
                shutil.copyfile(other, one)
                other.write_bytes(content)
            elif how not in ("", "swapped") and kept:
                spoil(kept[at % len(kept)], how, at)
            with keeping_everything(piece_bytes, part_bytes, bits[n]):
                report = compact(ours.to, life.config, phase.now_ms, keep_scans=True)
                twin = compact(wanted.to, life.config, phase.now_ms)
            same_stories(report, twin, (ours.to, wanted.to))
            assert contents(ours) == contents(wanted)
            assert said(ours) == said(wanted)
            assert_whole(ours, with_kept=not any(how for how, _ in spoilt[: n + 1]))
            if sweeps[n]:
                lastwrite.sweep(str(ours.to), older_than_ms=0, everything=True)
                assert_whole(ours, with_kept=not any(how for how, _ in spoilt[: n + 1]))
                named = {each["key"] for each in ours.manifest()["objects"]}
                named |= {each["key"] for each in ours.manifest()["unused"]}
                there = {
                    os.path.relpath(path, ours.folder)
                    for path in (ours.folder / "data").rglob("*")
                    if path.is_file()
                }
                assert there <= named
