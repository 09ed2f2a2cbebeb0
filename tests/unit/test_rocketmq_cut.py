"""Tests of a cut of the commit log: its position, the files that it changes, and its undo."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import struct
from pathlib import Path

import pytest

import lastwrite
from lastwrite.errors import InvalidConfig, LogError, LogHeld, NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.format.names import CUT_GUARD
from lastwrite.rocketmq.format.sides import (
    Checkpoint,
    decode_checkpoint,
    decode_consumer_offsets,
    decode_positions,
    encode_checkpoint,
    encode_positions,
    lower_consumer_offsets,
)
from lastwrite.rocketmq.store import cutting, lock
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.support.files import contents
from tests.support.rocketmq.dispatch import (
    BATCHED,
    COMPACTED,
    Broker,
    Files,
    read_dispatched,
    send,
    write_files,
    write_store,
)

NOW = 1_700_000_500_000
KINDS = (COMPACTED, BATCHED, "plain")


def some(count: int, seed: int = 1) -> Broker:
    """A broker after ``count`` messages. With equal seeds, the shorter log is a prefix of the
    longer one.
    """
    rng, broker = random.Random(seed), Broker()
    numbers: dict[tuple[str, int], int] = {}
    for n in range(count):
        name = rng.choice(KINDS), rng.randrange(2)
        offset = numbers.setdefault(name, 0)
        body = b"v" * rng.randrange(1, 200)
        send(
            broker,
            *name,
            offset,
            keys=f"k{rng.randrange(9)}",
            body=body,
            stored=1_700_000_000_000 + 700 * n,
        )
        numbers[name] += 1
    return broker


def stored(folder: Path, broker: Broker) -> Path:
    root = write_store(folder, broker)
    report = lastwrite.dispatch(str(root), config=broker.sizes.config(), now_ms=NOW, spark=INLINE)
    assert report.exit_status == 0
    return root


def everything(root: Path) -> Files:
    return contents(root, but=("lock",))


def served(root: Path) -> Files:
    """The files that a broker reads."""
    return {
        name: data
        for name, data in everything(root).items()
        if ".before-cut" not in name and name != cutting.NOTE
    }


@pytest.mark.parametrize("count", [1, 13, 40, 41, 77, 119])
def test_cut_leaves_the_store_that_a_broker_had_at_that_point(tmp_path: Path, count: int) -> None:
    whole, fewer = some(120), some(count)
    root = stored(tmp_path / "store", whole)
    before = everything(root)
    at = whole.addresses[count]
    planned = lastwrite.cut(str(root), at=at, dry_run=True)
    assert everything(root) == before and str(planned.status) == "planned"
    report = lastwrite.cut(str(root), at=at)
    assert report.records == planned.records == 120 - count
    assert (
        report.log_end == whole.addresses[-1] + len(whole.log_bytes(-1))
        and report.bytes == report.log_end - at
    )
    assert read_dispatched(root) == fewer.dispatched()
    log = {name: data for name, data in served(root).items() if name.startswith("commitlog")}
    expected = fewer.commit_log()
    assert {name: data for name, data in log.items() if any(data)} == expected
    assert all(Path(place).exists() for place in report.aside)
    again = lastwrite.dispatch(str(root), config=whole.sizes.config(), now_ms=NOW, spark=INLINE)
    assert again.exit_status == 0 and not again.total("units_added") and not again.index_entries
    undone = lastwrite.cut(str(root), undo=True)
    assert str(undone.status) == "undone" and undone.records == report.records
    assert everything(root) == before


def test_cut_is_possible_at_the_end_of_the_last_record_before_damage(tmp_path: Path) -> None:
    whole = some(60)
    root = stored(tmp_path / "store", whole)
    size = whole.sizes.commit_log
    at = whole.addresses[30]
    path = root / "commitlog" / f"{at // size * size:020d}"
    content = bytearray(path.read_bytes())
    content[at % size : at % size + 9] = b"\xff" * 9
    path.write_bytes(content)
    report = lastwrite.dispatch(
        str(root), config=whole.sizes.config(), whole_log=True, spark=INLINE
    )
    assert report.damage is not None and report.damage.physical_offset == at
    planned = lastwrite.cut(str(root), at=at, dry_run=True)
    assert planned.records == report.damage.records_beyond == 29
    lastwrite.cut(str(root), at=at)
    assert read_dispatched(root) == some(30).dispatched()
    assert (
        lastwrite.dispatch(
            str(root), config=whole.sizes.config(), whole_log=True, spark=INLINE
        ).exit_status
        == 0
    )


def test_cut_inside_a_record_is_refused_with_the_nearest_positions(tmp_path: Path) -> None:
    whole = some(20)
    root = stored(tmp_path / "store", whole)
    before = everything(root)
    for at in (whole.addresses[7] + 4, whole.addresses[7] - 1):
        with pytest.raises(InvalidConfig) as refused:
            lastwrite.cut(str(root), at=at)
        assert str(whole.addresses[7]) in str(refused.value.remedy)
    for at in (0, 1 << 40):
        with pytest.raises(InvalidConfig):
            lastwrite.cut(str(root), at=at)
    for wrong in ({}, {"at": 5, "undo": True}, {"undo": True, "dry_run": True}, {"undo": True}):
        with pytest.raises(InvalidConfig):
            lastwrite.cut(str(root), **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="the commit log is in"):
        lastwrite.cut(
            str(root),
            at=whole.addresses[7],
            config={"storePathCommitLog": f"{root}/commitlog,/mnt/other"},
        )
    with pytest.raises(NotALog):
        lastwrite.cut(str(tmp_path), at=5)
    assert everything(root) == before


def test_topic_behind_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """The files behind the link would change in the kept tree, too."""
    whole = some(60)
    root = stored(tmp_path / "store", whole)
    (root / "consumequeue" / "plain").rename(tmp_path / "elsewhere")
    (root / "consumequeue" / "plain").symlink_to(tmp_path / "elsewhere")
    before, there = everything(root), everything(tmp_path / "elsewhere")
    with pytest.raises(LogError, match="symbolic link"):
        lastwrite.cut(str(root), at=whole.addresses[20])
    assert everything(root) == before and everything(tmp_path / "elsewhere") == there


def test_locked_store_and_killed_broker_are_refused(tmp_path: Path) -> None:
    whole = some(20)
    root = stored(tmp_path / "store", whole)
    at = whole.addresses[9]
    with lock.hold(str(root), [TopicPartition("lastwrite-dispatch", 0)]), pytest.raises(LogHeld):
        lastwrite.cut(str(root), at=at)
    (root / "abort").write_text("123")
    with pytest.raises(LogHeld, match="unclean"):
        lastwrite.cut(str(root), at=at)
    lastwrite.cut(str(root), at=at, unclean=True)
    with pytest.raises(LogHeld, match="earlier cut"):
        lastwrite.cut(str(root), at=whole.addresses[5], unclean=True)


def test_offsets_beyond_the_cut_are_lowered(tmp_path: Path) -> None:
    whole, fewer = some(120), some(40)
    root = stored(tmp_path / "store", whole)
    highest, end = whole.highest[COMPACTED, 0], fewer.highest[COMPACTED, 0]
    positions = {f"{COMPACTED}_0": highest, "other_0": 7}
    write_files(
        root,
        {
            "compaction/position-checkpoint": encode_positions(positions),
            "checkpoint": encode_checkpoint(Checkpoint(1, 2, 3, 0, 1 << 40, 1 << 40)),
            "config/consumerOffset.json": b'{"offsetTable":{"compacted@g":{0:999,1:2},"else@g":{0:5}}}',
        },
    )
    before = everything(root)
    report = lastwrite.cut(str(root), at=whole.addresses[40])
    assert decode_positions((root / "compaction" / "position-checkpoint").read_bytes()) == {
        f"{COMPACTED}_0": end,
        "other_0": 7,
    }
    found = decode_checkpoint((root / "checkpoint").read_bytes())
    assert found == Checkpoint(1, 2, 3, 0, whole.addresses[40], whole.addresses[40])
    groups = decode_consumer_offsets((root / "config" / "consumerOffset.json").read_bytes())
    assert groups == {(COMPACTED, "g"): {0: end + 1, 1: 2}, ("else", "g"): {0: 5}}
    assert [one.to_dict() for one in report.consumers] == [
        {"topic": COMPACTED, "group": "g", "queue": 0, "before": 999, "after": end + 1}
    ]
    lastwrite.cut(str(root), undo=True)
    assert everything(root) == before


def timer_files(broker: Broker, file_units: int = 10) -> list[Files]:
    """Write messages for the timer, its log, its wheel and its checkpoint, as a broker leaves them.

    The nth unit of the timer log belongs to the nth message. Returns the files of a broker that has
    processed each number of messages.
    """
    step = 52 * file_units + 16
    log, states = bytearray(), []
    for n in range(30):
        stored = 1_700_000_000_000 + 1_000 * n
        address = send(broker, names.TIMER_TOPIC, 0, n, keys=f"t{n}", stored=stored)
        send(broker, "other", 0, n, keys=f"k{n}", stored=stored + 1)
        if len(log) % step == 52 * file_units:
            log += struct.pack(">iqi", 16, 0, 0xBBCCDDEE ^ 1880681586 + 8 - (1 << 32))
        unit = (52, -1, 1, stored, 5_000, address, 120, 7, 0)
        log += struct.pack(">iqiqiqiiq", *unit)
        states.append(
            {
                f"timerlog/{at:020d}": bytes(log[at : at + step]).ljust(step, b"\0")
                for at in range(0, len(log), step)
            }
        )
    return states


@pytest.mark.parametrize("count", [1, 5, 10, 11, 20, 29])
def test_timer_is_set_back_to_the_cut(tmp_path: Path, count: int) -> None:
    broker = Broker()
    states = timer_files(broker)
    root = stored(tmp_path / "store", broker)
    check = (1_700_000_029_000, 52 * 30, 30, 30, 0, 1, 2)
    write_files(
        root,
        states[-1]
        | {
            "timerwheel": b"wheel",
            "timerwheel.1560": b"snapshot",
            "config/timercheck": struct.pack(">7q", *check).ljust(4096, b"\0"),
            "config/timermetrics": b"{}",
        },
    )
    before = everything(root)
    at = broker.addresses[2 * count]  # the first timer message that is removed
    planned = lastwrite.cut(str(root), at=at, dry_run=True)
    report = lastwrite.cut(str(root), at=at)
    found = served(root)
    units = {name: data[:520] for name, data in found.items() if name.startswith("timerlog")}
    assert units == {name: data[:520] for name, data in states[count - 1].items()}
    assert not [name for name in found if name.startswith("timerwheel")]
    slot = (1_700_000_000_000 + 1_000 * (count - 1) + 1) // 1000 * 1000
    numbers = struct.unpack_from(">7q", found["config/timercheck"])
    assert numbers == (slot, 0, count, count, 0, 1, 2)
    assert report.timer is not None and report.timer == planned.timer
    assert report.timer.units_removed == 30 - count
    assert report.timer.read_time_after_ms == slot
    named = {one.path: one.why for one in report.untouched}
    assert str(root / "config" / "timermetrics") in named
    (root / "timerwheel").write_bytes(b"made by a broker since")
    lastwrite.cut(str(root), undo=True)
    assert everything(root) == before


def test_timer_before_the_cut_is_unchanged(tmp_path: Path) -> None:
    broker = Broker()
    states = timer_files(broker)
    root = stored(tmp_path / "store", broker)
    check = struct.pack(">7q", 1_700_000_001_000, 52 * 5, 5, 5, 0, 1, 2).ljust(4096, b"\0")
    mine = {**states[4], "timerwheel": b"wheel", "config/timercheck": check}
    write_files(root, mine)
    report = lastwrite.cut(str(root), at=broker.addresses[40])
    assert report.timer is None
    assert {name: data for name, data in served(root).items() if name in mine} == mine


def test_light_groups_and_delayed_messages_are_set_back_to_the_cut(tmp_path: Path) -> None:
    broker = Broker()
    for n in range(20):
        named = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": str(n)}
        stored_ms = 1_700_000_000_000 + 1_000 * n
        send(broker, "plain", 0, n, stored=stored_ms, **named)
        send(broker, "SCHEDULE_TOPIC_XXXX", 1, n, stored=stored_ms, DELAY="2")  # 5 s later
    root = stored(tmp_path / "store", broker)
    light = b'{"lmqOffsetTable":{"%LMQ%a@%LMQ%c":18,"%LMQ%b@%LMQ%c":18},"offsetTable":{"plain@g":{0:9,}}}'
    delays = b'{"dataVersion":{"counter":9},"offsetTable":{2:15,3:99}}'
    mine = {"config/lmqConsumerOffset.json": light, "config/delayOffset.json": delays}
    write_files(root, mine)
    before = everything(root)
    report = lastwrite.cut(str(root), at=broker.addresses[20])  # 10 of each remain
    found = served(root)
    assert found["config/lmqConsumerOffset.json"] == light.replace(
        b'@%LMQ%c":18', b'@%LMQ%c":10', 1
    )
    # Number 4 was due at 9,000 ms, when the last kept record was stored.
    assert found["config/delayOffset.json"] == delays.replace(b"2:15", b"2:5")
    assert [one.to_dict() for one in report.delays] == [{"level": 2, "before": 15, "after": 5}]
    assert [one.group for one in report.consumers] == ["%LMQ%c"]
    lastwrite.cut(str(root), undo=True)
    assert everything(root) == before


def test_every_file_of_a_store_is_corrected_moved_or_listed(tmp_path: Path) -> None:
    """With the reason for each unchanged file."""
    whole = some(40)
    root = stored(tmp_path / "store", whole)
    write_files(root, {"config/odd.json": b"{}", "config/topics.json.bak": b"{}", "odd": b""})
    report = lastwrite.cut(str(root), at=whole.addresses[20])
    named = {os.path.relpath(one.path, root): one.why for one in report.untouched}
    aside = {os.path.relpath(path, root).removesuffix(".before-cut") for path in report.aside}
    there = {path.name for path in root.iterdir() if ".before-cut" not in path.name}
    there |= {f"config/{path.name}" for path in (root / "config").iterdir()}
    assert aside | set(named) | {"config", cutting.NOTE} == there
    assert all("does not recognize" in named[name] for name in ("odd", "config/odd.json"))
    assert named["config/topics.json.bak"] == named["config/topics.json"]
    shutil.rmtree(root / "index")
    made = lastwrite.dispatch(str(root), config=whole.sizes.config(), now_ms=NOW, spark=INLINE)
    assert str(root / "odd") in {one.path for one in made.untouched}
    assert str(root / "index") not in {one.path for one in made.untouched}


def test_undo_refuses_to_lose_records_written_since(tmp_path: Path) -> None:
    whole = some(60)
    root = stored(tmp_path / "store", whole)
    at = whole.addresses[30]
    lastwrite.cut(str(root), at=at)
    path = root / "commitlog" / f"{at // whole.sizes.commit_log * whole.sizes.commit_log:020d}"
    content = bytearray(path.read_bytes())
    content[at % whole.sizes.commit_log] = 1
    path.write_bytes(content)
    before = everything(root)
    with pytest.raises(LogHeld, match="has new records since"):
        lastwrite.cut(str(root), undo=True)
    assert everything(root) == before


def test_undo_keeps_offsets_committed_since(tmp_path: Path) -> None:
    whole = some(60)
    root = stored(tmp_path / "store", whole)
    path = root / "config" / "consumerOffset.json"
    path.write_bytes(b'{"offsetTable":{"plain@g":{0:999}}}')
    lastwrite.cut(str(root), at=whole.addresses[30])
    path.write_bytes(b'{"offsetTable":{"plain@g":{0:1},"new@g":{0:2}}}')
    report = lastwrite.cut(str(root), undo=True)
    assert (
        path.read_bytes() == b'{"offsetTable":{"plain@g":{0:1},"new@g":{0:2}}}'
        and len(report.notes) == 1
    )
    assert not list(root.rglob("*before-cut*"))


def test_lowered_offsets_keep_the_rest_of_the_file() -> None:
    text = '{\n\t"offsetTable":{\n\t\t"%RETRY%g@g":{0:5,1:6},\n\t\t"tö\\"pic@g":{"0":7 , 3 : 9}\n\t},"x":{"a@b":1}}'
    out, told = lower_consumer_offsets(
        text.encode(), {("%RETRY%g", 1): 4, ('tö\\"pic', 3): 0, ("other", 0): 1}
    )
    assert out.decode() == text.replace("1:6", "1:4").replace("3 : 9", "3 : 0")
    assert told == [("%RETRY%g", "g", 1, 6, 4), ('tö\\"pic', "g", 3, 9, 0)]


def test_disk_error_leaves_the_store_unchanged_or_undoable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = some(40)
    origin, root = stored(tmp_path / "origin", whole), tmp_path / "run"
    before = everything(origin)
    point = refused = 0
    while point == refused:
        point += 1
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(origin, root)
        monkeypatch.setattr(files, "faults", FaultPoints(point, errno.ENOSPC, once=True))
        try:
            lastwrite.cut(str(root), at=whole.addresses[20])
        except LogError as error:
            refused += 1
            assert error.remedy is not None
        monkeypatch.setattr(files, "faults", FaultPoints())
        if (
            point == refused
            and not lock.has_stopped_cut(str(root))
            and not (root / "commitlog.before-cut").exists()
        ):
            assert everything(root) == before, point
        elif point == refused:
            lastwrite.cut(str(root), undo=True)
            assert everything(root) == before, point
    assert point > 30


def test_interrupted_cut_locks_the_store_until_its_undo(tmp_path: Path) -> None:
    whole = some(40)
    root = stored(tmp_path / "store", whole)
    (root / "commitlog" / CUT_GUARD).write_bytes(b"old")
    (root / cutting.NOTE).write_text(
        json.dumps({"at": 1, "trees": [], "sides": {}, "report": report_of(1)})
    )
    for call in (
        lambda: lastwrite.cut(str(root), at=whole.addresses[20]),
        lambda: lastwrite.dispatch(str(root), spark=INLINE),
        lambda: lastwrite.compact(str(root), spark=INLINE),
    ):
        with pytest.raises(LogHeld) as refused:
            call()
        assert "--undo" in str(refused.value.remedy)
    lastwrite.cut(str(root), undo=True)
    assert not os.path.lexists(root / "commitlog" / CUT_GUARD)


def report_of(at: int) -> dict[str, object]:
    return {
        "file": "",
        "position": at,
        "records": 0,
        "bytes": 0,
        "log_end": 0,
        "queues": [],
        "compaction": [],
    }
