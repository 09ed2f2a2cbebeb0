"""Tests of ``inspect`` on a RocketMQ store, its folders and its files, intact and damaged."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.errors import InvalidConfig
from lastwrite.model.log import ProblemKind
from lastwrite.rocketmq.format import record
from lastwrite.rocketmq.format.index_file import IndexFile
from lastwrite.rocketmq.format.record import body_of, encode_message
from lastwrite.rocketmq.format.units import consume_queue_units
from lastwrite.rocketmq.look.inspection import QueueInspection, StoreReport
from lastwrite.spark.inline import INLINE
from tests.support.rocketmq.stores import BORN, StoreWriter, shop
from tests.support.sample import LONG

PLACES = 40 if LONG else 10  # number of positions in a file that are damaged in turn
CORPUS = Path(__file__).parents[1] / "corpus" / "rocketmq"


def inspected(path: Path, **options: Any) -> StoreReport:
    report = lastwrite.inspect(str(path), now_ms=BORN, **options)
    assert isinstance(report, StoreReport)
    json.dumps(report.to_dict())
    return report


def problems(report: StoreReport, kind: ProblemKind | None = ProblemKind.DAMAGED) -> list[str]:
    found = report.problems + [problem for queue in report.partitions for problem in queue.problems]
    return [problem.message for problem in found if kind in (None, problem.kind)]


def queue(report: StoreReport, topic: str, number: int) -> QueueInspection:
    return next(one for one in report.partitions if (one.topic, one.partition) == (topic, number))


@pytest.fixture
def writer(tmp_path: Path) -> StoreWriter:
    writer = shop(tmp_path / "store")
    writer.write_compaction("orders", 0, position=20)
    writer.write()
    return writer


def test_intact_store_is_described(writer: StoreWriter) -> None:
    report = inspected(writer.root)
    assert problems(report, None) == [] and report.exit_status == 0
    assert report.what == "store" and report.stopped_in_order is True
    log = report.commit_log
    assert (
        log is not None and log.file_size == 4000 and (log.start, log.end) == (0, len(writer.log))
    )
    assert [file.ending for file in log.files] == ["blank"] * 6 + ["open"]
    counts = log.contents
    assert (
        counts.records
        == counts.messages
        == len(writer.sent)
        == sum(file.entries or 0 for file in log.files)
    )
    assert counts.bytes == sum(message.size for message in writer.sent)
    assert counts.tombstones == sum(not body_of(message) for message in writer.sent)
    assert counts.codecs == Counter(
        "none" if not message.sys_flag & 1 else record.compression_of(message.sys_flag)
        for message in writer.sent
    )
    assert counts.formats == {"v1": 120} and counts.endings == {"closed": 120}
    assert counts.delayed == sum("DELAY" in message.properties for message in writer.sent)
    assert (counts.first_timestamp, counts.last_timestamp) == (BORN + 1, BORN + 1191)
    for one in report.partitions:
        mine = [m for m in writer.sent if (m.topic, m.queue_id) == (one.topic, one.partition)]
        real = [
            m for m in mine if m.sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK
        ]
        index = one.consume_queue
        assert index is not None and index.file_size == 200
        assert one.contents.records == len(mine) and one.contents.rolled_back == len(mine) - len(
            real
        )
        assert (index.units, index.lacking, index.wrong, index.fillers, index.expired) == (
            len(real),
            0,
            0,
            0,
            0,
        )
        assert (one.contents.first_offset, one.contents.last_offset) == (0, len(real) - 1)
        assert (index.first_offset, index.end_offset) == (0, len(real))
    compaction = queue(report, "orders", 0).compaction
    assert (
        compaction is not None and compaction.position == 20 and compaction.first_dirty_offset == 21
    )
    assert (compaction.file_size, compaction.index_file_size) == (5060, 1012)
    real = [
        m
        for m in writer.sent
        if (m.topic, m.queue_id) == ("orders", 0)
        and m.sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK
    ]
    assert compaction.contents.records == len(real) and compaction.unindexed == 0
    assert compaction.keys == len({m.properties["KEYS"] for m in real})
    assert queue(report, "orders", 0).cleanup_policy == "COMPACTION"
    assert sum(file.entries or 0 for file in report.index_files) == sum(
        1 + len(m.properties["KEYS"].split(" "))
        for m in writer.sent
        if m.sys_flag & record.TRANSACTION_MASK != record.TRANSACTION_ROLLBACK
    )
    assert {file.kind for file in report.files} == {
        "checkpoint",
        "lock",
        "topics",
        "consumer offsets",
        "position checkpoint",
    }
    totals = report.to_dict()["totals"]
    assert totals["records"] == 120 and totals["compacted_records"] == len(real)


def test_topic_and_queue_narrow_the_report(writer: StoreWriter) -> None:
    report = inspected(writer.root, topic="orders", partition=1)
    assert [(one.topic, one.partition) for one in report.partitions] == [("orders", 1)]
    assert report.commit_log is not None and report.commit_log.contents.records == 120
    report = inspected(writer.root / "consumequeue" / "orders" / "1")
    assert report.what == "consume queues of orders-1" and len(report.partitions) == 1
    assert len(inspected(writer.root / "consumequeue" / "orders").partitions) == 2
    report = inspected(writer.root / "compaction")
    assert report.commit_log is None and queue(report, "orders", 0).compaction is not None


KINDS = {
    f"commitlog/{4000:020}": ("commit log", 19),
    f"consumequeue/orders/1/{200:020}": ("consume queue of orders-1", 10),
    f"compaction/compactionLog/orders/0/{0:020}": ("compaction log of orders-0", 21),
    f"compaction/compactionCq/orders/0/{0:020}": ("compaction index of orders-0", 21),
    "index/20231114221320000": ("index file", 39),
    "checkpoint": ("checkpoint", None),
    "lock": ("lock", None),
    "config/topics.json": ("topics", 2),
    "config/consumerOffset.json": ("consumer offsets", 2),
    "compaction/position-checkpoint": ("position checkpoint", 1),
    "abort": ("abort", None),
}


@pytest.mark.parametrize("name", KINDS)
def test_single_file_of_every_kind_is_inspected(writer: StoreWriter, name: str) -> None:
    (writer.root / "abort").write_text("12")
    report = inspected(writer.root / name)
    assert (report.what, report.files[0].entries) == KINDS[name] and report.exit_status == 0
    if name[-1].isdigit():
        alone = writer.root.parent / "elsewhere" / Path(name).name
        alone.parent.mkdir()
        shutil.copy(writer.root / name, alone)
        again = inspected(alone)
        assert again.files[0].entries == KINDS[name][1]


def test_batch_queue_and_extension_are_inspected(tmp_path: Path) -> None:
    from lastwrite.rocketmq.format.units import encode_extension

    writer = StoreWriter(tmp_path)
    for n in range(6):
        writer.send("b", inner=[(0, b"%d" % n, b"KEYS\x01a\x02")] * (n + 1))
    writer.write()
    folder = tmp_path / "consumequeue_ext" / "b" / "0"
    folder.mkdir(parents=True)
    (folder / f"{0:020}").write_bytes(
        (encode_extension(5, 6, b"\1\2") + encode_extension(7, 8)).ljust(200, b"\0")
    )
    report = inspected(tmp_path)
    found = queue(report, "b", 0)
    assert found.batch_consume_queue is not None and found.extension is not None
    assert (found.batch_consume_queue.units, found.batch_consume_queue.end_offset) == (6, 21)
    assert (found.batch_consume_queue.lacking, found.batch_consume_queue.wrong) == (0, 0)
    assert (found.contents.records, found.contents.messages, found.contents.inner_batches) == (
        6,
        21,
        6,
    )
    assert found.extension.units == 2 and problems(report, None) == []
    rows = list(lastwrite.dump(str(folder)))
    assert [(row["address"], row["tags_code"], row["bitmap"]) for row in rows] == [
        (-(2**63), 5, "0102"),
        (-(2**63) + 22, 7, ""),
    ]
    assert inspected(folder / f"{0:020}").what == "consume queue extension of b-0"
    assert inspected(tmp_path / "batchconsumequeue" / "b" / "0" / f"{0:020}").files[0].entries == 4


# ---------------------------------------------------------------------- what a crash leaves


def test_store_of_a_killed_broker_is_described(writer: StoreWriter) -> None:
    (writer.root / "abort").write_text("4711")
    path = sorted((writer.root / "consumequeue" / "orders" / "1").iterdir())[-1]
    path.write_bytes(bytes(200))
    last = writer.root / "commitlog" / f"{24000:020}"
    data = bytearray(last.read_bytes())
    data[len(writer.log) - 24000 - 130 :] = bytes(4000 - (len(writer.log) - 24000) + 130)
    last.write_bytes(bytes(data))
    report = inspected(writer.root)
    assert report.exit_status == 0 and report.stopped_in_order is False
    said = " ".join(problems(report, ProblemKind.RECOVERED))
    assert (
        "was killed" in said and "the last record is incomplete" in said and "have no unit" in said
    )
    index = queue(report, "orders", 1).consume_queue
    assert index is not None and index.lacking == 7


def test_missing_consume_queues_are_reported(writer: StoreWriter) -> None:
    shutil.rmtree(writer.root / "consumequeue")
    report = inspected(writer.root)
    assert problems(report) == []
    assert (
        problems(report, ProblemKind.RECOVERED).count(
            "orders-1 has no consume queue, but the commit log has messages of the queue"
        )
        == 1
    )


# ---------------------------------------------------------------------- damage


def flip(path: Path, at: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


def test_damage_in_every_part_is_named_with_its_file(writer: StoreWriter) -> None:
    root = writer.root
    bad_body, bad_magic = writer.sent[30], writer.sent[60]
    flip(
        root / "commitlog" / f"{bad_body.physical_offset // 4000 * 4000:020}",
        bad_body.physical_offset % 4000 + 90,
    )
    flip(
        root / "commitlog" / f"{bad_magic.physical_offset // 4000 * 4000:020}",
        bad_magic.physical_offset % 4000 + 4,
    )
    flip(root / "consumequeue" / "orders" / "0" / f"{0:020}", 3 * 20 + 7)
    flip(root / "compaction" / "compactionCq" / "orders" / "0" / f"{0:020}", 46 * 2 + 7)
    flip(root / "index" / "20231114221320002", 40 + 28 + 20 * 5 + 17)
    (root / "checkpoint").write_bytes(b"short")
    report = inspected(root)
    assert report.exit_status == 3
    named = {str(Path(problem.path).relative_to(root)) for problem in report.problems} | {
        str(Path(problem.path).relative_to(root))
        for one in report.partitions
        for problem in one.problems
    }
    assert {
        f"commitlog/{bad_body.physical_offset // 4000 * 4000:020}",
        "checkpoint",
        f"commitlog/{bad_magic.physical_offset // 4000 * 4000:020}",
        f"consumequeue/orders/0/{0:020}",
        f"compaction/compactionCq/orders/0/{0:020}",
        "index/20231114221320002",
    } <= named
    log = report.commit_log
    # all records except the one with a wrong magic
    assert log is not None and log.contents.records == 119


def test_units_without_a_record_are_damage(writer: StoreWriter) -> None:
    path = sorted((writer.root / "consumequeue" / "orders" / "1").iterdir())[-1]
    data = bytearray(path.read_bytes())
    count = len(data.rstrip(b"\0")) // 20 + 1
    data[count * 20 : count * 20 + 20] = (
        (10**6).to_bytes(8, "big") + (99).to_bytes(4, "big") + bytes(8)
    )
    path.write_bytes(bytes(data))
    assert any("have no record" in message for message in problems(inspected(writer.root)))


def test_files_that_a_broker_does_not_load_are_named(writer: StoreWriter) -> None:
    folder = writer.root / "compaction" / "compactionLog" / "orders" / "0"
    (folder / f"{0:020}.delete").write_bytes(bytes(5060))
    (folder / "compacting").mkdir()
    (folder.parent.parent.parent / "compactionCq" / "orders" / "0" / f"{5060:020}").unlink()
    said = problems(inspected(writer.root), None)
    assert any("belongs to an interrupted compaction" in message for message in said) and any(
        "was left by an interrupted" in message for message in said
    )
    assert "the file has no index file of the same name" in said


def test_file_pair_without_a_unit_and_odd_file_name_are_damage(writer: StoreWriter) -> None:
    for part in ("compactionLog", "compactionCq"):
        folder = writer.root / "compaction" / part / "orders" / "0"
        size = (folder / f"{0:020}").stat().st_size
        (folder / f"{0:020}").write_bytes(bytes(size))
        (folder / f"{5060:020}").rename(folder / f"{6060:020}")
    said = problems(inspected(writer.root))
    assert "the index file has no unit, but is not the last index file" in said and any(
        "not a multiple" in message for message in said
    )


def test_unindexed_records_after_the_last_unit_are_counted(writer: StoreWriter) -> None:
    folder = writer.root / "compaction" / "compactionCq" / "orders" / "0"
    last = sorted(folder.iterdir())[-1]
    data = bytearray(last.read_bytes())
    count = len(data.rstrip(b"\0")) // 46 + 1
    data[(count - 2) * 46 :] = bytes(len(data) - (count - 2) * 46)
    last.write_bytes(bytes(data))
    report = inspected(writer.root)
    found = queue(report, "orders", 0).compaction
    assert found is not None and found.unindexed == 2 and problems(report) == []


def test_file_sizes_are_derived_from_the_files(tmp_path: Path) -> None:
    writer = shop(
        tmp_path,
        log_bytes=2048,
        queue_bytes=60,
        slots=3,
        entries=9,
        compaction_bytes=2024,
        compaction_index_bytes=460,
    )
    writer.write_compaction("orders", 1)
    writer.write()
    report = inspected(tmp_path)
    assert problems(report, None) == []
    assert report.commit_log is not None and report.commit_log.file_size == 2048
    one = queue(report, "orders", 1)
    assert one.consume_queue is not None and one.consume_queue.file_size == 60
    assert one.compaction is not None and one.compaction.file_size == 2024
    cut = tmp_path / "commitlog" / f"{2048:020}"
    cut.write_bytes(cut.read_bytes()[:1500])
    assert any(
        "the other files of the log have 2048" in message
        for message in problems(inspected(tmp_path))
    )


def test_old_brokers_are_recognised_by_their_properties(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path)
    for n in range(3):
        writer.send("t", b"x", {"KEYS": f"{n}"}, closed=n == 1)
    writer.write()
    log = inspected(tmp_path).commit_log
    assert log is not None and log.contents.endings == {"open": 2, "closed": 1}


@pytest.mark.parametrize(
    "name",
    [
        f"commitlog/{0:020}",
        f"consumequeue/orders/1/{0:020}",
        "index/20231114221320000",
        f"compaction/compactionLog/orders/0/{0:020}",
        f"compaction/compactionCq/orders/0/{0:020}",
        "checkpoint",
        "config/topics.json",
        "config/consumerOffset.json",
        "compaction/position-checkpoint",
    ],
)
def test_any_wrong_byte_is_survived(writer: StoreWriter, name: str) -> None:
    path = writer.root / name
    whole = path.read_bytes()
    for at in range(0, len(whole), max(len(whole) // PLACES, 1)):
        data = bytearray(whole)
        data[at] ^= 0xFF
        path.write_bytes(bytes(data))
        inspected(writer.root)
        inspected(path)
        path.write_bytes(whole[:at])
        inspected(writer.root)


def test_inspect_command_prints_text_and_json(
    writer: StoreWriter, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["inspect", str(writer.root)]) == 0
    out = capfd.readouterr().out
    for said in (
        "RocketMQ store, shut down cleanly",
        "7 files of 4.0 kB",
        "120, 2",
        "lz4 4, none 108, zlib 4, zstd 4",
        "written by 5.2.0 or newer",
        "orders-0",
        "20231114221320006",
    ):
        assert said in out
    assert run(["inspect", str(writer.root), "--json", "--topic", "orders", "--queue", "0"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert (
        document["system"] == "rocketmq"
        and document["partitions"][0]["compaction"]["position"] == 20
    )
    flip(writer.root / "commitlog" / f"{0:020}", 95)
    assert run(["inspect", str(writer.root)]) == 3
    assert "damaged: " in capfd.readouterr().out


def test_record_with_the_address_of_another_is_advice(writer: StoreWriter) -> None:
    folder = writer.root / "compaction" / "compactionLog" / "orders" / "0"
    first = next(m for m in writer.sent if (m.topic, m.queue_id) == ("orders", 0))
    path = folder / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[: first.size] = encode_message(first)  # it contains its address in the commit log
    path.write_bytes(bytes(data))
    report = inspected(writer.root)
    assert problems(report) == [] and "records contain another address than their own" in problems(
        report, None
    )


def test_inspect_states_whether_a_round_is_due(writer: StoreWriter) -> None:
    (writer.root / "compaction" / "position-checkpoint").unlink()
    found = queue(inspected(writer.root), "orders", 0).compaction
    assert (
        found is not None
        and found.is_due is True
        and found.dirty_ratio == 1.0
        and found.first_dirty_offset == 0
    )
    later = {"min.compaction.lag.ms": 10**15}
    found = queue(inspected(writer.root, config=later), "orders", 0).compaction
    assert found is not None and found.is_due is False and found.reason
    with pytest.raises(InvalidConfig):
        inspected(writer.root, config={"min.compaction.lack.ms": 1})


def test_index_files_are_compared_with_the_keys(writer: StoreWriter) -> None:
    path = writer.root / "index" / "20231114221320003"
    whole = path.read_bytes()
    flip(path, 40 + 28 + 20 * 9 + 3)  # the key hash of an entry
    said = problems(inspected(writer.root))
    assert "the index files lack 1 keys of messages" in said
    assert any(
        message.startswith("1 entries point to messages without their key") for message in said
    )
    path.write_bytes(whole)
    (writer.root / "index" / "20231114221320002").unlink()
    assert any("the index files lack" in message for message in problems(inspected(writer.root)))
    (writer.root / "index" / "20231114221320006").unlink()
    assert any(
        "keys of later messages are missing" in message
        for message in problems(inspected(writer.root), ProblemKind.RECOVERED)
    )


def test_tags_in_the_index_are_not_damage(tmp_path: Path) -> None:
    """RocketMQ 5.5.0 indexes the tag as ``T#TAG``."""
    from dataclasses import replace

    writer = StoreWriter(tmp_path)
    for n in range(9):
        writer.send("t", b"x", {"KEYS": f"k{n}", "TAGS": "red" if n % 2 else "blue"})
    writer.write()
    shutil.rmtree(tmp_path / "index")
    writer.sent = [
        replace(message, properties={"KEYS": f"{message.keys} T#{message.tags}"})
        for message in writer.sent
    ]
    writer.write_index()
    assert problems(inspected(tmp_path), None) == []
    heard: list[str] = []
    rows = list(lastwrite.dump(str(tmp_path), topic="t", key=b"T#red", say=heard.append))
    assert rows == [] and heard == ["no message matches"]


