"""Tests of Pulsar topics in an archive, in a folder and in a real S3 server."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.pulsar.fetched import FetchReport
from lastwrite.pulsar.format.compacted import decode_record
from lastwrite.pulsar.format.names import TopicName
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.archiving import PulsarRounds
from lastwrite.pulsar.store.place import name_of
from lastwrite.pulsar.store.topic import list_topic
from lastwrite.reports.compaction import CompactionReport, Status
from lastwrite.spark.inline import INLINE
from tests.property.test_pulsar_compaction import EVENT_TIME, life, rules, run, seeds
from tests.support.kafka.crashing import run_until
from tests.support.objects import BUCKET, S3
from tests.support.pulsar.corpus import CORPUS, TOPICS, unpack
from tests.support.pulsar.model import START_MS, ModelTopic, Rules, content
from tests.support.pulsar.topics import put_ledger, read_compacted, read_ledger, topic_folder
from tests.unit.test_pulsar_topic import single

NOW_MS = 1_800_000_000_000
PLACES = ("file", "position")  # fields of a row that depend on its source


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = unpack("bookies", tmp_path_factory.mktemp("bookies"))
    return [str(folder / str(number)) for number in range(3)]


def topic_folders(bookies: list[str], to: Path, number: int, *names: str) -> Path:
    """Fetch topic folders as they were after the brokers' round of that number."""
    for name in names:
        said = CORPUS / "topics" / name / str(number)
        report = lastwrite.fetch(
            bookies,
            str(to),
            topic=TOPICS[name],
            metadata=str(said / "managed-ledger"),
            cursor=str(said / "cursor"),
            recover=True,
        )
        assert report.exit_status == 0, report.to_dict()
    return to


def brought(source: Path | str, to: str, **options: Any) -> dict[str, dict[int, str]]:
    """Fetch into an archive. Returns how each ledger was fetched, by topic."""
    report = lastwrite.fetch([str(source)], to, **options)
    assert isinstance(report, FetchReport)
    assert report.exit_status == 0, report.to_dict()
    return {
        topic.topic: {ledger.ledger: str(ledger.how) for ledger in topic.ledgers}
        for topic in report.topics
    }


def here(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in row if name not in PLACES} for row in rows]


def without_paths(said: Any) -> Any:
    """The texts without the folders of paths."""
    if isinstance(said, str):
        return re.sub(r"(?:s3:/)?/[^ :]*/", "", said)
    if isinstance(said, dict):
        return {name: without_paths(value) for name, value in said.items()}
    return [without_paths(each) for each in said] if isinstance(said, list | tuple) else said


def said_of(path: str, topic: str, config: dict[str, str]) -> dict[str, Any]:
    """The output of all reading commands for one topic, without file names and positions."""
    found: dict[str, Any] = {}
    inspected = lastwrite.inspect(path, topic=topic, config=config, now_ms=NOW_MS)
    (one,) = inspected.partitions
    said = one.to_dict()
    for name in ("folder", "manifest", "other_files"):
        said.pop(name)
    for ledger in (*said["ledgers"], said["compacted"] or {}):
        ledger.pop("file", None)
    found["inspect"] = inspected.exit_status, said
    for name, options in (
        ("dump", {}),
        ("batches", {"batches": True}),
        ("blocks", {"index": True}),
        ("compacted", {"compacted": True}),
        ("last", {"last": 3}),
    ):
        rows = lastwrite.dump(path, topic=topic, config=config, **options)  # type: ignore[arg-type]
        found[name] = here(rows)
    for compacted in (False, True):
        reading = lastwrite.read(path, topic, config=config, read_compacted=compacted)
        rows = here(reading)
        found[f"read {compacted}"] = rows, reading.summary()
    try:
        found["latest"] = lastwrite.latest(path, topic, config=config)
    except LogError as error:  # some topics have a message that cannot be decoded
        found["latest"] = type(error), error.problem
    explained = lastwrite.explain(path, topic=topic, config=config, now_ms=NOW_MS)
    (why,) = explained.to_dict()["partitions"]
    why.pop("folder")
    found["explain"] = why
    verified = lastwrite.verify(path, topic=topic, config=config)
    (proof,) = verified.to_dict()["partitions"]
    found["verify"] = verified.exit_status, proof
    planned = lastwrite.plan(path, topic=topic, config=config, now_ms=NOW_MS, spark=INLINE)
    (plan,) = planned.to_dict()["partitions"]
    plan.pop("seconds")
    found["plan"] = plan
    return {command: without_paths(said) for command, said in found.items()}


