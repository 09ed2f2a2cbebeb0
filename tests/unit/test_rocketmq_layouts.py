"""Tests of stores that lack files or that a broker wrote in another layout.

Every command names the missing or unsupported file. Brokers of release 5.5.0 wrote the stores.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.reports.verification import VerifyReport, VerifyStatus
from lastwrite.spark.inline import INLINE
from tests.support.files import unpack

STORES = Path(__file__).parents[1] / "corpus" / "rocketmq-layouts"
LOG_FILE = 8192
GONE = "00000000000000016384"


def store(name: str, folder: Path) -> Path:
    unpack(STORES / f"{name}.tgz", folder)
    return folder / ("d8" if name.startswith("r8") else name)


@pytest.fixture
def gap(tmp_path: Path) -> Path:
    return store("r8-middle-file-gone", tmp_path)


@pytest.fixture
def dledger(tmp_path: Path) -> Path:
    return store("dledger", tmp_path)


@pytest.fixture
def rocksdb(tmp_path: Path) -> Path:
    return store("rocksdb", tmp_path)


def verified(path: Path, **options: object) -> VerifyReport:
    return lastwrite.verify(str(path), spark=INLINE, **options)  # type: ignore[arg-type]


def dumped(path: Path, **options: object) -> tuple[list[dict[str, object]], CorruptLog | None]:
    rows: list[dict[str, object]] = []
    try:
        for row in lastwrite.dump(str(path), say=lambda _: None, **options):  # type: ignore[arg-type]
            rows.append(row)
    except CorruptLog as error:
        return rows, error
    return rows, None


def offsets(rows: list[dict[str, object]]) -> list[object]:
    return sorted(row["queue_offset"] for row in rows)  # type: ignore[type-var]


# ---------------------------------------------------------------------- files that are missing


def test_dump_names_a_missing_middle_file(gap: Path) -> None:
    for path in (gap, gap / "commitlog"):
        rows, error = dumped(path)
        assert len(rows) == 97
        assert error is not None and error.path == str(gap / "commitlog" / GONE)
        assert "the file is missing, and the log continues at 24576: 8192 bytes" in error.problem


def test_dump_names_the_missing_messages_of_a_queue(gap: Path) -> None:
    rows, error = dumped(gap, topic="plain", partition=0)
    assert offsets(rows) == [*range(26), *range(33, 39)] and error is not None
    rows, error = dumped(gap, topic="plain", partition=0, offset=30, limit=1)
    assert offsets(rows) == [33] and error is not None
    with pytest.raises(CorruptLog, match="16384"):
        list(lastwrite.dump(str(gap), commit_log_offset=16384))


def test_export_inspect_and_verify_name_a_missing_middle_file(gap: Path, tmp_path: Path) -> None:
    exported = lastwrite.export(str(gap), str(tmp_path / "out"), format="json")
    inspected = lastwrite.inspect(str(gap))
    checked = verified(gap)
    alone = lastwrite.inspect(str(gap / "commitlog"))
    for report in (exported, inspected, checked, alone):
        assert report.exit_status == 3
        assert any(str(problem.path).endswith(GONE) for problem in report.problems)
    assert exported.messages == 97
    assert sum(partition.records for partition in checked.partitions) == 97


@pytest.mark.parametrize("command", ["dump", "dump --to", "inspect", "verify", "dispatch"])
def test_command_exits_with_3_for_a_missing_file(
    gap: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *options = command.split()
    more = [str(tmp_path / "to"), "--format", "json"] if options else []
    assert run([name, str(gap), *options, *more]) == 3
    shown = capsys.readouterr()
    assert "16384" in shown.out + shown.err and "missing" in shown.out + shown.err


def test_missing_consume_queue_file_is_damage(tmp_path: Path) -> None:
    root = store("r8-middle-file-gone", tmp_path)
    queue = root / "consumequeue" / "plain" / "1"
    (queue / f"{400:020}").unlink()
    found = [problem.path for problem in lastwrite.inspect(str(root)).partitions[-1].problems]
    assert str(queue / f"{400:020}") in found
    _, error = dumped(root, topic="plain", partition=1, index=True)
    assert error is not None and error.path == str(queue / f"{400:020}")


def test_commit_log_without_its_last_files_is_damage(gap: Path) -> None:
    for start in (40960, 32768, 24576):
        (gap / "commitlog" / f"{start:020}").unlink()
        assert dumped(gap)[1] is not None
        problems = [problem.message for problem in lastwrite.inspect(str(gap)).problems]
        end = start if start > 24576 else 16384
        assert any(
            f"the commit log ends at physical offset {end}" in message for message in problems
        )


def test_missing_commit_log_beside_queues_is_damage(gap: Path) -> None:
    elsewhere = gap.with_name("elsewhere")
    shutil.move(gap / "commitlog", elsewhere)
    rows, error = dumped(gap)
    assert rows == [] and error is not None and "there is no commit log" in error.problem
    assert error.remedy is not None and "storePathCommitLog" in error.remedy
    report = verified(gap)
    assert report.exit_status == 3 and report.store is not None
    assert report.store.status is VerifyStatus.DAMAGED
    # the remedy works: the files are found, and the missing one is reported
    report = verified(gap, config={"storePathCommitLog": str(elsewhere)})
    assert report.checked.records == 97
    assert [p.path for p in report.store.problems] == [str(elsewhere / GONE)]  # type: ignore[union-attr]


def test_group_offsets_without_records_are_damage(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": {}}))
    offsets = config / "consumerOffset.json"
    offsets.write_text(json.dumps({"offsetTable": {"orders@billing": {"0": 0}}}))
    assert verified(tmp_path / "store").exit_status == 0
    offsets.write_text(json.dumps({"offsetTable": {"orders@billing": {"0": 7}}}))
    report = verified(tmp_path / "store")
    assert report.exit_status == 3 and "consumer groups have offsets" in str(report.problems)


def test_last_line_of_verify_states_how_much_was_checked(
    dledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(dledger)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    # 80 records in the commit log, 40 of which are also in the compaction logs
    assert last.startswith("Everything is correct; 120 records in 18 files, 30.6 kB, checked in")


# ---------------------------------------------------------------------- DLedger


def test_dledger_store_is_read_completely(dledger: Path, tmp_path: Path) -> None:
    rows, error = dumped(dledger)
    assert error is None and len(rows) == 80
    sizes = [row["size"] for row in rows]
    found = [row["physical_offset"] for row in rows[:2]]
    assert found == [48, sizes[0] + 48 + 48]  # type: ignore[operator]
    by_queue = [
        row
        for topic in ("plain", "comp")
        for queue in (0, 1)
        for row in dumped(dledger, topic=topic, partition=queue)[0]
    ]
    assert len(by_queue) == 80
    assert {row["found_by"] for row in by_queue} == {"consume queue"}
    report = verified(dledger)
    assert report.exit_status == 0 and report.store is not None and report.store.records == 80
    data = dledger / "dledger-n0" / "data"
    assert [row["physical_offset"] for row in dumped(data)[0]] == [
        row["physical_offset"] for row in rows
    ]
    exported = lastwrite.export(str(dledger), str(tmp_path / "out"), format="json")
    assert (exported.messages, exported.problems) == (80, [])
    # the broker's own setting for the folder is accepted, too
    config = {"storePathCommitLog": str(data), "enableDLegerCommitLog": "true"}
    assert len(dumped(dledger, config=config)[0]) == 80


def test_damage_and_gaps_of_a_dledger_log_are_found(dledger: Path) -> None:
    data = dledger / "dledger-n0" / "data"
    path = data / f"{0:020}"
    content = bytearray(path.read_bytes())
    at = content.index(b"KEYS")
    content[at - 40] ^= 0xFF
    path.write_bytes(content)
    assert verified(dledger).exit_status == 3
    (data / f"{8192:020}").unlink()
    _, error = dumped(dledger)
    assert error is not None and error.path == str(data / f"{8192:020}")


# ---------------------------------------------------------------------- what is not supported


def test_queues_in_rocksdb_are_named_and_not_written(rocksdb: Path) -> None:
    report = verified(rocksdb)
    assert report.exit_status == 1 and report.checked.records == 80
    (problem,) = report.store.problems  # type: ignore[union-attr]
    assert "RocksDB" in problem.message and problem.path == str(rocksdb / "consumequeue")
    said: list[str] = []
    rows = list(lastwrite.dump(str(rocksdb), say=said.append))
    assert len(rows) == 80 and any("RocksDB" in line for line in said)
    before = sorted(rocksdb.rglob("*"))
    with pytest.raises(UnsupportedFormat, match="RocksDB"):
        lastwrite.dispatch(str(rocksdb), spark=INLINE)
    with pytest.raises(UnsupportedFormat, match="RocksDB"):
        lastwrite.cut(str(rocksdb), at=8192)
    with pytest.raises(UnsupportedFormat, match="RocksDB"):
        list(lastwrite.dump(str(rocksdb), index=True))
    assert sorted(rocksdb.rglob("*")) == before


def test_dledger_store_is_not_changed(dledger: Path) -> None:
    before = sorted(dledger.rglob("*"))
    with pytest.raises(UnsupportedFormat, match="DLedger"):
        lastwrite.dispatch(str(dledger), spark=INLINE)
    with pytest.raises(UnsupportedFormat, match="DLedger"):
        lastwrite.cut(str(dledger), at=8192)
    assert sorted(dledger.rglob("*")) == before


def test_tiered_storage_is_named(tmp_path: Path) -> None:
    report = verified(store("tiered", tmp_path))
    assert report.exit_status == 1
    (problem,) = report.store.problems  # type: ignore[union-attr]
    assert "does not read tiered storage" in problem.message
