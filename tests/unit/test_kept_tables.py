"""Tests of the tables that a cleaner updates: before rounds, during rounds, and after errors."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake", reason="pip install 'lastwrite[tables]'")
pytest.importorskip("pyiceberg", reason="pip install 'lastwrite[tables]'")

import lastwrite
from lastwrite.cleaner.events import (
    DaemonNote,
    Event,
    FilesUntouched,
    RoundEnded,
    TableFailed,
    TableUpdated,
)
from lastwrite.cleaner.following import Stoppable
from lastwrite.cleaner.tables import Tables
from lastwrite.commands.systems import system_of
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import InvalidConfig
from lastwrite.model.log import TopicPartition
from lastwrite.spark.inline import INLINE
from tests.support.kafka.growing import GrowingLog
from tests.support.tables.topics import TOPICS

COMPACT = {
    "cleanup.policy": "compact",
    "log.cleaner.backoff.ms": 20,
    "min.cleanable.dirty.ratio": 0.01,
    "delete.retention.ms": 0,
}
T = 1_700_000_000_000


def clean(root: Path, tables: Tables, config: Mapping[str, Any] = COMPACT) -> tuple[int, list[Any]]:
    """Run ``clean`` once. Returns its exit status and its events, except notes and
    untouched files.
    """
    events: list[Event] = []
    status = lastwrite.clean(
        [str(root)], config, once=True, spark=INLINE, tell=events.append, tables=tables
    )
    return status, [each for each in events if not isinstance(each, (DaemonNote, FilesUntouched))]


def written(root: Path, topic: str, turn: int = 0) -> None:
    """A partition of closed segments with tombstones."""
    with TopicWriter(
        str(root), TopicPartition(topic, 0), segment_bytes=2000, batch_bytes=200
    ) as log:
        for n in range(200):
            value = None if n % 9 == turn else b"%040d" % n
            log.append(b"key-%d" % (n % 30), value, T + n)
        log.roll()


def told(events: list[Any]) -> list[str]:
    return [
        f"table {each.report.topic} {each.report.how}"
        if isinstance(each, TableUpdated)
        else f"round {each.report.topic}"
        if isinstance(each, RoundEnded)
        else f"failed {each.topic}"
        for each in events
    ]


def test_table_of_each_topic_is_updated_before_its_rounds(tmp_path: Path) -> None:
    root = tmp_path / "log"
    for topic in ("a", "b.c"):
        written(root, topic)
    written(root, "__own")
    tables = Tables(
        to=f"{tmp_path}/{{topic}}", config={"*": {"as": "delta"}, "a": {"as": "parquet"}}
    )
    status, events = clean(root, tables)
    said = told(events)
    made = {"table a made", "table b.c made"}
    assert status == 0 and set(said) == made | {"round a", "round b.c", "round __own"}
    for topic in ("a", "b.c"):
        assert said.index(f"table {topic} made") < said.index(f"round {topic}")
        proof = lastwrite.verify_table(str(root), f"{tmp_path}/{topic}", topic=topic)
        assert proof.is_proven and proof.proven + proof.unproven == proof.rows == 30 - 4, proof
    assert not (tmp_path / "__own").exists()
    assert clean(root, tables) == (0, [])


@pytest.mark.parametrize("system", list(TOPICS))
def test_incremental_updates_suffice_while_rounds_run(system: str, tmp_path: Path) -> None:
    """A round removes tombstones that the table has not read, so the table is updated before it."""
    topic = TOPICS[system](tmp_path / "log", random.Random(4))
    tables = Tables(to=f"{tmp_path}/table-{{topic}}", config={"*": {"as": "parquet"}})
    config = COMPACT if system == "kafka" else {"log.cleaner.backoff.ms": 20}
    if system == "pulsar":
        config["compactionThreshold"] = 1
    hows = []
    for _ in range(5):
        topic.append([(f"key-{n % 3}", f"{n}" if n % 3 else None) for n in range(20)])
        if isinstance(getattr(topic, "logs", None), list):
            for log in topic.logs:
                log.roll()
        status, events = clean(topic.root, tables, config)
        assert status == 0
        hows += [each.report.how for each in events if isinstance(each, TableUpdated)]
        assert not [each for each in events if isinstance(each, TableFailed)]
        (place,) = tmp_path.rglob("_lastwrite")
        name = hows and lastwrite.verify_table(str(topic.root), str(place.parent), topic=None)
        assert name and name.is_proven
    assert system_of(str(topic.root), None) == system
    if system == "kafka":  # the models of the other systems undo their rounds
        assert hows == ["made", *["updated"] * 4]


def test_failing_table_stops_no_round(tmp_path: Path) -> None:
    root = tmp_path / "log"
    for topic in ("a", "b"):
        written(root, topic)
    place = tmp_path / "one"
    status, events = clean(root, Tables(to=str(place), config={"*": {"as": "parquet"}}))
    said = told(events)
    assert status == 1 and sorted(said) == ["failed a", "failed b", "round a", "round b"]
    (failed, *_) = [each for each in events if isinstance(each, TableFailed)]
    assert (
        "have the same destination" in failed.reason
        and "{topic}" in failed.reason
        and failed.tries == 1
    )
    assert not place.exists()
    # A table of another topic is left unchanged.
    lastwrite.table_to(str(root), "a", to=str(place), format="parquet")
    before = lastwrite.verify_table(str(root), str(place))
    status, events = clean(root, Tables(config={"b": {"to": str(place), "as": "parquet"}}))
    assert status == 1 and told(events) == ["failed b"] and "topic a" in events[0].reason
    assert lastwrite.verify_table(str(root), str(place)) == before


def test_daemon_retries_a_failed_table(tmp_path: Path) -> None:
    log = GrowingLog(tmp_path / "log")
    place = tmp_path / "t"
    log.append([(b"a", b"1", T), (b"b", b"2", T)])
    place.mkdir()
    (place / "_lastwrite").write_text("in the way")
    events: list[Event] = []
    came = threading.Event()
    cleaners: list[Stoppable] = []

    def tell(event: Event) -> None:
        events.append(event)
        if isinstance(event, TableFailed):
            (place / "_lastwrite").unlink()
        if isinstance(event, TableUpdated):
            if event.report.how == "made":
                log.append([(b"a", None, T + 1), (b"c", b"3", T + 1)])
            else:
                cleaners[0].request_stop()
                came.set()

    tables = Tables(to=f"{tmp_path}/{{topic}}", config={"*": {"as": "parquet"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lastwrite.cleaner.tables.EVERY_S", 0.01)
        status = lastwrite.clean(
            [str(log.root)],
            COMPACT,
            spark=INLINE,
            tell=tell,
            started=cleaners.append,
            tables=tables,
            metrics_port=0,
        )
    assert status == 0 and came.is_set()
    kinds = [type(each) for each in events if not isinstance(each, (DaemonNote, FilesUntouched))]
    assert kinds == [TableFailed, TableUpdated, TableUpdated]
    proof = lastwrite.verify_table(str(log.root), str(place), topic="t")
    assert proof.is_proven and proof.rows == 2


def test_stopped_update_leaves_the_table_unchanged(tmp_path: Path) -> None:
    from lastwrite.cleaner.tables import _Stops
    from lastwrite.errors import LogError

    class After(_Stops):
        def stage(self, name: str, total_bytes: int) -> None:
            stages.append(name)
            self.is_over = name == end[0]

    log = GrowingLog(tmp_path / "log")
    stages: list[str] = []
    end = [""]
    to = str(tmp_path / "t")

    def turn() -> Any:
        return lastwrite.table_to(str(log.root), "t", to=to, format="delta", progress=After())

    log.append([(b"a", b"1", T)])
    turn()
    for end[0] in ("scan", "read", "write"):
        log.append([(b"a", b"2", T), (b"b", b"2", T)])
        with pytest.raises(LogError, match="stopped"):
            turn()
        head = lastwrite.verify_table(str(log.root), to, topic="t")
        assert (head.rows, head.head, head.is_proven) == (1, "0", True)
    assert len(list((tmp_path / "t").rglob("*.parquet"))) == 1
    end[0] = ""
    stages.clear()
    assert turn().rows == 2 and stages == ["scan", "read", "write"]


def test_impossible_table_is_refused_at_the_start(tmp_path: Path) -> None:
    written(tmp_path, "a")

    def said(**given: Any) -> str:
        with pytest.raises(InvalidConfig) as caught:
            clean(tmp_path, Tables(**given))
        return str(caught.value)

    assert "is not an option of a table" in said(to="/t", config={"a": {"nothing": "1"}})
    assert "buckets is" in said(to="/t", config={"a": {"buckets": "many"}})
    assert "one of: iceberg" in said(to="/t", config={"*": {"as": "hudi"}})
    assert "needs a catalog" in said(to="s3://lake/{topic}")
    assert "needs a schema" in said(to="/t", config={"a": {"value-format": "avro"}})
    assert "no destination" in said()
    assert "cannot be kept of topics of a live cluster" in said_live()


def said_live() -> str:
    with pytest.raises(InvalidConfig) as caught:
        lastwrite.clean(["persistent://public/default/t"], tables=Tables(to="/t"))
    return str(caught.value)