@pytest.fixture(scope="module")
def older(bookies: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic folders that brokers had compacted once."""
    names = ("shapes", "odd", "parts-partition-1", "events")
    return topic_folders(bookies, tmp_path_factory.mktemp("older"), 1, *names)


@pytest.fixture(scope="module")
def told(older: Path) -> Callable[[str], dict[str, Any]]:
    """The output of all reading commands for a topic folder. Each is run once."""
    known: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if name not in known:
            known[name] = said_of(str(older), TOPICS[name], {})
        return known[name]

    return of


@pytest.mark.parametrize("name", ["shapes", "odd", "parts-partition-1", "events"])
def test_archive_in_a_folder_equals_the_topic(
    tmp_path: Path, older: Path, told: Callable[[str], dict[str, Any]], name: str
) -> None:
    to = tmp_path / "archive"
    how = brought(older, str(to), topic=TOPICS[name])
    assert set(how[TOPICS[name]].values()) == {"copied"}
    found, wanted = said_of(str(to), TOPICS[name], {}), told(name)
    for command, said in wanted.items():
        assert found[command] == said, command
    how = brought(older, str(to), topic=TOPICS[name])
    assert set(how[TOPICS[name]].values()) == {"present"}
    whole = json.loads(next(to.glob("**/manifest.json")).read_bytes())
    assert whole["generation"] == 1  # no second manifest was needed


@pytest.mark.parametrize("name", ["shapes", "events"])
def test_archive_in_a_bucket_equals_the_topic(
    s3: S3, older: Path, told: Callable[[str], dict[str, Any]], name: str
) -> None:
    to = f"s3://{BUCKET}/of/{name}"
    how = brought(older, to, topic=TOPICS[name], config=s3.config)
    assert set(how[TOPICS[name]].values()) == {"copied"}
    found, wanted = said_of(to, TOPICS[name], s3.config), told(name)
    for command, said in wanted.items():
        assert found[command] == said, command
    again = brought(older, to, topic=TOPICS[name], config=s3.config)
    assert set(again[TOPICS[name]].values()) == {"present"}
    swept = lastwrite.sweep(to, everything=True, config=s3.config)
    assert [one.objects for one in swept.partitions] == [0]


def test_archive_is_fetched_into_another_archive(tmp_path: Path, older: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    brought(older, str(first))
    assert brought(first, str(second)) == brought(older, str(tmp_path / "third"))
    for name in ("shapes", "events"):
        assert said_of(str(second), TOPICS[name], {}) == said_of(str(first), TOPICS[name], {})


def test_only_new_ledgers_are_fetched(tmp_path: Path, bookies: list[str]) -> None:
    to = tmp_path / "archive"
    first = brought(topic_folders(bookies, tmp_path / "1", 1, "events"), str(to))
    later = brought(topic_folders(bookies, tmp_path / "2", 2, "events"), str(to))
    (before,), (after,) = first.values(), later.values()
    assert set(before.values()) == {"copied"}
    there = list_topic(str(next((tmp_path / "2").glob("*/*/persistent/*"))))
    now = list_topic(str(next(to.glob("pulsar/*/*/persistent/*"))))
    assert [(one.id, one.entries) for one in now.all_ledgers] == [
        (one.id, one.entries) for one in there.all_ledgers
    ]
    assert now.horizon == there.horizon
    assert {"copied", "present"} >= set(after.values()) > {"present"}
    assert said_of(str(to), TOPICS["events"], {}) == said_of(
        str(tmp_path / "2"), TOPICS["events"], {}
    )
    # Fetching an older folder changes nothing.
    again = brought(tmp_path / "1", str(to))
    assert set(next(iter(again.values())).values()) == {"present"}
    assert list_topic(now.folder).horizon == there.horizon


def test_damaged_topic_is_not_fetched(tmp_path: Path, older: Path) -> None:
    source, to = tmp_path / "source", tmp_path / "archive"
    shutil.copytree(older, source)
    folder = next(source.glob("*/*/persistent/shapes"))
    ledger = max(folder.glob("*-ledger-16"))
    data = bytearray(ledger.read_bytes())
    data[len(data) // 2] ^= 0x10
    ledger.write_bytes(data)
    report = lastwrite.fetch([str(source)], str(to))
    assert report.exit_status == 3
    assert isinstance(report, FetchReport)
    failed = {topic.topic: topic.problems for topic in report.topics if not topic.ledgers}
    assert set(failed) == {TOPICS["shapes"]}
    assert not list(to.glob("pulsar/*/*/persistent/shapes/data/*/*"))
    assert {path.parent.name for path in to.glob("**/manifest.json")} == {
        "odd",
        "parts-partition-1",
        "events",
    }


def test_ledgers_that_do_not_continue_the_archive_are_refused(
    tmp_path: Path, bookies: list[str]
) -> None:
    to = tmp_path / "archive"
    source = topic_folders(bookies, tmp_path / "1", 1, "events")
    brought(source, str(to))
    folder = next(source.glob("*/*/persistent/events"))
    before = (to / "pulsar").rglob("*")
    files = {path: path.read_bytes() for path in before if path.is_file()}
    # The topic was created again: its ledgers have other ids.
    for path in [*folder.glob("managed-ledger*"), folder / "fetched.json"]:
        path.unlink(missing_ok=True)
    (folder / "compacted.json").unlink()
    for path in sorted(folder.glob("*-ledger-*")):
        if path.name.endswith(".survey") or "-ledger-69" not in path.name:
            path.unlink()
        else:
            path.rename(path.with_name(path.name.replace("-ledger-69", "-ledger-169")))
    report = lastwrite.fetch([str(source)], str(to))
    assert report.exit_status == 1
    assert isinstance(report, FetchReport)
    (topic,) = report.topics
    assert "may be lost, or the topic was deleted and created again" in topic.problems[0].message
    after = {path: path.read_bytes() for path in (to / "pulsar").rglob("*") if path.is_file()}
    assert after == files


def test_archive_of_the_older_form_is_refused_as_a_target(tmp_path: Path, older: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(older, target)
    with pytest.raises(InvalidConfig, match="topic folders of an earlier format"):
        lastwrite.fetch([str(older)], str(target))


# ---------------------------------------------------------------------- rounds


@dataclass
class Archived:
    """One topic of an archive in a folder, read without the package's store."""

    archive: Path
    topic: str

    @property
    def folder(self) -> Path:
        return self.archive / "pulsar" / TopicName.parse(self.topic).managed_ledger

    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "manifest.json").read_bytes())
        return found

    def compacted(self) -> list[tuple[Position, bytes]]:
        """Ids and bodies of all parts of the compacted ledger."""
        said = self.manifest()["log"]["compacted"]
        if said is None:
            return []
        parts = [read_ledger(self.folder / part["key"]) for part in said["parts"]]
        records = [decode_record(each) for part in parts for each in part]
        places = [position for position, _, _ in records]
        assert places == sorted(set(places))
        assert said["entries"] == len(records)
        assert (said["first"], said["last"]) == (
            (str(places[0]), str(places[-1])) if places else (said["horizon"],) * 2
        )
        for part, entries in zip(said["parts"], parts, strict=True):
            assert (part["entries"], part["length"]) == (len(entries), sum(map(len, entries)))
        return [(position, body) for position, _, body in records]

    def raw(self) -> dict[str, bytes]:
        keys = [each["key"] for each in self.manifest()["log"]["ledgers"]]
        return {key: (self.folder / key).read_bytes() for key in keys}

    def named(self) -> set[str]:
        """The manifest, and all files that it lists as used or unused."""
        said = self.manifest()
        return {each["key"] for each in (*said["objects"], *said["unused"])} | {"manifest.json"}

    def files(self) -> set[str]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        names = {str(path.relative_to(self.folder)) for path in found}
        return names - {"manifest.json.lock"}


