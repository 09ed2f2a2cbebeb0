"""Tests of ``dump`` and ``inspect`` on real brokers' stores: the same records as RocketMQ decodes.

Each record is found by each index.
"""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.model.log import ProblemKind
from lastwrite.rocketmq.look.inspection import StoreReport

CORPUS = Path(__file__).parent.parent / "corpus" / "rocketmq"
STORES = sorted(path.parent.name for path in CORPUS.glob("*/records.jsonl.gz"))

Row = dict[str, Any]


def records_of(name: str) -> list[Row]:
    with gzip.open(CORPUS / name / "records.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def dumped(store: Path, **options: Any) -> list[Row]:
    """The rows of ``dump``. Fails if it had to scan the commit log."""
    heard: list[str] = []
    rows = list(lastwrite.dump(str(store), say=heard.append, batches=True, **options))
    assert not heard, heard
    return rows


def coded(digits: str) -> str:
    return base64.b64encode(bytes.fromhex(digits)).decode()


def host(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def is_dispatched(row: Row) -> bool:
    return row["transaction"] not in ("prepared", "rollback")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    copy = tmp_path / str(request.param)
    shutil.copytree(CORPUS / request.param, copy)
    return copy


def test_every_record_equals_the_brokers_decoder(store: Path) -> None:
    rows, records = dumped(store), records_of(store.name)
    assert len(rows) == len(records) > 0
    for row, record in zip(rows, records, strict=True):
        shared = {
            "topic": "topic",
            "queue_id": "queueId",
            "queue_offset": "queueOffset",
            "physical_offset": "physicalOffset",
            "size": "size",
            "body_crc": "bodyCrc",
            "flag": "flag",
            "sys_flag": "sysFlag",
            "born_timestamp": "bornTimestamp",
            "store_timestamp": "storeTimestamp",
            "reconsume_times": "reconsumeTimes",
            "prepared_transaction_offset": "preparedTransactionOffset",
            "properties": "properties",
            "message_id": "offsetMsgId",
        }
        assert {ours: row[ours] for ours in shared} == {
            ours: record[theirs] for ours, theirs in shared.items()
        }
        assert row["magic"] & 0xFFFFFFFF == int(record["magic"], 16)
        assert row["stored_body"] == coded(record["storedBodyHex"]) and row["body"] == coded(
            record["bodyHex"] or ""
        )
        assert row["problem"] is None


def test_each_message_is_found_by_every_attribute(store: Path) -> None:
    rows = dumped(store)
    places = {row["physical_offset"] for row in rows}
    for row in rows:
        here = [row["physical_offset"]]

        def found(**options: Any) -> list[int]:
            return [one["physical_offset"] for one in dumped(store, **options)]

        assert found(commit_log_offset=here[0]) == here
        assert found(message_id=row["message_id"]) == here
        if not is_dispatched(row):
            continue
        at = {"topic": row["topic"], "partition": row["queue_id"]}
        assert found(**at, offset=row["queue_offset"], limit=1) == here
        by_time = dumped(store, **at, time_ms=row["store_timestamp"], limit=1)[0]
        assert by_time["store_timestamp"] == row["store_timestamp"]
        for key in row["properties"].get("KEYS", "").split(" "):
            if key:
                some = dumped(store, topic=row["topic"], key=key.encode())
                assert here[0] in [one["physical_offset"] for one in some]
                # A broker does not index the messages of inner batches, so that a scan finds them.
                how = {one["found_by"] for one in some}
                assert "index file" in how and how <= {"index file", "commit log (no index)"}
        unique = row["properties"].get("UNIQ_KEY")
        if unique:
            assert here[0] in found(unique_key=unique)
    assert places == {row["physical_offset"] for row in rows}


def test_messages_are_found_without_any_index(store: Path) -> None:
    rows = [row for row in dumped(store) if is_dispatched(row)]
    for name in ("consumequeue", "batchconsumequeue", "index"):
        shutil.rmtree(store / name, ignore_errors=True)
    for row in rows[::7]:
        heard: list[str] = []
        some = list(
            lastwrite.dump(
                str(store),
                topic=row["topic"],
                partition=row["queue_id"],
                offset=row["queue_offset"],
                limit=1,
                say=heard.append,
                batches=True,
            )
        )
        assert [one["physical_offset"] for one in some] == [row["physical_offset"]] and heard
        unique = row["properties"].get("UNIQ_KEY")
        if unique:
            some = list(
                lastwrite.dump(str(store), unique_key=unique, say=heard.append, batches=True)
            )
            assert row["physical_offset"] in [one["physical_offset"] for one in some]


def test_real_store_is_reported_as_intact(store: Path) -> None:
    report = lastwrite.inspect(str(store))
    assert isinstance(report, StoreReport)
    problems = report.problems + [
        problem for queue in report.partitions for problem in queue.problems
    ]
    assert [str(problem) for problem in problems if problem.kind is ProblemKind.DAMAGED] == []
    log = report.commit_log
    assert log is not None and log.contents.records == len(records_of(store.name))
    for queue in report.partitions:
        index = queue.consume_queue or queue.batch_consume_queue
        if index is not None:
            assert (index.lacking, index.wrong) == (0, 0), queue.topic
    old = store.name.startswith("4.")
    assert set(log.contents.endings) == {"open" if old else "closed"}


def test_store_compacted_by_a_broker_is_read() -> None:
    store = CORPUS / "5.5.0-compacted"
    if not store.is_dir():
        pytest.skip("the corpus has no compacted store")
    report = lastwrite.inspect(str(store))
    assert isinstance(report, StoreReport) and report.exit_status == 0
    for queue in report.partitions:
        assert queue.compaction is not None and queue.compaction.unindexed == 0
    rows = dumped(store, compacted=True)
    assert rows and {row["found_by"] for row in rows} == {"compaction index"}
