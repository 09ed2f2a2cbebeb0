"""Tests that the remedies in errors help.

A case is a command that fails, the text of its remedy, the user's step, and the command that then
succeeds.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from tests.support.kafka import metadata
from tests.support.kafka.logs import write_checkpoint, write_segment
from tests.support.kafka.metadata import write_identity, write_metadata

T = 1_700_000_000_000
COMPACT = "t:cleanup.policy=compact"


def write_root(root: Path, policy: str | None = None) -> None:
    """Write a topic of four segments. Its last value is not JSON."""
    for base in range(4):
        value = b"no JSON" if base == 3 else b"%d" % base
        batch = encode_batch([Record(base, T, b"k", value, ())], base_offset=base)
        write_segment(root / "t-0", base, [batch], mtime_ms=T)
    write_checkpoint(root, "replication-offset-checkpoint", {"t-0": 4})
    if policy is not None:
        write_metadata(root, {"t": {"cleanup.policy": policy}})


def remove_segment(at: Path) -> None:
    shutil.copytree(at / "root" / "t-0", at / "backup")
    for file in (at / "root" / "t-0").glob(f"{1:020d}.*"):
        file.unlink()


def restore_folder(at: Path) -> None:
    shutil.rmtree(at / "root" / "t-0")
    shutil.copytree(at / "backup", at / "root" / "t-0")


def remove_object(at: Path) -> None:
    lastwrite.fetch(str(at / "root"), str(at / "archive"), include_active=True)
    shutil.copytree(at / "archive", at / "copy")
    next((at / "archive").rglob(f"data/*/{1:020d}.log")).unlink()


def restore_object(at: Path) -> None:
    (there,) = (at / "copy").rglob(f"data/*/{1:020d}.log")
    shutil.copy(there, at / "archive" / there.relative_to(at / "copy"))


def archive_and_identity(at: Path) -> None:
    lastwrite.fetch(str(at / "root"), str(at / "archive"), include_active=True)
    write_identity(at / "new", "c")


def metadata_elsewhere(at: Path) -> None:
    write_identity(at / "first", "c")
    made = [metadata.topic("t"), metadata.partition(0, metadata.TOPIC_ID)]
    metadata.write_records(at / "first", f"{0:020d}.log", 0, *made)


def nothing(_: Path) -> None: ...


class Case(NamedTuple):
    before: Callable[[Path], None]
    fails: str
    remedy: str
    step: Callable[[Path], None]
    helps: str
    policy: str | None = None


CASES = {
    "fetch reads folders": Case(
        nothing,
        "fetch schema.json --to archive",
        "give the log root that contains the file",
        nothing,
        "fetch root --to archive",
    ),
    "a path above the log root": Case(
        lambda at: (at / "volume").mkdir(),
        "inspect volume",
        "give a log root",
        lambda at: shutil.copytree(at / "root", at / "volume", dirs_exist_ok=True) and None,
        "inspect volume",
    ),
    "a path of no system": Case(
        lambda at: (at / "empty").mkdir(),
        "dump empty",
        "for RocketMQ, give a store; for Pulsar, give an archive",
        nothing,
        "dump root",
    ),
    "a bad value": Case(
        nothing,
        "dump root/t-0 --value-format json --value-schema {schema} --on-bad fail",
        "give --on-bad null",
        nothing,
        "dump root/t-0 --value-format json --value-schema {schema} --on-bad null",
    ),
    "a bad value of a table": Case(
        nothing,
        "table root --topic t --to tab --as parquet --value-format json --value-schema {schema} "
        "--on-bad fail --key-format utf8",
        "give --on-bad null",
        nothing,
        "table root --topic t --to tab --as parquet --value-format json --value-schema {schema} "
        "--on-bad null --key-format utf8",
    ),
    "a missing segment": Case(
        remove_segment,
        "fetch root --to archive",
        "restore the entire folder from a backup",
        restore_folder,
        "fetch root --to archive",
        policy="delete",
    ),
    "a missing object, from a copy": Case(
        remove_object,
        f"compact archive --topic-config {COMPACT} --config min.cleanable.dirty.ratio=0",
        "a copy of the archive",
        restore_object,
        f"compact archive --topic-config {COMPACT} --config min.cleanable.dirty.ratio=0",
    ),
    "a missing object, from the source": Case(
        remove_object,
        "dump archive",
        "fetch the records that the source still has into another archive",
        nothing,
        "fetch root --to another",
    ),
    "an unknown topic id": Case(
        archive_and_identity,
        "restore archive --to new",
        "with --metadata PATH",
        metadata_elsewhere,
        "restore archive --to new --metadata first",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_remedy_helps(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    write_root(tmp_path / "root", case.policy)
    case.before(tmp_path)

    def run(command: str) -> tuple[int, str]:
        capfd.readouterr()
        status = cli.run(command.format(schema="schema.json").split())
        return status, " ".join("".join(capfd.readouterr()).split())

    status, said = run(case.fails)
    assert status != 0 and case.remedy in said, said
    case.step(tmp_path)
    status, said = run(case.helps)
    assert status == 0, said
