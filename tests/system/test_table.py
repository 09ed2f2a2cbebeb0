"""Tests of ``table`` on logs of a real broker, after rounds, and on damage."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import lastwrite
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import CommitConflict, CorruptLog, InvalidConfig
from lastwrite.kafka.store.partitions import find_partitions, partition_name
from lastwrite.model.log import TopicPartition
from lastwrite.spark.inline import Inline

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"
TOPICS = sorted({partition_name(folder).topic for folder in find_partitions(str(CORPUS))})


def by_consumer(path: Path | str, topic: str) -> dict[bytes, bytes]:
    """The table of a consumer of committed records."""
    found: dict[bytes, bytes] = {}
    for row in lastwrite.read(str(path), topic, queue=0, isolation_level="read_committed"):
        if row["key"] is not None:
            found.pop(row["key"], None)
            if row["value"] is not None:
                found[row["key"]] = row["value"]
    return found


@pytest.mark.parametrize("topic", TOPICS)
def test_table_equals_a_consumers_last_state(topic: str) -> None:
    expected = {
        base64.b64decode(key): base64.b64decode(value)
        for key, value in by_consumer(CORPUS, topic).items()
    }
    with lastwrite.table(CORPUS, topic) as table:
        assert dict(table.items()) == expected
        assert {key: table[key] for key in expected} == expected
        assert list(table) == [key for key, _ in table.items()]
        assert len(table) == len(expected)
        assert b"not there" not in table
        assert table.get(b"not there") is None
        with pytest.raises(KeyError):
            table[b"not there"]
        assert table.end_offsets == lastwrite.latest(str(CORPUS), topic).end_offsets
    assert lastwrite.latest(str(CORPUS), topic) == expected


def written(root: Path, partition: int, writes: int, keys: int, begin_ms: int) -> None:
    name = TopicPartition("t", partition)
    with TopicWriter(str(root), name, segment_bytes=40_000, batch_bytes=900) as log:
        for n in range(writes):
            value = None if n % 13 == 5 else b"%d.%d" % (partition, n)
            log.append(b"k%d" % ((n * 7 + partition) % keys), value, begin_ms + n)


def test_later_record_wins_between_partitions_in_any_memory(
    tmp_path: Path,
) -> None:
    written(tmp_path, 0, 20_000, 9000, 1_000_000)
    written(tmp_path, 1, 9_000, 9000, 1_003_000)
    expected: dict[bytes, tuple[int, bytes | None]] = {}
    for partition, writes, begin in ((0, 20_000, 0), (1, 9_000, 3_000)):
        own = {}
        for n in range(writes):
            value = None if n % 13 == 5 else b"%d.%d" % (partition, n)
            own[b"k%d" % ((n * 7 + partition) % 9000)] = (begin + n, value)
        for key, write in own.items():
            if key not in expected or write[0] >= expected[key][0]:
                expected[key] = write
    live = {key: value for key, (_, value) in expected.items() if value is not None}
    for memory in ("200k", "64m"):
        with lastwrite.table(tmp_path, memory=memory) as table:
            assert dict(table.items()) == live
            assert all(table[key] == live[key] for key in list(live)[::50])


def test_other_libraries_read_the_columns(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")
    written(tmp_path, 0, 5_000, 300, 1_000_000)
    table = lastwrite.table(tmp_path, "t")
    found = table.to_arrow()
    keys, values = (found.column(name).to_pylist() for name in ("key", "value"))
    assert dict(zip(keys, values, strict=True)) == dict(table.items())
    assert pa.table(table).num_rows == len(table)  # reads it by __arrow_c_stream__
    assert table.to_arrow(["offset"]).column_names == ["offset"]
    with pytest.raises(InvalidConfig):
        table.to_arrow(["nothing"])


def test_table_survives_a_round_or_reports_it(tmp_path: Path) -> None:
    written(tmp_path, 0, 5_000, 3_000, 1_000_000)
    table = lastwrite.table(tmp_path, "t")
    key = next(iter(table))
    value = table[key]
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
    lastwrite.compact(str(tmp_path), topic="t", config=config, spark=Inline())
    assert table[key] == value  # the old file is still open
    fresh = lastwrite.table(tmp_path, "t")
    assert dict(fresh.items())[key] == value
    with pytest.raises(CommitConflict):
        dict(table.items())


def test_damage_is_an_error(tmp_path: Path) -> None:
    shutil.copytree(CORPUS, tmp_path / "logs")
    path = tmp_path / "logs" / "client-lz4-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[90] ^= 4
    path.write_bytes(data)
    with pytest.raises(CorruptLog) as caught:
        lastwrite.table(tmp_path / "logs", "client-lz4")
    assert (caught.value.path, caught.value.at) == (str(path), 17)


def test_table_starts_neither_spark_nor_java() -> None:
    code = (
        "import sys, lastwrite\n"
        f"lastwrite.table({str(CORPUS)!r}, 'client-zstd')\n"
        "assert not {m for m in sys.modules if m.split('.')[0] in ('pyspark', 'py4j', 'pyarrow')}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ, timeout=300)
