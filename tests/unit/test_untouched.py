"""Tests that a command that changes or copies a store lists every file that it leaves unchanged."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cleaner.events import Event, FilesUntouched
from lastwrite.cli.clean import event_line
from lastwrite.cli.problems import untouched_lines
from lastwrite.kafka.restored import LogsRestored
from lastwrite.kafka.store.untouched import WRITTEN_BY_RESTORES
from lastwrite.reports.compaction import CompactionReport
from lastwrite.reports.untouched import UNKNOWN, UntouchedFile
from lastwrite.rocketmq.format.sides import CLEANUP_POLICY, COMPACTION_POLICY
from lastwrite.spark.inline import INLINE, Inline
from tests.support.kafka import metadata
from tests.support.kafka.growing import GrowingLog
from tests.support.kafka.metadata import TOPIC_ID, partition, write_identity, write_records
from tests.support.pulsar.folders import single, write_ledger
from tests.support.pulsar.topics import topic_folder
from tests.support.rocketmq.stores import StoreWriter

CLEAN = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}


def log_root(root: Path) -> Path:
    log = GrowingLog(root)
    for n in range(3):
        log.append([(b"a", b"%d" % n, 5)])
        log.roll()
    for name in (".lock", "meta.properties", "bootstrap.checkpoint", "odd", "t-0/notes.txt"):
        (root / name).write_bytes(b"")
    for name in ("__cluster_metadata-0", "other-1", f"t-1.{'0' * 32}-delete", "odd.d"):
        (root / name).mkdir()
    return root


def store(root: Path) -> Path:
    writer = StoreWriter(root)
    writer.topics["t"] = {CLEANUP_POLICY: COMPACTION_POLICY}
    for n in range(60):
        writer.send("t", b"%d" % n, {"KEYS": "a"})
    writer.write_compaction("t")
    writer.write()
    for name in ("config/delayOffset.json", "config/odd.json", "odd"):
        (root / name).write_text("{}")
    return root


def topic(archive: Path) -> Path:
    folder = topic_folder(archive, "persistent://public/default/t")
    write_ledger(folder, 10, [single("a", f"{n}", n) for n in range(9)])
    (folder / "odd").write_bytes(b"")
    return archive


def compact(root: Path, to: Path | None = None) -> CompactionReport:
    config = CLEAN if (root / "meta.properties").exists() else {}
    where = None if to is None else str(to)
    return lastwrite.compact(str(root), to=where, topic="t", config=config, spark=Inline())


def named(root: Path, report: CompactionReport) -> dict[str, str]:
    return {os.path.relpath(one.path, root): one.why for one in report.untouched}


def entries_of(root: Path) -> set[str]:
    """The names in the root folder and in its folder ``config``."""
    config = root / "config"
    return {each.name for each in root.iterdir() if each != config} | {
        f"config/{each.name}" for each in (config.iterdir() if config.is_dir() else ())
    }


def test_round_on_a_log_root_lists_unchanged_files(tmp_path: Path) -> None:
    root = log_root(tmp_path / "root")
    found = named(root, compact(root))
    written = {"t-0", "other-1", "cleaner-offset-checkpoint", "log-start-offset-checkpoint"}
    assert found.keys() - {"t-0/notes.txt"} == entries_of(root) - written
    unknown = {name for name, why in found.items() if why == UNKNOWN}
    assert unknown == {"odd", "odd.d", "t-0/notes.txt"}
    assert found["meta.properties"] == "the ids of the broker and of its cluster"
    assert found[f"t-1.{'0' * 32}-delete"] == "a partition that its broker is deleting"


def test_copy_of_a_log_root_lists_omitted_files(tmp_path: Path) -> None:
    root, to = log_root(tmp_path / "root"), tmp_path / "copy"
    report = compact(root, to)
    found = named(root, report)
    assert found.keys() - {"t-0/notes.txt"} == entries_of(root) - entries_of(to) - {"other-1"}
    assert "needs its own ids" in found["meta.properties"]
    (line,) = untouched_lines(report.untouched, is_copy=report.is_copy)
    assert line.startswith(
        "not in the copy: .kafka_cleanshutdown, __cluster_metadata-0, bootstrap.checkpoint"
    )


def test_round_on_a_rocketmq_store_lists_unchanged_files(tmp_path: Path) -> None:
    root = store(tmp_path / "store")
    report = compact(root)
    found = named(root, report)
    assert found.keys() == entries_of(root) - {"compaction"}
    assert {name for name, why in found.items() if why == UNKNOWN} == {"odd", "config/odd.json"}
    assert found["commitlog"] == "it has no address of a compaction log"
    assert found["config/consumerOffset.json"] == "offsets, which compaction does not change"
    (line,) = untouched_lines(report.untouched)
    assert line.endswith(f"unknown files, left unchanged: {root}/odd, {root}/config/odd.json")


def test_copy_of_a_rocketmq_store_lists_omitted_files(tmp_path: Path) -> None:
    root, to = store(tmp_path / "store"), tmp_path / "copy"
    found = named(root, compact(root, to))
    assert found.keys() == entries_of(root) - entries_of(to)
    assert "skip delayed messages" in found["config/delayOffset.json"]


@pytest.mark.parametrize("is_copy", [False, True])
def test_round_on_a_pulsar_topic_lists_unchanged_files(tmp_path: Path, is_copy: bool) -> None:
    root, to = topic(tmp_path / "archive"), tmp_path / "copy" if is_copy else None
    found = named(topic_folder(root, "persistent://public/default/t"), compact(root, to))
    assert found["odd"] == UNKNOWN
    others = {name: why for name, why in found.items() if name not in ("odd", "lastwrite.lock")}
    ours = {why for name, why in others.items() if name.endswith(".survey")}
    replaced = {why for name, why in others.items() if not name.endswith(".survey")}
    assert ours <= {"written by Lastwrite"}
    assert replaced == (
        {"belongs to a ledger that the copy's compacted ledger replaces"} if is_copy else set()
    )


def test_plan_and_archive_list_no_unchanged_files(tmp_path: Path) -> None:
    root = store(tmp_path / "root")
    assert lastwrite.plan(str(root), topic="t", spark=Inline()).untouched == []
    lastwrite.fetch([str(root)], str(tmp_path / "archive"), topic="t", include_active=True)
    done = lastwrite.compact(str(tmp_path / "archive"), spark=Inline())
    assert len(done.partitions) == 1 and done.untouched == []


@pytest.mark.parametrize("make", [log_root, store])
def test_cleaner_lists_the_files_that_compact_lists(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    root, other = make(tmp_path / "root"), make(tmp_path / "other")
    events: list[Event] = []
    config = CLEAN if make is log_root else {}
    for each in (root, other):
        (each / "t-0" / "notes.txt").unlink(missing_ok=True)  # a cleaner would report it as damage
    assert lastwrite.clean([str(root)], config, once=True, spark=INLINE, tell=events.append) == 0
    reported = [event for event in events if isinstance(event, FilesUntouched)]
    found = [each for event in reported for each in event.untouched]
    compacted = named(other, compact(other))
    assert {os.path.relpath(each.path, root): each.why for each in found} == compacted
    assert len(found) == len(compacted) and len({event.folder for event in reported}) == len(
        reported
    )
    assert f"unknown files, left unchanged: {root}/odd" in event_line(reported[0])


def test_long_list_is_shortened() -> None:
    names = [UntouchedFile(f"/root/{n:02}", "") for n in range(20)]
    (line,) = untouched_lines(names, is_copy=True)
    assert line.endswith("10, 11 and 8 more")


def test_restore_into_a_log_root_lists_unchanged_files(tmp_path: Path) -> None:
    archive, root = str(tmp_path / "archive"), tmp_path / "new"
    source = GrowingLog(tmp_path / "source")
    source.append([(b"a", b"1", 5)])
    lastwrite.fetch(str(source.root), archive, include_active=True)
    write_identity(root, "c")
    write_records(root, f"{0:020d}.log", 0, metadata.topic("t"), partition(0, TOPIC_ID))
    (root / "odd").write_bytes(b"")
    (root / f"t-1.{'0' * 32}-delete").mkdir()
    before = entries_of(root)
    done = lastwrite.restore(archive, to=str(root))
    assert isinstance(done, LogsRestored) and done.exit_status == 0
    found = {os.path.relpath(one.path, root): one.why for one in done.untouched}
    assert before <= found.keys() | WRITTEN_BY_RESTORES and found["odd"] == UNKNOWN
    assert found.keys() == entries_of(root) - {"t-0", *WRITTEN_BY_RESTORES}
