"""Tests of files of real brokers 5.5.0 and 4.9.3: decoded completely, and rebuilt byte for byte."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lastwrite
from lastwrite.rocketmq.format import index_file, kernels, names, properties, sides, units
from lastwrite.rocketmq.format.java_hash import tags_code
from lastwrite.rocketmq.format.record import (
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    RocketmqMessage,
    body_of,
    decode_blank,
    decode_message,
    encode_message,
    offset_message_id,
    split_inner,
)
from lastwrite.rocketmq.rules.dispatch_settings import DispatchConfig
from lastwrite.spark.inline import INLINE
from tests.support.files import contents, unpack
from tests.support.rocketmq.records import array, slow_row, split

CORPUS = Path(__file__).parents[1] / "corpus" / "rocketmq"
STORES = ["5.5.0", "5.5.0-ipv6", "4.9.3"]
COMPACTED = ["5.5.0", "5.5.0-compacted"]
SLOTS, ENTRIES = 16, 100


@cache
def records(store: str) -> list[dict[str, Any]]:
    with gzip.open(CORPUS / store / "records.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def files(folder: Path) -> Iterator[tuple[int, bytes]]:
    for path in sorted(folder.iterdir()):
        offset = names.parse_file_name(path.name)
        assert offset is not None
        yield offset, path.read_bytes()


@cache
def commit_log(store: str) -> list[tuple[bytes, int, RocketmqMessage]]:
    """Every record: its bytes, its address and its message."""
    found = []
    for base, data in files(CORPUS / store / "commitlog"):
        table, consumed, code, at, _ = split(data, rows=1000)
        assert code in (kernels.BLANK, kernels.END)
        if code == kernels.BLANK:
            assert decode_blank(data, at, len(data)) == len(data) - at
        for row in table:
            place, end = int(row["position"]), int(row["position"] + row["size"])
            message = decode_message(data, place, len(data))
            assert dict(zip(row.dtype.names, row.tolist(), strict=True)) == slow_row(
                data, place, message
            )
            found.append((data[place:end], base + place, message))
    return found


@pytest.mark.parametrize("store", STORES)
def test_every_field_equals_the_real_decoders(store: str) -> None:
    ours = []
    for raw, address, message in commit_log(store):
        assert message.body_crc_holds and message.physical_offset == address
        assert encode_message(message) == raw
        ours.append(
            {
                "size": message.size,
                "magic": f"{message.magic & 0xFFFF_FFFF:08x}",
                "bodyCrc": message.body_crc,
                "topic": message.topic,
                "queueId": message.queue_id,
                "flag": message.flag,
                "queueOffset": message.queue_offset,
                "physicalOffset": message.physical_offset,
                "sysFlag": message.sys_flag,
                "bornTimestamp": message.born_time_ms,
                "bornPort": message.born_host.port,
                "storeTimestamp": message.store_time_ms,
                "storePort": message.store_host.port,
                "reconsumeTimes": message.reconsume_times,
                "preparedTransactionOffset": message.prepared_offset,
                "storedBodyHex": message.body.hex(),
                "bodyHex": body_of(message).hex(),
                "properties": message.properties,
                "offsetMsgId": offset_message_id(message.store_host, message.physical_offset),
            }
        )
    theirs = [
        {name: value for name, value in one.items() if not name.endswith("Host")}
        for one in records(store)
    ]
    assert ours == theirs


def test_corpus_has_every_shape() -> None:
    new, v6 = (
        [message for _, _, message in commit_log(store)] for store in ("5.5.0", "5.5.0-ipv6")
    )
    assert {message.sys_flag & 0x701 for message in new} >= {0, 0x1, 0x101, 0x201}
    assert any(message.sys_flag & 1 and not body_of(message) for message in new)  # a delete
    assert {len(message.born_host.address) for message in v6} == {4, 16}
    assert {len(message.store_host.address) for message in v6} == {16}
    assert len({message.magic for message in v6}) == 2
    assert any(message.is_inner_batch for message in new)
    assert any("DELAY" in message.properties for message in new)
    for store in STORES:
        closed = [message.properties_bytes.endswith(b"\x02") for _, _, message in commit_log(store)]
        assert all(closed) if store != "4.9.3" else not all(closed)


def test_record_checksums_are_valid_in_the_commit_log() -> None:
    assert all(properties.record_crc_holds(raw) for raw, _, _ in commit_log("5.5.0-ipv6"))
    assert {properties.record_crc_holds(raw) for raw, _, _ in commit_log("5.5.0")} == {None}


def test_inner_batches_are_split() -> None:
    for _, _, message in commit_log("5.5.0"):
        if message.is_inner_batch:
            found = split_inner(message)
            assert [inner.queue_offset for inner in found] == [
                message.queue_offset + n for n in range(len(found))
            ]
            assert all(inner.keys and inner.tags for inner in found)


def dispatched(store: str, folder: str) -> dict[tuple[str, int], bytes]:
    """The consume queue units that follow from the commit log, by topic and queue."""
    found: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    batch_topics = {name for name, topic in topics(store).items() if topic.has_batch_queues}
    for _, address, message in commit_log(store):
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK):
            continue
        queue = message.topic, message.queue_id
        code = tags_code(message.tags)
        if message.topic == names.SCHEDULE_TOPIC and "DELAY" in message.properties:
            level = int(message.properties["DELAY"])
            code = message.store_time_ms + DispatchConfig().delays_ms()[level - 1]
        if message.topic not in batch_topics and folder == names.CONSUME_QUEUES:
            found[queue].append(units.CONSUME_QUEUE_UNIT.pack(address, message.size, code))
        elif message.topic in batch_topics and folder == names.BATCH_CONSUME_QUEUES:
            base, number = message.queue_offset, 1
            if message.is_inner_batch:
                base, number = (
                    int(message.properties[name]) for name in ("INNER_BASE", "INNER_NUM")
                )
            found[queue].append(
                units.BATCH_UNIT.pack(
                    address, message.size, code, message.store_time_ms, base, number, -1, 0
                )
            )
    return {queue: b"".join(parts) for queue, parts in found.items()}


def topics(store: str) -> dict[str, sides.TopicConfig]:
    return sides.decode_topics((CORPUS / store / "config" / names.TOPICS).read_bytes())


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("folder", [names.CONSUME_QUEUES, names.BATCH_CONSUME_QUEUES])
def test_consume_queues_equal_those_built_from_the_commit_log(store: str, folder: str) -> None:
    expected = dispatched(store, folder)
    root = CORPUS / store / folder
    lying = {
        (path.parent.name, int(path.name)): b"".join(data for _, data in files(path))
        for path in (sorted(root.glob("*/*")) if root.exists() else [])
    }
    for queue in expected.keys() | lying.keys():
        found, wanted = lying.get(queue, b""), expected.get(queue, b"")
        if store == "5.5.0-ipv6" and folder == names.CONSUME_QUEUES:
            check_extension(store, queue, found, wanted)
            continue
        assert found[: len(wanted)] == wanted
        assert not any(found[len(wanted) :])


def check_extension(store: str, queue: tuple[str, int], found: bytes, wanted: bytes) -> None:
    """Check units with an extension: addresses and sizes are equal.

    The tags code is a position in the extension, which has the real tags code and the store time.
    """
    extension = b"".join(
        data
        for _, data in files(
            CORPUS / store / names.CONSUME_QUEUE_EXTENSIONS / queue[0] / str(queue[1])
        )
    )
    ours, theirs = (
        units.consume_queue_units(wanted),
        units.consume_queue_units(found)[: len(wanted) // 20],
    )
    times = {address: message.store_time_ms for _, address, message in commit_log(store)}
    assert ours["physical_offset"].tolist() == theirs["physical_offset"].tolist()
    assert ours["size"].tolist() == theirs["size"].tolist()
    for our, their in zip(ours, theirs, strict=True):
        at = int(their["tags_code"]) - units.EXTENSION_BASE
        unit = units.decode_extension(extension, at, len(extension))
        assert unit is not None
        assert (unit.tags_code, unit.store_time_ms) == (
            int(our["tags_code"]),
            times[int(our["physical_offset"])],
        )


@pytest.mark.parametrize("store", STORES)
def test_index_files_equal_those_built_from_the_commit_log(store: str) -> None:
    log = b"".join(raw for raw, _, _ in commit_log(store))
    table = split(log, rows=1000)[0]
    hashes, places, times = (np.zeros(10_000, np.int64) for _ in range(3))
    filled, last = kernels.index_keys(
        array(log), table, 0, len(table), hashes, places, times, store != "4.9.3"
    )
    assert last == len(table)
    done, before = 0, index_file.IndexHeader(0, 0, 0, 0, 0, 1)
    for path in sorted((CORPUS / store / names.INDEX).iterdir()):
        assert names.is_index_name(path.name)
        data = path.read_bytes()
        assert len(data) == index_file.index_bytes(SLOTS, ENTRIES)
        ours = index_file.new_index_file(
            SLOTS,
            ENTRIES,
            last_physical_offset=before.last_physical_offset,
            last_store_time_ms=before.last_store_time_ms,
        )
        done += index_file.build(
            ours, SLOTS, hashes[:filled], places[:filled], times[:filled], done
        )
        assert ours.tobytes() == data
        assert index_file.find_slots(data) == SLOTS
        before = index_file.decode_index_header(data)
    assert done == filled


@pytest.mark.parametrize("store", STORES)
def test_every_message_is_found_by_its_keys(store: str) -> None:
    opened = [
        index_file.IndexFile.of(path.read_bytes())
        for path in sorted((CORPUS / store / names.INDEX).iterdir())
    ]
    for _, address, message in commit_log(store):
        tag = f"T#{message.tags}" if message.tags and store != "4.9.3" else None
        for key in [message.unique_key, *(message.keys or "").split(" "), tag]:
            if key:
                assert any(address in one.addresses(message.topic, key) for one in opened)


@pytest.mark.parametrize("store", COMPACTED)
@pytest.mark.parametrize("queue", ["0", "1"])
def test_compaction_logs_and_their_indexes_agree(store: str, queue: str) -> None:
    root = CORPUS / store / names.COMPACTION
    log_size, index_size = names.log_sizes(5060, 1024)
    indexes = dict(files(root / names.COMPACTION_QUEUES / "ctopic" / queue))
    originals = {(m.topic, m.queue_id, m.queue_offset): raw for raw, _, m in commit_log("5.5.0")}
    last, seen = -1, []
    logs = dict(files(root / names.COMPACTION_LOGS / "ctopic" / queue))
    assert logs.keys() == indexes.keys()
    for base, data in logs.items():
        assert (len(data), len(indexes[base])) == (log_size, index_size) and base % log_size == 0
        rows, consumed, code, at, _ = split(data)
        assert code in (kernels.BLANK, kernels.END)
        table = units.batch_units(indexes[base])
        count = units.valid_count(table)
        assert count == len(rows) and (count == 0 or table["base"][0] > last)
        assert (table["base"][1:count] > table["base"][: count - 1]).all()
        for row, unit in zip(rows, table[:count], strict=True):
            assert unit["physical_offset"] == base + row["position"] == row["physical_offset"]
            assert (
                unit["size"],
                unit["tags_code"],
                unit["store_time_ms"],
                unit["base"],
                unit["number"],
            ) == (
                row["size"],
                row["tags_code"],
                row["store_time"],
                row["queue_offset"],
                1,
            )
            raw = data[row["position"] : row["position"] + row["size"]]
            original = originals["ctopic", int(queue), int(unit["base"])]
            assert raw[:28] + raw[36:] == original[:28] + original[36:]
            seen.append(int(unit["base"]))
        assert (table["compacted_offset"][:count] == -1).all()
        assert not table["reserved"][:count].any()
        tail = indexes[base][46 * count :]
        assert (
            not any(tail)
            or tail[:46] == units.END_UNIT[: len(tail)]
            or tail.startswith(units.END_UNIT)
        )
        last = seen[-1] if seen else -1
    if store == "5.5.0":
        keyed = [
            m.queue_offset
            for _, _, m in commit_log(store)
            if (m.topic, m.queue_id) == ("ctopic", int(queue)) and m.keys
        ]
        assert seen == keyed


def test_positions_round_trip() -> None:
    raw = (CORPUS / "5.5.0-compacted" / names.COMPACTION / names.POSITION_CHECKPOINT).read_bytes()
    positions = sides.decode_positions(raw)
    assert positions.keys() == {"ctopic_0", "ctopic_1"}
    assert sides.encode_positions(positions) == raw


@pytest.mark.parametrize("store", STORES)
def test_side_files_are_decoded(store: str) -> None:
    found = topics(store)
    assert found["ptopic"].write_queues == 2
    if store == "5.5.0":
        assert found["ctopic"].is_compacted and found["btopic"].has_batch_queues
    raw = (CORPUS / store / names.CHECKPOINT).read_bytes()
    checkpoint = sides.decode_checkpoint(raw)
    assert sides.encode_checkpoint(checkpoint) == raw
    newest = max(message.store_time_ms for _, _, message in commit_log(store))
    assert checkpoint.commit_log_time_ms == newest
    pid = sides.decode_abort((CORPUS / store / "abort.running").read_bytes())
    assert pid is None if store == "4.9.3" else pid is not None and pid > 0
    assert (CORPUS / store / names.LOCK).read_bytes() == sides.LOCK_TEXT
    sides.decode_consumer_offsets((CORPUS / store / "config" / names.CONSUMER_OFFSETS).read_bytes())


def test_light_queues_are_rebuilt_like_the_brokers(
    tmp_path: Path,
) -> None:
    unpack(CORPUS.parent / "rocketmq-light" / "store.tgz", tmp_path / "store")
    store = tmp_path / "store"
    (store / "consumequeue").rename(tmp_path / "consumequeue")
    config = {"mappedFileSizeConsumeQueue": 20_000, "maxHashSlotNum": 10, "maxIndexNum": 1000}
    sizes = {"compactionMappedFileSize": 5060, "compactionCqMappedFileSize": 1024}
    report = lastwrite.dispatch(str(store), config={**config, **sizes}, spark=INLINE)
    ends = {(queue.topic, queue.queue): queue.next_offset for queue in report.queues}
    assert ends["%LMQ%room1", 0] == ends["%LMQ%room2", 0] == 6 and report.exit_status == 0
    assert contents(store / "consumequeue") == contents(tmp_path / "consumequeue")
    shutil.rmtree(store / "consumequeue" / "%LMQ%room1")
    found = lastwrite.inspect(str(store))
    assert any(
        problem.kind == "damaged" and "%LMQ%room1" in problem.path
        for queue in found.partitions
        for problem in queue.problems
    )