@contextlib.contextmanager
def small_pieces(piece_bytes: int, block_bytes: int = 1500) -> Iterator[None]:
    """Split ledgers into many pieces and results into many parts, as with large ledgers."""
    with (
        patch("lastwrite.engine.pieces._PIECE_BYTES", piece_bytes),
        patch("lastwrite.engine.pieces._LEAST_PIECE_BYTES", piece_bytes),
        patch("lastwrite.engine.shares._LEAST_PART_BYTES", 1),
        patch("lastwrite.spark.work.InlineRunner.workers", 3),
        patch("lastwrite.pulsar.store.survey._MARK_BYTES", 400),
        patch("lastwrite.pulsar.store.staging.BLOCK_BYTES", block_bytes),
    ):
        yield


def check_round(found: Archived, model: ModelTopic, moved: bool, report: CompactionReport) -> None:
    (told,) = report.partitions
    assert told.status is (Status.CLEANED if moved else Status.SKIPPED), told.reason
    said = found.manifest()["log"]["compacted"]
    assert (said and said["horizon"]) == (model.horizon and str(model.horizon))
    assert [content(*each) for each in found.compacted()] == [
        content(*each) for each in model.compacted
    ]
    assert found.files() == found.named()


@settings(max_examples=12)
@given(seeds, rules(), st.sampled_from([1, 500, 3000]), st.sampled_from([200, 1500]))
def test_rounds_follow_the_rules(seed: int, of: Rules, piece_bytes: int, block_bytes: int) -> None:
    with life(seed) as topic:
        base = topic.folder.parents[3]
        found = Archived(base.with_name("new"), name_of(str(topic.folder)).full)
        for _ in range(3):
            topic.grow()
            brought(base, str(found.archive))
            raw = found.raw()
            with small_pieces(piece_bytes, block_bytes):
                report = run(found.archive, of)
                check_round(found, topic.model, topic.model.compact(of), report)
            assert found.raw() == raw
            assert lastwrite.verify(str(found.archive)).exit_status == 0
        # Compacting to another place leaves the same result there.
        if topic.model.horizon is not None:
            copy = Archived(base.with_name("copy"), found.topic)
            topic.grow()
            brought(base, str(found.archive))
            before = {name: (found.folder / name).read_bytes() for name in found.files()}
            copied = run(found.archive, of, to=str(copy.archive))
            assert {name: (found.folder / name).read_bytes() for name in found.files()} == before
            check_round(copy, topic.model, topic.model.compact(of), copied)


