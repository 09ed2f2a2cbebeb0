"""Tests of power failures: a short form of ``python -m tests.power``, and regression tests.

A power failure leaves one of the states that ``tests/power/disk.py`` allows. The log is then old or
new, a completed run is kept, and the next run ends like an undisturbed one.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.storage import files
from tests.crash.rounds import batches_seen
from tests.crash.trial import Broken
from tests.power import kafka, pulsar, rocketmq
from tests.power.disk import Journal, record, record_killed
from tests.power.judges import Judges
from tests.power.places import SEEDS_A_PLACE, Places
from tests.power.scene import Scene
from tests.support.engine import compact
from tests.support.kafka.crashing import CLOCK_MS
from tests.support.kafka.logs import SCRATCH, write_checkpoint, write_segment
from tests.support.rocketmq.trees import LAYOUTS

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a child that was forked")

SEEDS = {"kafka": 2 * SEEDS_A_PLACE, "rocketmq": 1 * SEEDS_A_PLACE, "pulsar": 2 * SEEDS_A_PLACE}
NOBODY = Judges().none
Make = Callable[[Path], Scene]
MAKERS: dict[str, Make] = {
    "Kafka round": lambda place: kafka.scenes(1, place)[0],
    "Kafka copy": lambda place: kafka.scenes(1, place)[-1],
    "RocketMQ round": lambda place: rocketmq.RoundScene(3, True, place),
    "RocketMQ copy": lambda place: rocketmq.CopyScene(3, True, place),
    "RocketMQ publication": lambda place: rocketmq.PublicationScene(LAYOUTS[0], place),
    "RocketMQ dispatch": lambda place: rocketmq.DispatchScene(1, place),
    "RocketMQ cut": lambda place: rocketmq.CutScene(0, place),
    "RocketMQ undo of a cut": lambda place: rocketmq.CutScene(1, place),
    "Pulsar round": lambda place: pulsar.RoundScene(1, place),
    "Pulsar copy": lambda place: pulsar.CopyScene(1, place),
    "Pulsar fetch, linked": lambda place: pulsar.FetchScene(1, place),
    "Pulsar fetch, copied": lambda place: pulsar.FetchScene(2, place),
    "Pulsar mirror": lambda place: pulsar.MirrorScene(1, place),
}


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder in memory if there is one, because the disk is only modelled."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-power-", dir=SCRATCH) as folder:
        yield Path(folder)


@pytest.mark.parametrize("system", SEEDS)
def test_power_failure_leaves_the_old_log_or_the_new(place: Path, system: str) -> None:
    places, met = Places(place / "places", system), Counter[str]()
    for seed in range(SEEDS[system]):
        places.play(seed, NOBODY, met)
    assert met["states judged"] > SEEDS[system] // 2
    assert met["cuts of the run after a cut"] and met["cuts of the run after a kill"]


def held(
    scene: Scene, place: Path, journal: Journal, cut: int, profile: str, *, is_end: bool = False
) -> None:
    """Check the state in which everything unsynced is lost."""
    disk = place / "disk"
    shutil.rmtree(disk, ignore_errors=True)
    journal.least(cut, profile).materialise(disk)
    side = scene.look(disk, Counter(), NOBODY)
    if is_end:
        scene.check_end(disk, side)


@pytest.mark.parametrize("name", MAKERS)
def test_completed_run_survives_a_power_failure(place: Path, name: str) -> None:
    """Regression: a copy or an archive in a new folder was lost, because the folder's name was not
    synced.
    """
    scene = MAKERS[name](place)
    assert scene.journal.strays == []
    for profile in scene.profiles:
        held(scene, place, scene.journal, len(scene.journal.events), profile, is_end=True)


@pytest.mark.parametrize("name", MAKERS)
def test_unsynced_files_may_be_lost_at_any_moment(place: Path, name: str) -> None:
    """Regression: a grown Pulsar ledger had a new index but old data, and a copied
    object was torn.
    """
    scene = MAKERS[name](place)
    events = len(scene.journal.events)
    for cut in range(0, events, max(1, events // 60)):
        for profile in scene.profiles[-2:]:
            held(scene, place, scene.journal, cut, profile)


@pytest.mark.parametrize(
    "name", ["RocketMQ publication", "RocketMQ dispatch", "Pulsar round", "Pulsar mirror"]
)
def test_unsynced_result_of_a_killed_run_is_not_trusted(place: Path, name: str) -> None:
    """Regression: a run was killed between exchange and sync. The next run removed the tree that
    was still in effect on disk.
    """
    scene = MAKERS[name](place)
    wanted = "rename" if "Pulsar" in name else "exchange"
    names = ("compaction", "consumequeue", "compacted.json")
    points = [
        place + 1  # the point before the operation that follows this one; points count from 1
        for place, (operation, file) in enumerate(scene.journal.operations, 1)
        if operation == wanted and file in names
    ]
    assert points
    profile = "loose"
    for point in points:
        disk = place / "disk"
        shutil.rmtree(disk, ignore_errors=True)
        scene.journal.first.materialise(disk)
        journal = record_killed(disk, partial(scene.run, disk), point)
        assert journal is not None
        for cut in range(len(journal.events)):
            held(scene, place, journal, cut, profile)


@pytest.mark.parametrize(
    "name",
    [
        "Kafka round",
        pytest.param("RocketMQ round", marks=pytest.mark.long),
        pytest.param("RocketMQ dispatch", marks=pytest.mark.long),
        *(name for name in MAKERS if "fetch" in name),
    ],
)
def test_completed_run_after_a_killed_one_survives_a_power_failure(place: Path, name: str) -> None:
    """Regression: a fetch was killed before it synced a name. The next run relied on the ledger,
    which a power failure then removed.
    """
    scene = MAKERS[name](place)
    operations = len(scene.journal.operations)
    for point in range(1, operations + 1, max(1, operations // 20)):
        disk = place / "disk"
        shutil.rmtree(disk, ignore_errors=True)
        scene.journal.first.materialise(disk)
        journal = record_killed(disk, partial(scene.run, disk), point)
        assert journal is not None
        for profile in scene.profiles:
            held(scene, place, journal, len(journal.events), profile, is_end=True)


@pytest.mark.parametrize("profile", ["ext4", "xfs", "apfs"])
def test_superseding_record_is_on_disk_before_the_older_one_is_removed(
    place: Path, profile: str
) -> None:
    """Regression: a killed broker had not flushed a closed segment. A round removed the older
    values, and a power failure removed the new ones.

    The segment's content is written while the model runs, so the model may lose it.
    """
    disk = place / "disk"
    _segment(disk, 0, [b"a", b"b"])
    _segment(disk, 3, [b"c"])
    write_checkpoint(disk, "recovery-point-offset-checkpoint", {"t-0": 2})
    write_checkpoint(disk, "replication-offset-checkpoint", {"t-0": 4})

    def run() -> None:
        _segment(disk, 2, [b"a"])
        report = compact(disk, {"cleanup.policy": "compact", "segment.bytes": 14}, CLOCK_MS)
        assert report.exit_status == 0 and report.partitions[0].records_after == 3

    journal = record(disk, run)
    journal.least(len(journal.events), profile).materialise(place / "cut")
    _, batches = batches_seen(place / "cut" / "t-0")
    assert {record.key for batch in batches for record in batch.records} == {b"a", b"b", b"c"}


def _segment(root: Path, base: int, keys: list[bytes]) -> None:
    records = [Record(base + n, CLOCK_MS - 1000, key, b"v%d" % base) for n, key in enumerate(keys)]
    write_segment(
        root / "t-0", base, [encode_batch([record]) for record in records], mtime_ms=CLOCK_MS
    )


@pytest.mark.parametrize("system", SEEDS)
@pytest.mark.parametrize("what", ["file", "folder"])
def test_model_finds_missing_syncs(
    place: Path, system: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If syncs are left out, the model reports lost data."""
    if what == "file":
        monkeypatch.setattr(files, "_sync", _nothing)
    else:
        monkeypatch.setattr(files, "fsync_dir", _nothing)
    places, found = Places(place / "places", system), 0
    for seed in range(3 * SEEDS_A_PLACE):
        try:
            places.play(seed, NOBODY, Counter())
        except (Broken, AssertionError):
            found += 1
        if found:
            return
    raise AssertionError("nothing was found")


def _nothing(*arguments: Any) -> None:
    pass