@pytest.fixture(params=["4.9.3", "5.5.0", "5.5.0-ipv6"])
def real(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store that a broker wrote."""
    root = tmp_path / "real"
    shutil.copytree(CORPUS / request.param, root)
    (root / "abort.running").unlink()
    assert problems(inspected(root)) == []
    return root


def test_wrong_tags_code_of_a_real_queue_is_damage(real: Path) -> None:
    path = next(iter(sorted((real / "consumequeue" / "ptopic" / "0").iterdir())))
    unit = consume_queue_units(path.read_bytes())[0]
    assert 0 < unit["size"] < 1 << 31
    flip(path, 19)
    code = int(unit["tags_code"])
    if code < -(1 << 31):  # the position in the queue's extension file
        assert problems(inspected(real)) == []
        return
    (said,) = problems(inspected(real))
    assert said.startswith("1 units have a wrong tags code, the first at queue offset")
    assert f" {code ^ 1} instead of {code}; " in said
    assert lastwrite.verify(str(real), spark=INLINE).exit_status == 3


def test_delivery_time_in_place_of_a_tags_code_is_accepted(tmp_path: Path) -> None:
    """RocketMQ 5.5.0 wrote a delayed message, whose unit has its delivery time."""
    root = tmp_path / "real"
    shutil.copytree(CORPUS / "5.5.0", root)
    path = next(iter((root / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "8").iterdir()))
    assert consume_queue_units(path.read_bytes())[0]["tags_code"] > 1 << 40
    flip(path, 19)
    assert problems(inspected(root)) == []


def test_wrong_tags_code_in_a_compaction_index_is_damage(tmp_path: Path) -> None:
    root = tmp_path / "real"
    shutil.copytree(CORPUS / "5.5.0", root)
    path = min((root / "compaction" / "compactionCq" / "ctopic" / "0").iterdir())
    flip(path, 19)
    assert [" has a wrong tags code: " in said for said in problems(inspected(root))] == [True]


def test_wrong_times_and_slots_of_a_real_index_file_are_damage(real: Path) -> None:
    path = min((real / "index").iterdir())
    whole = path.read_bytes()
    index = IndexFile.of(whole)
    entries = range(1, index.header.count)
    ends = {index.entry(number).hash % index.slots for number in (1, entries[-1])}
    newest = {index.entry(number).hash % index.slots: number for number in entries}
    slot, number = next((slot, number) for slot, number in newest.items() if slot not in ends)
    # used slots in the header are counted from 0, and its times come after them; then a slot, and
    # an entry's time
    for at, bit, wanted in (
        (7, 0, "the header's first time is "),
        (15, 0, "the header's last time is "),
        (
            32,
            6,
            f"the header counts {index.header.used_slots + (1 << 30)} used slots, but ",
        ),
        (
            40 + 4 * slot + 3,
            0,
            f"slot {slot} points to entry {number ^ 1}, but the newest entry of the slot is {number}",
        ),
        (
            index.entry_at(2) + 14,
            0,
            "1 entries have another time than their messages; entry 2 has ",
        ),
    ):
        flip(path, at, bit)
        said = problems(inspected(real))
        assert len(said) == 1 and said[0].startswith(wanted), said
        path.write_bytes(whole)
