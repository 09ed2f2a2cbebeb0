"""Properties of stored scans: they do not change the result of any later round."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.reports.compaction import CompactionReport
from tests.property.test_compaction import empty_root, grow
from tests.support.engine import compact
from tests.support.kafka.logs import NAME, read_checkpoint, write_checkpoint
from tests.support.kafka.model import ModelBatch, ModelRecord
from tests.support.kafka.strategies import DAY_MS, START_MS, Life, Phase, lives

Story = dict[str, object]


@contextmanager
def keeping_everything(piece_bytes: int, part_bytes: int, bits: int) -> Iterator[None]:
    """Store scans of logs of any size, in small pieces."""
    with (
        patch("lastwrite.scan_cache.cache.LEAST_SEGMENT_BYTES", 1),
        patch("lastwrite.scan_cache.cache._LEAST_FILLED", 0),
        patch("lastwrite.engine.pieces._PIECE_BYTES", piece_bytes),
        patch("lastwrite.engine.shares._LEAST_PART_BYTES", part_bytes),
        patch("lastwrite.engine.plan.bucket_bits", lambda _: bits),
        patch("lastwrite.kafka.store.keeping.bucket_bits", lambda _: bits),
    ):
        yield


def is_ours(path: Path) -> bool:
    return ".kept" in path.name or path.name.startswith("lastwrite.secret")


def files_of(folder: Path) -> dict[str, bytes]:
    """The partition's files without stored scans."""
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if not is_ours(file)}


def times_of(folder: Path) -> dict[str, int]:
    return {
        file.name: file.stat().st_mtime_ns for file in sorted(folder.iterdir()) if not is_ours(file)
    }


def told(report: CompactionReport) -> list[Story]:
    """The partitions' reports, without durations and bytes read."""
    stories = []
    for each in report.partitions:
        story = each.to_dict()
        del story["seconds"], story["bytes_read"]
        stories.append(story)
    return stories


def twin_without(root: Path) -> Path:
    """A copy of the log without its stored scans."""
    twin = root.with_name("twin")
    shutil.rmtree(twin, ignore_errors=True)
    shutil.copytree(root, twin)
    for file in (twin / NAME).iterdir():
        if is_ours(file):
            file.unlink()
    return twin


def assert_same(root: Path, twin: Path, ours: CompactionReport, wanted: CompactionReport) -> None:
    assert repr(told(ours)) == repr(told(wanted)).replace(str(twin), str(root))
    assert files_of(root / NAME) == files_of(twin / NAME)
    assert times_of(root / NAME) == times_of(twin / NAME)
    file = "cleaner-offset-checkpoint"
    assert read_checkpoint(root, file) == read_checkpoint(twin, file)
    assert not list((root / NAME).glob("*.tmp"))


@st.composite
def plain_lives(draw: st.DrawFn) -> Life:
    """Logs with few deletes, no transactions, and mostly unique keys."""
    config = draw(lives(max_rounds=1)).config
    clock_ms, phases = START_MS, []
    key_numbers = st.integers(0, draw(st.sampled_from([20, 200])))
    for _ in range(draw(st.integers(2, 5))):
        segments, offset = [], 0
        for _ in range(draw(st.integers(1, 4))):
            filled = []
            for _ in range(draw(st.integers(1, 3))):
                numbers = draw(st.lists(key_numbers, min_size=1, max_size=6))
                values = [
                    None if draw(st.integers(0, 40)) == 0 else b"v" * (n % 50) for n in numbers
                ]
                records = tuple(
                    ModelRecord(offset + n, clock_ms, b"%d" % number, value)
                    for n, (number, value) in enumerate(zip(numbers, values, strict=True))
                )
                codec = draw(st.sampled_from([0, 0, 4]))
                filled.append(
                    ModelBatch(
                        offset, offset + len(records) - 1, records, codec, max_timestamp_ms=clock_ms
                    )
                )
                offset += len(records)
            segments.append(tuple(filled))
        phases.append(Phase((*segments, ()), clock_ms + 10, 1.0))
        clock_ms += draw(st.sampled_from([20, DAY_MS]))
    return Life(tuple(phases), config)


@given(
    life=plain_lives() | lives(min_rounds=2, max_rounds=5),
    piece_bytes=st.sampled_from([1, 200, 1000]),
    part_bytes=st.sampled_from([1, 300, 1 << 20]),
    bits=st.lists(st.integers(0, 4), min_size=5, max_size=5),
    like_broker=st.booleans(),
    include_active=st.booleans(),
    forgets=st.sampled_from([None, None, 1, 2]),
)
def test_stored_scans_do_not_change_the_files(
    life: Life,
    piece_bytes: int,
    part_bytes: int,
    bits: list[int],
    like_broker: bool,
    include_active: bool,
    forgets: int | None,
) -> None:
    """The number of buckets differs from round to round.

    The checkpoint is lost before round ``forgets``.
    """
    with empty_root() as root:
        for n, phase in enumerate(life.phases):
            phase = replace(phase, replicated=1.0) if include_active else phase
            grow(root, phase, life)
            if n == forgets:
                write_checkpoint(root, "cleaner-offset-checkpoint", {})
            twin = twin_without(root)
            with keeping_everything(piece_bytes, part_bytes, bits[n]):
                flags = {"like_broker": like_broker, "include_active": include_active}
                ours = compact(root, life.config, phase.now_ms, keep_scans=True, **flags)
                wanted = compact(twin, life.config, phase.now_ms, **flags)
            assert_same(root, twin, ours, wanted)
