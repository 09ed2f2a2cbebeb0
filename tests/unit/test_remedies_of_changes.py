"""Tests of the remedies of ``cut``, ``dispatch``, ``restore`` and ``sweep``.

Each case is a command that fails, words of its remedy, the steps of the user, and the command that
then succeeds. No step deletes a file: files that the user moves away stay in ``kept``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.rocketmq.format.names import CUT_GUARD
from lastwrite.spark.inline import INLINE
from tests.support.files import contents
from tests.support.kafka import metadata
from tests.support.kafka.logs import write_checkpoint, write_segment
from tests.support.kafka.metadata import write_identity, write_metadata
from tests.support.rocketmq.dispatch import BATCHED, COMPACTED, Broker, send, write_store

T = 1_700_000_000_000
ASIDE, NOTE = ".before-cut", "lastwrite-cut.json"


def nothing(_: Path) -> None: ...


class Case(NamedTuple):
    before: Callable[[Path], None]
    fails: str
    remedy: str
    step: Callable[[Path], None]
    helps: str


# ---------------------------------------------------------------------- RocketMQ


def _broker() -> Broker:
    broker = Broker()
    for n in range(30):
        for topic in (COMPACTED, BATCHED):
            send(broker, topic, 0, n, keys=f"k{n % 7}", body=b"v" * 50, stored=T + n)
    return broker


CUT_AT = _broker().addresses[40]


@pytest.fixture(scope="module")
def dispatched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    broker, root = _broker(), tmp_path_factory.mktemp("dispatched") / "store"
    write_store(root, broker)
    lastwrite.dispatch(str(root), config=broker.sizes.config(), now_ms=T, spark=INLINE)
    return root


def store(at: Path) -> None:
    shutil.copytree(at / "dispatched", at / "store")
    (at / "kept").mkdir()


def undispatched(at: Path) -> None:
    store(at)
    shutil.move(at / "store", at / "kept")
    write_store(at / "store", _broker())


def cut_store(at: Path) -> None:
    store(at)
    shutil.copytree(at / "store", at / "copy")
    lastwrite.cut(str(at / "store"), at=CUT_AT)


def undo(at: Path) -> None:
    lastwrite.cut(str(at / "store"), undo=True)


def _asides(at: Path) -> list[Path]:
    found = (path for path in (at / "store").rglob(f"*{ASIDE}"))
    return sorted(found, key=lambda path: path.name.startswith("commitlog"))


def move_asides_out(at: Path) -> None:
    for n, path in enumerate([*_asides(at), at / "store" / NOTE]):
        path.rename(at / "kept" / f"{n}-{path.name}")


def damage_note(at: Path) -> None:
    cut_store(at)
    (at / "store" / NOTE).write_text("{")


def undo_by_hand(at: Path) -> None:
    for n, path in enumerate(_asides(at)):
        live = path.with_name(path.name.removesuffix(ASIDE))
        if live.exists():
            live.rename(at / "kept" / f"{n}-{live.name}")
        path.rename(live)
    (at / "store" / "commitlog" / CUT_GUARD).rename(at / "kept" / "guard")
    ours = ("lock", NOTE)
    assert contents(at / "store", but=ours) == contents(at / "copy", but=ours)


def append_after_cut(at: Path) -> None:
    cut_store(at)
    size = next((at / "copy" / "commitlog").iterdir()).stat().st_size
    name, position = f"{CUT_AT // size * size:020d}", CUT_AT % size
    old, new = at / "copy" / "commitlog" / name, at / "store" / "commitlog" / name
    with open(new, "r+b") as file:
        file.seek(position)
        file.write(old.read_bytes()[position : position + 100])


def log_elsewhere(at: Path) -> None:
    store(at)
    (at / "store" / "commitlog").rename(at / "elsewhere")
    (at / "store" / "commitlog").mkdir()


def gather_copy(at: Path) -> None:
    shutil.copytree(at / "store", at / "copy")
    shutil.copytree(at / "elsewhere", at / "copy" / "commitlog", dirs_exist_ok=True)


def kill_broker(at: Path) -> None:
    store(at)
    (at / "store" / "abort").touch()


ROCKETMQ = {
    "cut: no store": Case(
        store,
        "cut kept --undo",
        "give the broker's storePathRootDir",
        nothing,
        f"cut store --at {CUT_AT}",
    ),
    "cut: neither place nor undo": Case(
        store, "cut store", "give --at OFFSET or --undo", nothing, f"cut store --at {CUT_AT}"
    ),
    "cut: dry run of an undo": Case(
        cut_store, "cut store --undo --dry-run", "leave out --dry-run", nothing, "cut store --undo"
    ),
    "cut: outside of the log": Case(
        store,
        "cut store --at 99999999",
        "give a physical offset from 0 to 12287",
        nothing,
        f"cut store --at {CUT_AT}",
    ),
    "cut: inside of a record": Case(
        store,
        f"cut store --at {CUT_AT + 1}",
        f"cut at the nearest record border: {CUT_AT} and",
        nothing,
        f"cut store --at {CUT_AT}",
    ),
    "cut: an earlier cut, undone": Case(
        cut_store,
        f"cut store --at {CUT_AT}",
        "undo the earlier cut with --undo",
        undo,
        f"cut store --at {CUT_AT}",
    ),
    "cut: an earlier cut, moved out": Case(
        cut_store,
        f"cut store --at {CUT_AT}",
        f"{NOTE} and all files and folders that end with {ASIDE} out of the store",
        move_asides_out,
        f"cut store --at {CUT_AT}",
    ),
    "cut: a damaged note, undone by hand": Case(
        damage_note,
        "cut store --undo",
        "the commit log last, move the one without that ending out of the store",
        undo_by_hand,
        f"cut store --at {CUT_AT}",
    ),
    "cut: a damaged note, the cut kept": Case(
        damage_note,
        "cut store --undo",
        f"move all that ends with {ASIDE}, and {NOTE}, out of the store",
        move_asides_out,
        "verify store",
    ),
    "cut: new records since": Case(
        append_after_cut,
        "cut store --undo",
        "read the one from before the cut with lastwrite dump",
        nothing,
        f"dump store/commitlog{ASIDE}",
    ),
    "cut: the log is elsewhere": Case(
        log_elsewhere,
        f"cut store --at {CUT_AT} --config storePathCommitLog=elsewhere",
        "put the commit log's files into the folder commitlog of the copy",
        gather_copy,
        f"cut copy --at {CUT_AT}",
    ),
    "cut: a killed broker": Case(
        kill_broker,
        f"cut store --at {CUT_AT}",
        "or continue without a start with --unclean",
        nothing,
        f"cut store --at {CUT_AT} --unclean",
    ),
    "dispatch: no store": Case(
        store, "dispatch kept", "give the broker's storePathRootDir", nothing, "dispatch store"
    ),
    "dispatch: a size of no unit": Case(
        undispatched,
        "dispatch store --config mapperFileSizeBatchConsumeQueue=47",
        "set it to the broker's value",
        nothing,
        "dispatch store --config mapperFileSizeBatchConsumeQueue=4600",
    ),
    "dispatch: an index without room": Case(
        undispatched,
        "dispatch store --config compactionCqMappedFileSize=46",
        "set compactionCqMappedFileSize to the broker's value",
        nothing,
        "dispatch store --config compactionCqMappedFileSize=10485760",
    ),
    "restore: two topics of a store": Case(
        store,
        "restore store --from 127.0.0.1:1 --topic a --topic b",
        "name one topic with --topic",
        nothing,
        "verify store",
    ),
}


# ---------------------------------------------------------------------- Kafka


def batch(base: int, **more: object) -> bytes:
    return encode_batch([Record(base, T, b"k", b"%d" % base, ())], base_offset=base, **more)  # type: ignore[arg-type]


def archive(at: Path) -> None:
    """An archive of the topic ``t``, and a log root of a broker that has this topic."""
    for base in range(3):
        write_segment(at / "root" / "t-0", base, [batch(base)], mtime_ms=T)
    write_checkpoint(at / "root", "replication-offset-checkpoint", {"t-0": 3})
    lastwrite.fetch(str(at / "root"), str(at / "archive"), include_active=True)
    write_identity(at / "new", "c")
    register(at, "t", "u")


def register(at: Path, *names: str, partitions: int = 1) -> None:
    made = [
        value
        for n, name in enumerate(names, 1)
        for id in [n.to_bytes(16, "big")]
        for value in (
            metadata.topic(name, id),
            *(metadata.partition(number, id) for number in range(partitions)),
        )
    ]
    metadata.write_records(at / "new", f"{0:020d}.log", 0, *made)


def two_topics(at: Path) -> None:
    write_segment(at / "root" / "u-0", 0, [batch(0)], mtime_ms=T)
    archive(at)


def open_transaction(at: Path) -> None:
    open_batch = batch(0, transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    write_segment(at / "root" / "t-0", 0, [open_batch], mtime_ms=T)
    write_checkpoint(at / "root", "replication-offset-checkpoint", {"t-0": 1})
    lastwrite.fetch(str(at / "root"), str(at / "archive"), include_active=True)
    write_identity(at / "new", "c")
    register(at, "t")


def compacted(at: Path) -> None:
    archive(at)
    config = {"min.cleanable.dirty.ratio": 0}
    declared = [("t", "cleanup.policy", "compact")]
    lastwrite.compact(str(at / "archive"), config=config, topic_config=declared, spark=INLINE)


def other_records(at: Path) -> None:
    archive(at)
    lastwrite.restore(str(at / "archive"), to=str(at / "new"))
    write_segment(at / "new" / "t-0", 3, [batch(3)], mtime_ms=T)


def two_partitions(at: Path) -> None:
    write_segment(at / "root" / "t-1", 0, [batch(0)], mtime_ms=T)
    archive(at)


def linked(at: Path) -> None:
    archive(at)
    (at / "disk" / "t-0").mkdir(parents=True)
    os.symlink(at / "disk" / "t-0", at / "new" / "t-0")


def move_link(at: Path) -> None:
    (at / "new" / "t-0").rename(at / "link")


def unformatted(at: Path) -> None:
    archive(at)
    (at / "new" / "meta.properties").rename(at / "meta.properties")


def formatted(at: Path) -> None:
    (at / "meta.properties").rename(at / "new" / "meta.properties")


def no_topic(at: Path) -> None:
    archive(at)
    write_metadata(at / "new", {"other": {}})


KAFKA = {
    "restore: a log directory": Case(
        archive,
        "restore root --to new",
        "copy it into an archive first: lastwrite fetch DIR --to ARCHIVE",
        nothing,
        "fetch root --to archive --include-active",
    ),
    "restore: without a target": Case(
        archive, "restore archive", "give --to LOGROOT", nothing, "restore archive --to new"
    ),
    "restore: a rate": Case(
        archive,
        "restore archive --to new --rate 1m",
        "leave them out",
        nothing,
        "restore archive --to new",
    ),
    "restore: groups": Case(
        archive,
        "restore archive --to new --groups",
        "first restore the records into the log root without --groups",
        nothing,
        "restore archive --to new",
    ),
    "restore: one name for two topics": Case(
        two_topics,
        "restore archive --to new --as v",
        "select one of them with --topic",
        lambda at: register(at, "t", "u", "v"),
        "restore archive --to new --topic t --as v",
    ),
    "restore: until a compacted offset": Case(
        compacted,
        "restore archive --to new --until 1",
        "restore without --until",
        nothing,
        "restore archive --to new",
    ),
    "restore: until no time": Case(
        archive,
        "restore archive --to new --until noon",
        "write a time as 2026-11-23T08:00",
        nothing,
        "restore archive --to new --until 2026-11-23T08:00",
    ),
    "restore: an unformatted root": Case(
        unformatted,
        "restore archive --to new",
        "kafka-storage.sh format creates them",
        formatted,
        "restore archive --to new",
    ),
    "restore: a bucket": Case(
        archive,
        "restore archive --to s3://bucket/x",
        "give one of the broker's log.dirs",
        nothing,
        "restore archive --to new",
    ),
    "restore: a topic that is missing": Case(
        no_topic,
        "restore archive --to new",
        "--create --topic t --partitions 1",
        lambda at: register(at, "t"),
        "restore archive --to new",
    ),
    "restore: another number of partitions": Case(
        two_partitions,
        "restore archive --to new",
        "partitions, and restore into it with --as",
        lambda at: register(at, "t", "u", partitions=2),
        "restore archive --to new --as u",
    ),
    "restore: other records": Case(
        other_records,
        "restore archive --to new",
        "restore under another name with --as",
        nothing,
        "restore archive --to new --as u",
    ),
    "restore: a linked folder": Case(
        linked,
        "restore archive --to new",
        "move the link out of the log root",
        move_link,
        "restore archive --to new",
    ),
    "restore: an open transaction": Case(
        open_transaction,
        "restore archive --to new",
        "give --drop-open to restore without the records",
        nothing,
        "restore archive --to new --drop-open",
    ),
    "sweep: no archive": Case(archive, "sweep root", "check the address", nothing, "sweep archive"),
    "sweep: no duration": Case(
        archive,
        "sweep archive --older-than 1x",
        "write a number and a unit (s, m, h or d)",
        nothing,
        "sweep archive --older-than 24h",
    ),
}
CASES = {**ROCKETMQ, **KAFKA}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_remedy_helps(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    dispatched: Path,
    case: Case,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dispatched").symlink_to(dispatched)
    case.before(tmp_path)

    def run(command: str) -> tuple[int, str]:
        capfd.readouterr()
        status = cli.run(command.split())
        return status, " ".join("".join(capfd.readouterr()).split())

    status, said = run(case.fails)
    assert status != 0 and case.remedy in said, said
    case.step(tmp_path)
    status, said = run(case.helps)
    assert status == 0, said
