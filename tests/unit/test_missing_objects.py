"""Tests of objects that an archive's manifest names but that are missing.

Every command reports the damage with its offsets and reads the rest. An object that a round has
replaced is not damage.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.engine.system import system_named
from lastwrite.errors import CommitConflict, CorruptLog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.verification import VerifyStatus
from lastwrite.server.catalog import ServedPartition, ServedSource
from lastwrite.server.errors import Code
from lastwrite.server.fetch import PartitionRequest, PendingFetch, planned
from lastwrite.server.files import Files
from lastwrite.spark.inline import INLINE
from lastwrite.storage.missing import missing_error
from tests.support.files import unpack
from tests.support.kafka import metadata
from tests.support.kafka.logs import write_checkpoint, write_segment
from tests.support.kafka.metadata import write_identity

CORPUS = Path(__file__).parents[1] / "corpus"
NAMED = "the object is missing, but the manifest of its archive lists it"


def kafka_archive(folder: Path, to: Path) -> None:
    for base in range(4):
        records = (Record(base, base, b"key", b"value", ()),)
        write_segment(folder / "t-0", base, [encode_batch(records, base_offset=base)], 0)
    write_checkpoint(folder, "replication-offset-checkpoint", {"t-0": 4})
    lastwrite.fetch(str(folder), str(to), include_active=True)


def rocketmq_archive(folder: Path, to: Path) -> None:
    unpack(CORPUS / "rocketmq-layouts" / "dledger.tgz", folder)
    lastwrite.fetch(str(folder / "dledger"), str(to), include_active=True)


def pulsar_archive(folder: Path, to: Path) -> None:
    unpack(CORPUS / "pulsar" / "p2-two-lives.tgz", folder)
    lastwrite.fetch(str(folder / "mix"), str(folder / "topics"))
    lastwrite.fetch(str(folder / "topics"), str(to))


class Archived(NamedTuple):
    """An archive, the object that is removed from it, and the expected results."""

    make: Callable[[Path, Path], None]
    removed: str
    topic: str
    held: str
    rows: int  # rows of ``dump`` over all partitions
    read: int  # records of ``read`` in the damaged partition


ARCHIVES = {
    "kafka": Archived(kafka_archive, f"{1:020d}.log", "t", "offsets 1 to 1", 3, 3),
    "rocketmq": Archived(rocketmq_archive, f"{6072:020d}", "comp", "offsets 21 to 21", 39, 21),
    "pulsar": Archived(
        pulsar_archive,
        "*-ledger-51",
        "persistent://public/default/again",
        "ledger 51, entries 0 to 1",
        2,
        2,
    ),
}


class Broken(NamedTuple):
    folder: Path
    gone: Path
    of: Archived


@pytest.fixture(scope="module", params=ARCHIVES, ids=str)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Broken:
    of, folder = ARCHIVES[request.param], tmp_path_factory.mktemp(request.param)
    of.make(folder / "source", folder / "archive")
    (gone,) = (folder / "archive").rglob(f"data/*/{of.removed}")
    return Broken(folder / "archive", gone, of)


@pytest.fixture
def archive(whole: Broken, tmp_path: Path) -> Broken:
    """A copy of the archive without an object in the middle."""
    shutil.copytree(whole.folder, tmp_path / "archive")
    gone = tmp_path / "archive" / whole.gone.relative_to(whole.folder)
    gone.unlink()
    return whole._replace(folder=tmp_path / "archive", gone=gone)


COMMANDS = {
    "dump": ["dump", "{path}"],
    "inspect": ["inspect", "{path}"],
    "read": ["read", "{path}", "--topic", "{topic}", "--partition", "0"],
    "explain": ["explain", "{path}"],
    "plan": ["plan", "{path}", "--config", "min.cleanable.dirty.ratio=0"],
    "compact": ["compact", "{path}", "--config", "min.cleanable.dirty.ratio=0"],
    "verify": ["verify", "{path}"],
    "table": ["table", "{path}", "--topic", "{topic}", "--to", "{path}/../tab", "--as", "parquet"],
}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_commands_name_a_missing_object(
    archive: Broken, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    words = COMMANDS[command]
    if archive.of is ARCHIVES["pulsar"]:
        words = [each for each in words if each not in ("--partition", "0")]
        words = [each for each in words if each not in ("--config", "min.cleanable.dirty.ratio=0")]
    elif archive.of is ARCHIVES["rocketmq"]:
        words = [each for each in words if each not in ("--config", "min.cleanable.dirty.ratio=0")]
    elif command in ("plan", "compact"):
        words = [*words, "--config", "cleanup.policy=compact"]
    capfd.readouterr()
    status = cli.run([each.format(path=archive.folder, topic=archive.of.topic) for each in words])
    out, err = capfd.readouterr()
    said = f"{out}{err}".replace("\n", " ")
    assert status == 3
    assert archive.gone.name in said and f"{NAMED}: {archive.of.held}" in said
    if command in ("dump", "read"):
        rows = archive.of.rows if command == "dump" else archive.of.read
        assert out.count("\n") == rows
        assert err.count(NAMED) == 1


def test_latest_refuses_a_missing_object(archive: Broken) -> None:
    with pytest.raises(CorruptLog, match=f"{NAMED}: {archive.of.held}") as error:
        dict(lastwrite.latest(str(archive.folder), topic=archive.of.topic))
    assert error.value.path == str(archive.gone) and error.value.exit_status == 3


def test_verify_and_rounds_name_a_missing_object(archive: Broken) -> None:
    checked = lastwrite.verify(str(archive.folder), spark=INLINE)
    assert checked.exit_status == 3
    assert VerifyStatus.DAMAGED in {partition.status for partition in checked.partitions}


def test_object_replaced_by_a_round_is_not_damage(archive: Broken) -> None:
    former = archive.gone.with_name("00000000000000000099")
    assert isinstance(
        missing_error(str(former), "the object", "run the command again"), CommitConflict
    )


@pytest.fixture
def of_kafka(tmp_path: Path) -> Broken:
    of = ARCHIVES["kafka"]
    of.make(tmp_path / "source", tmp_path / "archive")
    (gone,) = (tmp_path / "archive").rglob(f"data/*/{of.removed}")
    gone.unlink()
    return Broken(tmp_path / "archive", gone, of)


def test_restore_names_the_missing_object_and_restores_other_partitions(
    of_kafka: Broken, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_segment(tmp_path / "b" / "u-0", 0, [encode_batch([Record(0, 0, b"k", b"v", ())])], 0)
    lastwrite.fetch(str(tmp_path / "b"), str(of_kafka.folder), include_active=True)
    root = tmp_path / "root"
    write_identity(root, "c")
    ids = {"t": b"t" * 16, "u": b"u" * 16}
    values = [metadata.topic(*each) for each in ids.items()]
    values += [metadata.partition(0, topic_id) for topic_id in ids.values()]
    metadata.write_records(root, f"{0:020d}.log", 0, *values)
    capfd.readouterr()
    assert cli.run(["restore", str(of_kafka.folder), "--to", str(root)]) == 3
    said = "".join(capfd.readouterr())
    assert of_kafka.gone.name in said.replace("\n", "")
    assert (root / "u-0").is_dir() and not (root / "t-0").exists()


def test_server_refuses_only_the_missing_offsets(of_kafka: Broken) -> None:
    told: list[str] = []
    (found,) = ServedSource(str(of_kafka.folder), system_named("kafka")).found(["t"])
    partition = ServedPartition(found[0], found[2], Files(1 << 20), told.append)

    def error_at(offset: int) -> int:
        of = SimpleNamespace(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        waiting = PendingFetch(
            [(b"t", [PartitionRequest(partition, 0, of)])], False, 1, 1 << 20, 0.0
        )
        ((_, parts),) = planned(waiting).topics
        return parts[0].error

    assert [error_at(offset) for offset in (0, 1, 1, 2, 3)] == [
        Code.NONE,
        Code.KAFKA_STORAGE_ERROR,
        Code.KAFKA_STORAGE_ERROR,
        Code.NONE,
        Code.NONE,
    ]
    (line,) = told
    assert f"{NAMED}: {of_kafka.of.held}" in line
