"""An object that the manifest of its archive names and that is not there is damage, to every
command; one that a round has replaced is not.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import CommitConflict, CorruptLog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.reports.verification import VerifyStatus
from lastwrite.spark.inline import INLINE
from lastwrite.storage.missing import missing_error
from tests.support.kafka.logs import write_checkpoint, write_segment

STORES = Path(__file__).parents[1] / "corpus" / "rocketmq-layouts"


def kafka_source(folder: Path) -> Path:
    for base in range(4):
        records = (Record(base, base, b"key", b"value", ()),)
        write_segment(folder / "t-0", base, [encode_batch(records, base_offset=base)], 0)
    write_checkpoint(folder, "replication-offset-checkpoint", {"t-0": 4})
    return folder


def rocketmq_source(folder: Path) -> Path:
    with tarfile.open(STORES / "dledger.tgz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "dledger"


@pytest.fixture(params=[kafka_source, rocketmq_source], ids=["kafka", "rocketmq"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """An archive, and an object in the middle of it that was removed."""
    make: Callable[[Path], Path] = request.param
    to = tmp_path / "archive"
    lastwrite.fetch(str(make(tmp_path / "source")), str(to), include_active=True)
    objects = sorted(
        (path for path in to.rglob("data/*/*") if path.suffix in ("", ".log")),
        key=lambda path: (str(path.parents[2]), path.name),
    )
    objects[1].unlink()
    return to, objects[1]


def test_readers_name_a_missing_object(archive: tuple[Path, Path]) -> None:
    to, gone = archive
    with pytest.raises(CorruptLog, match="the manifest of its archive names it") as error:
        list(lastwrite.dump(str(to)))
    assert error.value.path == str(gone) and error.value.exit_status == 3
    with pytest.raises(CorruptLog, match="names it"):
        dict(lastwrite.latest(str(to), topic=gone.parents[3].name))


def test_verify_and_rounds_name_a_missing_object(archive: tuple[Path, Path]) -> None:
    to, gone = archive
    checked = lastwrite.verify(str(to), spark=INLINE)
    assert checked.exit_status == 3
    assert VerifyStatus.DAMAGED in {partition.status for partition in checked.partitions}
    config: dict[str, object] = {"min.cleanable.dirty.ratio": 0}
    if gone.suffix:
        config["cleanup.policy"] = "compact"
    report = lastwrite.compact(str(to), spark=INLINE, config=config)
    assert report.exit_status == 3
    assert any(gone.name in str(each.reason) for each in report.partitions)


def test_an_object_that_a_round_has_replaced_is_no_damage(archive: tuple[Path, Path]) -> None:
    _, gone = archive
    former = gone.with_name("00000000000000000099")
    assert isinstance(missing_error(str(former), "the object", "run again"), CommitConflict)
