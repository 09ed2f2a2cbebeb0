"""Tests of a segment missing from the middle of a Kafka partition.

Every command reports damage if the topic is not compacted, and a note if compaction may have
removed the segment.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import lastwrite
from lastwrite import cli
from lastwrite.archive.gaps import RecordsLost
from lastwrite.engine.system import system_named
from lastwrite.errors import CorruptLog, InvalidConfig
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.store import log_dir
from lastwrite.server.catalog import ServedPartition, ServedSource
from lastwrite.server.files import Files
from lastwrite.source.options import parse
from lastwrite.source.ranges import listed
from tests.support.kafka.logs import write_checkpoint, write_segment
from tests.support.kafka.metadata import write_metadata

T = 1_700_000_000_000
HOLE = "offsets 20 to 29 are in no segment"
FILE = "00000000000000000020.log"
COMMANDS = {
    "dump": ["dump", "{root}/t-0"],
    "dump batches": ["dump", "{root}/t-0", "--batches"],
    "dump from": ["dump", "{root}/t-0", "--offset", "45"],
    "inspect": ["inspect", "{root}", "--topic", "t"],
    "read": ["read", "{root}/t-0"],
    "explain": ["explain", "{root}", "--topic", "t"],
    "plan": ["plan", "{root}", "--topic", "t"],
    "compact": ["compact", "{root}", "--topic", "t"],
    "fetch": ["fetch", "{root}", "--topic", "t", "--to", "{root}/../archive"],
    "verify": ["verify", "{root}", "--topic", "t"],
    "table": ["table", "{root}", "--topic", "t", "--to", "{root}/../table", "--as", "parquet"],
}
READERS = {
    "latest": lambda root, config: lastwrite.latest(root, "t", config=config),
    "table": lambda root, config: lastwrite.table(root, "t", config=config).close(),
    "spark": lambda root, config: listed(parse({"path": root, "subscribe": "t", **config})),
}


def batch(base: int) -> bytes:
    records = [Record(n, T + n, b"k%d" % (n % 10), b"v%d" % n, ()) for n in range(base, base + 10)]
    return encode_batch(records, base_offset=base)


def write(root: Path, policy: str | None = None, cleaned: int | None = None) -> str:
    """Write a partition of five segments without the third.

    The cluster's metadata has the topic's ``policy``, if there is one.
    """
    for base in (0, 10, 30, 40):
        write_segment(root / "t-0", base, [batch(base)], mtime_ms=T)
    write_checkpoint(root, "replication-offset-checkpoint", {"t-0": 50})
    if cleaned is not None:
        write_checkpoint(root, "cleaner-offset-checkpoint", {"t-0": cleaned})
    if policy is not None:
        write_metadata(root, {"t": {"cleanup.policy": policy}})
    return str(root)


def run(capfd: pytest.CaptureFixture[str], command: list[str], root: str) -> tuple[int, str]:
    capfd.readouterr()
    status = cli.run([part.format(root=root) for part in command])
    out, err = capfd.readouterr()
    return status, out + err


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_commands_name_a_missing_segment(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    status, said = run(capfd, command, write(tmp_path / "root", "delete"))
    assert (status, HOLE in said, FILE in said) == (3, True, True)
    status, said = run(capfd, command, write(tmp_path / "may-be-right"))
    assert (status, said.count(HOLE)) == (0, 1)
    status, said = run(capfd, command, write(tmp_path / "cleaned", "compact", cleaned=30))
    assert (status, said.count(HOLE)) == (0, 0)
    status, said = run(capfd, command, write(tmp_path / "cleaned-before-it", "compact", cleaned=20))
    assert (status, said.count(HOLE)) == (0, 1)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_remedy_for_a_compacted_topic_works(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    root = write(tmp_path / "root", "delete")
    before = {path.name: path.read_bytes() for path in Path(root, "t-0").glob("*.log")}
    if command[0] != "dump":  # ``dump`` reports damage by its exit status and prints no remedy
        assert "cleanup.policy=compact (in Spark" in run(capfd, command, root)[1]
    wanted = command if "--topic" in command else [*command, "--topic", "t"]
    status, said = run(capfd, [*wanted, "--config", "cleanup.policy=compact"], root)
    assert (status, said.count(HOLE)) == (0, 1)
    assert {path.name: path.read_bytes() for path in Path(root, "t-0").glob("*.log")} == before


@pytest.mark.parametrize("name", ["plan", "compact"])
def test_remedy_keeps_a_policy_that_only_the_user_states(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    root = write(tmp_path / "root")
    own = "--topic-config t:cleanup.policy=delete"
    status, said = run(capfd, [name, root, "--config", "cleanup.policy=delete"], root)
    assert (status, own in said) == (3, True)
    given = ["--topic", "t", "--config", "cleanup.policy=compact", *own.split()]
    status, said = run(capfd, [name, root, *given], root)
    assert (status, said.count(HOLE), "cleanup.policy is delete" in said) == (0, 1, True)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
def test_readers_of_latest_values_name_a_missing_segment(tmp_path: Path, reader: object) -> None:
    assert callable(reader)
    with pytest.raises(CorruptLog, match=HOLE):
        reader(write(tmp_path / "root", "delete"), {})
    with warnings.catch_warnings(record=True):
        reader(write(tmp_path / "may-be-right"), {})
        reader(str(tmp_path / "root"), {"cleanup.policy": "compact"})
    with pytest.raises(InvalidConfig, match="cleanup.policy"):
        reader(str(tmp_path / "root"), {"cleanup.policy": "compacted"})


def spark_batch(root: str, config: dict[str, object]) -> None:
    pytest.importorskip("pyspark.sql.datasource")
    from lastwrite.source.reader import DefaultSource
    from tests.unit.test_source_filters import SCHEMA

    options = {"path": root, "subscribe": "t", "failOnDataLoss": "true"}
    reader = DefaultSource(options).reader(SCHEMA)
    assert sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part)) == 40


@pytest.mark.parametrize(
    "reader", [READERS["latest"], READERS["table"], spark_batch], ids=["latest", "table", "spark"]
)
def test_a_hole_that_compaction_may_explain_is_no_data_loss(tmp_path: Path, reader: object) -> None:
    assert callable(reader)
    with pytest.warns(UserWarning, match=HOLE) as warned:
        reader(write(tmp_path), {})
    assert not [each for each in warned if issubclass(each.category, RecordsLost)]


@pytest.mark.parametrize("name", ["dump", "read", "inspect", "table"])
def test_commands_note_a_hole_that_compaction_may_explain(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    status, said = run(capfd, COMMANDS[name], write(tmp_path / "root"))
    assert status == 0 and HOLE in said


def test_records_beside_a_hole_are_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = write(tmp_path, "delete")
    for command in (["dump", "{root}/t-0", "--json"], ["read", "{root}/t-0", "--json"]):
        _, said = run(capfd, command, root)
        rows = [json.loads(line) for line in said.splitlines() if '"offset": ' in line]
        offsets = [row["offset"] for row in rows if "value" in row]
        assert offsets == [*range(20), *range(30, 50)]


@pytest.mark.parametrize(
    ("policy", "config"), [("delete", {}), ("delete", {"cleanup.policy": "compact"}), (None, {})]
)
def test_server_refuses_only_the_missing_offsets(
    tmp_path: Path, policy: str | None, config: dict[str, object]
) -> None:
    told: list[str] = []
    source = ServedSource(write(tmp_path, policy), system_named("kafka"))
    (found,) = source.found(["t"])
    partition = ServedPartition(found[0], found[2], Files(1 << 20), told.append, config)
    for offset in (0, 15, 30, 49):
        stretch = partition.reread().stretch(offset, 1 << 20, False, True)
        assert stretch is not None and stretch.segment.base_offset == offset // 10 * 10
    if policy is None or config:
        after = partition.log().stretch(25, 1 << 20, False, True)
        assert after is not None and after.segment.base_offset == 30
    else:
        with pytest.raises(CorruptLog, match="offset 25 is in no segment"):
            partition.log().stretch(25, 1 << 20, False, True)
    assert len(told) == 1 and HOLE in told[0]


def test_empty_segments_and_complete_logs_have_no_hole(tmp_path: Path) -> None:
    for base in (0, 10, 20):
        write_segment(tmp_path / "t-0", base, [batch(base)], mtime_ms=T)
    write_segment(tmp_path / "t-0", 30, [], mtime_ms=T)
    write_segment(tmp_path / "t-0", 40, [batch(40)], mtime_ms=T)
    assert log_dir.read_partition(str(tmp_path / "t-0")).holes == ()
