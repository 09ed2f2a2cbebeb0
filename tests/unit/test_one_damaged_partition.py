"""Tests of topics with one damaged partition among three.

They check what is refused, and its remedy.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.errors import CorruptLog
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from tests.support.kafka.logs import write_checkpoint, write_segment
from tests.support.pulsar.folders import single, write_ledger
from tests.support.pulsar.topics import topic_folder

T = 1_700_000_000_000


def spoil(file: Path) -> str:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    return str(file)


def kafka(root: Path) -> str:
    for number in range(3):
        records = [Record(n, T + n, b"k%d" % n, b"p%d" % number, ()) for n in range(4)]
        write_segment(root / f"t-{number}", 0, [encode_batch(records, base_offset=0)], mtime_ms=T)
    write_checkpoint(root, "replication-offset-checkpoint", {f"t-{n}": 4 for n in range(3)})
    return spoil(root / "t-1" / "00000000000000000000.log")


def pulsar(root: Path) -> str:
    for number in range(3):
        folder = topic_folder(root, f"persistent://public/default/t-partition-{number}")
        write_ledger(folder, 5 + number, [single(f"k{n}", f"p{number}", n) for n in range(4)])
        if number == 1:
            (data,) = (each for each in folder.iterdir() if each.name.endswith("ledger-6"))
            place = spoil(data)
    return place


SYSTEMS = pytest.mark.parametrize("write", [kafka, pulsar])


@SYSTEMS
@pytest.mark.parametrize("command", [lastwrite.latest, lastwrite.table, None])
def test_last_writes_are_refused_and_the_remedy_prints_the_rest(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    write: Callable[[Path], str],
    command: Callable[..., object] | None,
) -> None:
    root = tmp_path / "root"
    damaged = write(root)
    if command is None:
        to = str(tmp_path / "table")
        assert cli.run(["table", str(root), "--topic", "t", "--to", to, "--as", "parquet"]) == 3
        said = capfd.readouterr().err
        assert not Path(to).exists()
    else:
        with pytest.raises(CorruptLog) as error:
            command(str(root), "t")
        said = str(error.value)
    assert damaged in said
    (remedy,) = re.findall(r"`lastwrite (dump [^`]*)`", said)
    assert cli.run(shlex.split(remedy)) == 3
    printed = capfd.readouterr()
    assert printed.out.count("p0") == printed.out.count("p2") == 4
    assert damaged in printed.err


@SYSTEMS
def test_spark_source_is_refused_and_reads_the_partitions_that_its_remedy_names(
    tmp_path: Path, write: Callable[[Path], str]
) -> None:
    pytest.importorskip("pyspark.sql.datasource")
    from lastwrite.source.reader import DefaultSource
    from tests.unit.test_source_filters import SCHEMA

    damaged = write(tmp_path)
    name = "t" if write is kafka else "public/default/t"

    def count(options: dict[str, str]) -> int:
        reader = DefaultSource({"path": str(tmp_path), **options}).reader(SCHEMA)
        return sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))

    with pytest.raises(CorruptLog, match="assign") as error:
        count({"subscribe": name})
    assert damaged in str(error.value)
    assert count({"assign": json.dumps({name: [0, 2]})}) == 8