@pytest.mark.parametrize(("seed", "of"), [(1, Rules()), (2, Rules(True, True, False, True))])
def test_rounds_in_a_bucket_give_the_same(s3: S3, seed: int, of: Rules) -> None:
    config = {
        **s3.config,
        "topicCompactionRetainNullKey": of.retain,
        "exposingBrokerEntryMetadataToClientEnabled": of.keeps_prefix,
        **({"compactionServiceFactoryClassName": EVENT_TIME} if of.event_time else {}),
    }
    with life(seed) as topic:
        base, prefix = topic.folder.parents[3], f"rounds/{uuid.uuid4().hex}"
        address = f"s3://{BUCKET}/{prefix}"
        found = Archived(s3.data / BUCKET / prefix, name_of(str(topic.folder)).full)
        for _ in range(2):
            topic.grow()
            brought(base, address, config=s3.config)
            with small_pieces(500):
                report = lastwrite.compact(
                    address,
                    config=config,
                    now_ms=START_MS,
                    spark=INLINE,
                    like_broker=of.like_broker,
                )
                check_round(found, topic.model, topic.model.compact(of), report)
        verified = lastwrite.verify(address, config=s3.config)
        assert verified.exit_status == 0, verified.to_dict()
        # Compact a topic folder directly into the bucket.
        topic.grow()
        copy = Archived(s3.data / BUCKET / f"{prefix}-copy", found.topic)
        copied = lastwrite.compact(
            str(base),
            to=f"{address}-copy",
            config=config,
            now_ms=START_MS,
            spark=INLINE,
            like_broker=of.like_broker,
        )
        (told,) = copied.partitions
        assert told.status in (Status.CLEANED, Status.SKIPPED), told.reason
        assert lastwrite.verify(f"{address}-copy", config=s3.config).exit_status == 0
        rows = list(lastwrite.read(f"{address}-copy", config=s3.config, read_compacted=True))
        here = lastwrite.compact(
            str(base),
            config={name: value for name, value in config.items() if name[:8] != "storage."},
            now_ms=START_MS,
            spark=INLINE,
            like_broker=of.like_broker,
        )
        assert [each.status for each in here.partitions] == [told.status]
        wanted = lastwrite.read(str(base), read_compacted=True)
        assert [row["message_id"] for row in rows] == [row["message_id"] for row in wanted]
        if told.status is Status.CLEANED:
            assert copy.compacted() == read_compacted(topic.folder)


