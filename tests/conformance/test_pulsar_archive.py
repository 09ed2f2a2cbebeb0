"""Pulsar's topics in an archive, in a folder and in a real S3 server: what ``fetch`` brings is the
topic as it lay in its folder, by every command that reads.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, LogError
from lastwrite.pulsar.fetched import FetchReport
from lastwrite.pulsar.store.topic import list_topic
from lastwrite.spark.inline import INLINE
from tests.support.objects import BUCKET, S3
from tests.support.pulsar.corpus import CORPUS, TOPICS, unpack

NOW_MS = 1_800_000_000_000
PLACES = ("file", "position")  # of a row, that differ by where it lies


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = unpack("bookies", tmp_path_factory.mktemp("bookies"))
    return [str(folder / str(number)) for number in range(3)]


def topic_folders(bookies: list[str], to: Path, number: int, *names: str) -> Path:
    """Topic folders as they were after the brokers' round of that number."""
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
    """Of each topic how each of its ledgers came."""
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
    """Texts without the folders of paths in them."""
    if isinstance(said, str):
        return re.sub(r"(?:s3:/)?/[^ :]*/", "", said)
    if isinstance(said, dict):
        return {name: without_paths(value) for name, value in said.items()}
    return [without_paths(each) for each in said] if isinstance(said, list | tuple) else said


def said_of(path: str, topic: str, config: dict[str, str]) -> dict[str, Any]:
    """What the commands that read say of one topic, but for where it lies."""
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
    except LogError as error:  # some have what nobody can look into
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
    """What is said of a topic folder, asked once."""
    known: dict[str, dict[str, Any]] = {}

    def of(name: str) -> dict[str, Any]:
        if name not in known:
            known[name] = said_of(str(older), TOPICS[name], {})
        return known[name]

    return of


@pytest.mark.parametrize("name", ["shapes", "odd", "parts-partition-1", "events"])
def test_in_a_folder_it_is_the_topic_that_it_was(
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
    assert whole["generation"] == 1  # there was nothing to say


@pytest.mark.parametrize("name", ["shapes", "events"])
def test_in_a_bucket_it_is_the_topic_that_it_was(
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


def test_from_one_archive_into_another(tmp_path: Path, older: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    brought(older, str(first))
    assert brought(first, str(second)) == brought(older, str(tmp_path / "third"))
    for name in ("shapes", "events"):
        assert said_of(str(second), TOPICS[name], {}) == said_of(str(first), TOPICS[name], {})


def test_only_what_is_new_travels(tmp_path: Path, bookies: list[str]) -> None:
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
    # An older folder brings nothing, and takes nothing back.
    again = brought(tmp_path / "1", str(to))
    assert set(next(iter(again.values())).values()) == {"present"}
    assert list_topic(now.folder).horizon == there.horizon


def test_what_is_damaged_is_not_brought(tmp_path: Path, older: Path) -> None:
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


def test_ledgers_that_do_not_follow_are_refused(tmp_path: Path, bookies: list[str]) -> None:
    to = tmp_path / "archive"
    source = topic_folders(bookies, tmp_path / "1", 1, "events")
    brought(source, str(to))
    folder = next(source.glob("*/*/persistent/events"))
    before = (to / "pulsar").rglob("*")
    files = {path: path.read_bytes() for path in before if path.is_file()}
    # The same topic made anew: its ledgers are others.
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
    assert "may be lost, or the topic was made anew" in topic.problems[0].message
    after = {path: path.read_bytes() for path in (to / "pulsar").rglob("*") if path.is_file()}
    assert after == files


def test_an_archive_of_the_older_form_is_no_target(tmp_path: Path, older: Path) -> None:
    target = tmp_path / "target"
    shutil.copytree(older, target)
    with pytest.raises(InvalidConfig, match="older form"):
        lastwrite.fetch([str(older)], str(target))
