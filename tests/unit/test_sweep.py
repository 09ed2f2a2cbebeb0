"""Tests of the command ``sweep``: its partitions, output and exit status."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import lastwrite
from lastwrite.archive.layout import partitions_at, systems_at
from lastwrite.archive.manifest import DataObject, Manifest
from lastwrite.archive.partition_store import PartitionStore
from lastwrite.cli import run
from lastwrite.errors import NotALog
from lastwrite.storage.objects.folder import FolderStore

PLACES = ("kafka/orders/0", "kafka/orders/1", "pulsar/public/default/persistent/orders")
DAY_S = 86_400


def run_round(place: PartitionStore, name: str) -> None:
    begun = place.begin(place.read())
    key = f"{begun.prefix}0/{name}"
    place.store.create(place.key(key), b"x" * 10)
    made = Manifest(
        system="kafka", topic="orders", partition=0, objects=(DataObject(key=key, bytes=10),)
    )
    place.commit(begun, made)


def age(folder: Path) -> None:
    """Make all files two days old."""
    for path in folder.rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - 2 * DAY_S
            os.utime(path, (then, then))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Three partitions, each with two generations and an unfinished round, all two days old."""
    for folder in PLACES:
        place = PartitionStore(FolderStore(str(tmp_path / folder)), "")
        run_round(place, "first.log")
        run_round(place, "second.log")
        dead = place.begin(None)
        place.store.create(f"{dead.prefix}0/dead.log", b"y" * 5)
    age(tmp_path)
    return tmp_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*.log"))


def test_sweep_covers_all_partitions_below_an_address(archive: Path) -> None:
    dry = lastwrite.sweep(str(archive), dry_run=True)
    assert len(names(archive)) == 9
    report = lastwrite.sweep(str(archive))
    assert names(archive) == ["second.log"] * 3
    assert [each.address for each in report.partitions] == [str(archive / at) for at in PLACES]
    assert (report.objects, report.bytes) == (6, 45)
    assert dry.to_dict() == report.to_dict() | {"dry_run": True}
    assert lastwrite.sweep(str(archive)).objects == 0


@pytest.mark.parametrize("part", ["kafka", "kafka/orders", "kafka/orders/1"])
def test_address_inside_an_archive_selects_the_partitions_below_it(
    archive: Path, part: str
) -> None:
    report = lastwrite.sweep(str(archive / part))
    assert all(each.address.startswith(str(archive / part)) for each in report.partitions)
    assert names(archive / part) == ["second.log"] * len(report.partitions)
    assert len(names(archive / PLACES[2])) == 3


def test_damaged_partition_is_named_and_the_others_are_swept(
    archive: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    manifest = archive / PLACES[0] / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-5])
    assert run(["sweep", str(archive), "--json"]) == 3
    printed = json.loads(capfd.readouterr().out)
    assert "manifest.json, byte" in printed["partitions"][0]["reason"]
    assert (len(names(archive / PLACES[0])), printed["objects"]) == (3, 4)
    assert run(["sweep", str(archive)]) == 3
    assert "not swept" in capfd.readouterr().out


def test_older_than_keeps_younger_objects_and_needs_a_unit(
    archive: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", str(archive), "--older-than", "3d"]) == 0
    assert "freed 30 B in 3 objects" in capfd.readouterr().out
    assert "dead.log" in names(archive)
    assert run(["sweep", str(archive), "--older-than", "3"]) == 2


def test_address_without_an_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="the path has no archive"):
        lastwrite.sweep(str(tmp_path))


@pytest.mark.parametrize("archive_name", ["kafka", "pulsar/rocketmq", "a/kafka/pulsar"])
@pytest.mark.parametrize("topic", ["orders", "kafka", "pulsar"])
@pytest.mark.parametrize("part", ["", "kafka", "kafka/{}", "kafka/{}/0"])
def test_archive_or_topic_may_have_the_name_of_a_system(
    tmp_path: Path, archive_name: str, topic: str, part: str
) -> None:
    at = tmp_path / archive_name / "kafka" / topic / "0"
    run_round(PartitionStore(FolderStore(str(at)), ""), "first.log")
    asked = str(tmp_path / archive_name / part.format(topic))
    assert partitions_at(asked) == [str(at)]
    assert systems_at(asked) == ["kafka"]