@pytest.mark.parametrize("name", ["shapes", "odd", "parts-partition-1", "events"])
@pytest.mark.parametrize("is_parted", [False, True])
def test_round_on_an_archive_equals_one_on_the_topic_folder(
    tmp_path: Path, bookies: list[str], name: str, is_parted: bool
) -> None:
    """Uses real brokers' data and every command."""
    older, to = tmp_path / "older", tmp_path / "archive"
    said = CORPUS / "topics" / name / "2" / "managed-ledger"
    fetched = lastwrite.fetch(
        bookies, str(older), topic=TOPICS[name], metadata=str(said), recover=True
    )
    assert fetched.exit_status == 0
    brought(older, str(to))
    reports = []
    for path in (older, to):
        with small_pieces(500) if is_parted else contextlib.nullcontext():
            done = lastwrite.compact(str(path), now_ms=NOW_MS, spark=INLINE)
        (one,) = done.to_dict()["partitions"]
        one.pop("seconds")
        if is_parted:  # each part is a segment with a header of its own
            for each in ("bytes_written", "bytes_after", "segments_after"):
                one.pop(each)
        reports.append(without_paths(one))
    assert reports[0] == reports[1]
    if is_parted and name == "shapes":
        assert len(Archived(to, TOPICS[name]).manifest()["log"]["compacted"]["parts"]) > 1
    folder = next(older.glob("*/*/persistent/*"))
    assert Archived(to, TOPICS[name]).compacted() == read_compacted(folder)
    found, wanted = said_of(str(to), TOPICS[name], {}), said_of(str(older), TOPICS[name], {})
    of_bytes = ("blocks", "inspect", "verify", "plan", "compacted", "explain")
    for command, words in wanted.items():
        if not is_parted or command not in of_bytes:
            assert found[command] == words, command
    assert found["verify"][0] == found["inspect"][0] == 0


@pytest.mark.parametrize("seed", range(4))
def test_chunks_are_fetched_into_another_archive(tmp_path: Path, seed: int) -> None:
    folder = topic_folder(tmp_path / "older")
    bodies = [single(f"key-{n % 37}", b"%d" % n) for n in range(seed, 40)]
    put_ledger(folder, 10, bodies, 500)
    base, name = folder.parents[3], name_of(str(folder)).full
    first, second = (Archived(tmp_path / each, name) for each in ("first", "second"))
    brought(base, str(first.archive))
    brought(base, str(second.archive))
    with small_pieces(1, 200):
        run(first.archive, Rules())
    parts = first.manifest()["log"]["compacted"]["parts"]
    assert len(parts) > 1 and len({part["ledger"] for part in parts}) == 1
    brought(first.archive, str(second.archive))
    assert first.compacted() == second.compacted() != []
    ends = [each.manifest()["log"]["compacted"]["horizon"] for each in (first, second)]
    assert ends[0] == ends[1]
    assert lastwrite.verify(str(second.archive)).exit_status == 0
    table = {f"key-{n % 37}": b"%d" % n for n in range(seed, 40)}
    for path in (base, first.archive, second.archive):
        assert lastwrite.latest(str(path)) == table


def test_one_of_two_concurrent_rounds_wins(tmp_path: Path, older: Path) -> None:
    to = tmp_path / "archive"
    brought(older, str(to), topic=TOPICS["events"])
    swap, first = PulsarRounds.swap, []

    def later(self: PulsarRounds, wave: Any) -> Any:
        if not first:
            first.append(True)
            first.append(lastwrite.compact(str(to), now_ms=NOW_MS, spark=INLINE))
        return swap(self, wave)

    with patch.object(PulsarRounds, "swap", later):
        lost = lastwrite.compact(str(to), now_ms=NOW_MS, spark=INLINE)
    (won,), (told,) = first[1].partitions, lost.partitions
    assert won.status is Status.CLEANED
    assert told.status is not Status.FAILED and told.attempts == 2
    found = Archived(to, TOPICS["events"])
    assert found.manifest()["generation"] == 2
    assert found.files() == found.named()
    assert lastwrite.verify(str(to)).exit_status == 0


def test_round_killed_at_any_point_leaves_the_old_topic_or_the_new(tmp_path: Path) -> None:
    with life(5) as topic:
        base = topic.folder.parents[3]
        topic.grow()
        found = Archived(tmp_path / "archive", name_of(str(topic.folder)).full)
        brought(base, str(found.archive))
        run(found.archive, Rules())
        topic.grow()
        brought(base, str(found.archive))
        shutil.copytree(found.archive, tmp_path / "begin")
        old = found.compacted()
        run(found.archive, Rules())
        new = found.compacted()
        assert old != new
        seen, point = set(), 0
        while True:
            shutil.rmtree(found.archive)
            shutil.copytree(tmp_path / "begin", found.archive)
            point += 1
            if not run_until(point, lambda: void(run(found.archive, Rules()))):
                break
            now = found.compacted()
            assert now in (old, new), point
            seen.add(now == new)
            assert lastwrite.verify(str(found.archive)).exit_status == 0, point
            run(found.archive, Rules())
            assert found.compacted() == new, point
            if point % 3 == 0:
                lastwrite.sweep(str(found.archive), older_than_ms=0)
                assert found.files() >= found.named()
                assert not [name for name in found.files() if name.endswith(".aside")]
        assert seen == {False, True}


def void(report: object) -> None:
    """Ignore the report."""
