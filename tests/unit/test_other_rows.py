"""Tests of RocketMQ and Pulsar messages as columns, against ``read``."""

from __future__ import annotations

import base64
import datetime
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="pip install 'lastwrite[frames]'")

import lastwrite  # noqa: E402
from lastwrite.errors import CorruptLog, UnsupportedFormat  # noqa: E402
from lastwrite.model.work import Limits  # noqa: E402
from lastwrite.pulsar.format.codecs import PulsarCodec, PulsarCodecs  # noqa: E402
from lastwrite.pulsar.format.entry import (  # noqa: E402
    EncryptionKey,
    Metadata,
    PulsarMessage,
    encode_batch,
    encode_entry,
    encode_single,
)
from lastwrite.pulsar.format.position import Position  # noqa: E402
from lastwrite.rows.arrow import COLUMNS  # noqa: E402
from lastwrite.rows.reading import read_rows, row_units  # noqa: E402
from lastwrite.rows.system import rows_of  # noqa: E402
from tests.support.pulsar.folders import write_compacted, write_ledger  # noqa: E402
from tests.support.pulsar.topics import topic_folder  # noqa: E402
from tests.support.rocketmq.queues import Sent, paths_of, write_queue  # noqa: E402

CORPUS = Path(__file__).parents[1] / "corpus"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
TOPIC = "persistent://public/default/orders"


def rows(system: str, path: Path, topic: str | None = None, **asked: Any) -> list[dict[str, Any]]:
    found = rows_of(system)
    return [
        row
        for log in found.logs_of(str(path), topic)
        for unit in row_units(found, log, COLUMNS, is_committed=True, **asked)
        for batch in read_rows(unit, Limits(chunk_bytes=1 << 14))
        for row in batch.to_pylist()
    ]


def at(ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=ms)


def headers(properties: dict[str, str]) -> list[dict[str, Any]] | None:
    return [{"key": key, "value": value.encode()} for key, value in properties.items()] or None


# ---------------------------------------------------------------------- RocketMQ


def rocketmq_row(row: dict[str, Any]) -> dict[str, Any]:
    key = row["properties"].get("KEYS")
    return {
        "key": None if key is None else key.encode(),
        "value": base64.b64decode(row["body"]),
        "topic": row["topic"],
        "partition": row["queue_id"],
        "offset": row["queue_offset"],
        "timestamp": at(row["store_timestamp"]),
        "timestampType": 1,
        "headers": headers(row["properties"]),
    }


@pytest.mark.parametrize("topic", ["ctopic"])
def test_rows_equal_read_on_a_store_of_a_real_broker(topic: str) -> None:
    store = CORPUS / "rocketmq" / "5.5.0"
    found = rows("rocketmq", store, topic)
    queues = sorted({row["partition"] for row in found})
    expected = [
        rocketmq_row(row)
        for queue in queues
        for row in lastwrite.read(str(store), topic, queue=queue)
    ]
    assert found == expected and len(found) > 100
    assert rows("rocketmq", store, topic, piece_bytes=700) == expected


def test_compressed_bodies_and_keyless_messages_are_read(tmp_path: Path) -> None:
    sents = [
        [
            Sent(3, "a", b"1", tag="red"),
            Sent(5, "ключ", b"x" * 90, is_compressed=True),
            Sent(8, None, b"3"),
            Sent(9, "a", b""),
            Sent(10, "b", b"y" * 900, is_compressed=True),
        ],
        [Sent(12, "a", b"4")],
    ]
    write_queue(tmp_path, "t", 0, sents)
    found = rows("rocketmq", tmp_path, "t")
    assert found == [rocketmq_row(row) for row in lastwrite.read(str(tmp_path), "t", queue=0)]
    assert [row["value"] for row in found][1] == b"x" * 90
    assert rows("rocketmq", tmp_path, "t", first=5, end=10) == found[1:4]


def test_undecodable_body_is_damage(tmp_path: Path) -> None:
    write_queue(tmp_path, "t", 0, [[Sent(3, "a", b"12345678", is_compressed=True)]])
    path = paths_of(tmp_path, "t", 0, 0)[0]
    data = bytearray(path.read_bytes())
    at_body = data.index(b"\x78\x9c")
    data[at_body + 3] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(CorruptLog) as caught:
        rows("rocketmq", tmp_path, "t")
    assert caught.value.path == str(path)


# ---------------------------------------------------------------------- Pulsar


def pulsar_row(row: dict[str, Any]) -> dict[str, Any]:
    key = row["key"]
    if key is not None:
        key = base64.b64decode(key) if row["key_b64_encoded"] else key.encode()
    return {
        "key": key,
        "value": None if row["null_value"] else base64.b64decode(row["value"]),
        "topic": row["topic"],
        "partition": row["partition"],
        "offset": Position(row["ledger"], row["entry"]).offset,
        "timestamp": at(row["publish_time"]),
        "timestampType": 0,
        "headers": headers(row["properties"]),
    }


def message(n: int, **more: Any) -> PulsarMessage:
    values: dict[str, Any] = {
        "key": b"k%d" % (n % 5),
        "value": b"value %d " % n * (n % 7),
        "publish_time": 1_700_000_000_000 + n,
        "properties": tuple((f"p{i}", f"é{n}") for i in range(n % 3)),
        "sequence_id": n,
    }
    return PulsarMessage(**(values | more))


BYTES_KEY = {"key": base64.b64encode(bytes(range(250, 256))), "is_b64": True}
SPECIAL = (
    {"key": None},
    {"is_null": True, "value": b""},
    BYTES_KEY,
    {"key": b"no base64!", "is_b64": False},
    {"key": b""},
)


def entries(codec: PulsarCodec, count: int = 60) -> list[bytes]:
    out = []
    for n in range(count):
        more = SPECIAL[n % 11] if n % 11 < len(SPECIAL) else {}
        if n % 2:
            out.append(encode_entry(*encode_single(message(n, **more), codec=codec)))
        else:
            inside = [message(n * 10 + i, **(more if i == 1 else {})) for i in range(n % 6 + 1)]
            out.append(encode_entry(*encode_batch(inside, codec=codec)))
    return out


@pytest.mark.parametrize("codec", list(PulsarCodec), ids=lambda codec: codec.name)
def test_every_codec_is_read_in_single_messages_and_batches(
    tmp_path: Path, codec: PulsarCodec
) -> None:
    folder = topic_folder(tmp_path, TOPIC)
    some = entries(codec)
    write_ledger(folder, 10, some[:30], block_bytes=900)
    write_ledger(folder, 12, some[30:], block_bytes=900)
    found = rows("pulsar", tmp_path)
    expected = [pulsar_row(row) for row in lastwrite.read(str(tmp_path), "orders")]
    assert found == expected and len(found) >= 120
    assert (
        {row["key"] is None for row in found}
        == {row["value"] is None for row in found}
        == {True, False}
    )
    assert bytes(range(250, 256)) in {row["key"] for row in found}
    low, high = Position(10, 7).offset, Position(12, 9).offset
    part = rows("pulsar", tmp_path, first=low, end=high, piece_bytes=500)
    assert part == [row for row in expected if low <= row["offset"] < high]


def test_latest_values_include_the_compacted_ledger_and_the_backlog(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, TOPIC)
    raw = entries(PulsarCodec.LZ4)
    write_ledger(folder, 10, raw)
    before = lastwrite.latest(str(tmp_path), "orders")
    lastwrite.compact(str(tmp_path))
    write_ledger(folder, 20, [encode_entry(*encode_single(message(1, value=b"newer")))])
    table = lastwrite.table(tmp_path, "orders")
    expected = {key.encode(): value for key, value in before.items()} | {b"k1": b"newer"}
    raw_key = BYTES_KEY["key"]
    expected[base64.b64decode(raw_key)] = expected.pop(raw_key)  # type: ignore[arg-type]
    assert dict(table.items()) == expected
    assert {key: table[key] for key in expected} == expected
    assert len(table) == len(expected)
    # All messages are still there and are read as before.
    found = rows("pulsar", tmp_path)
    assert found == [pulsar_row(row) for row in lastwrite.read(str(tmp_path), "orders")]


def parts(n: int, uuid: str, value: bytes, codec: PulsarCodec = PulsarCodec.NONE) -> list[bytes]:
    """The three chunks of a message."""
    packed = PulsarCodecs().compress(codec, value)
    third = len(packed) // 3 + 1
    return [
        encode_entry(
            Metadata(
                producer_name="p",
                sequence_id=n,
                publish_time=n,
                partition_key=b"whole",
                compression=int(codec) or None,
                uncompressed_size=len(value),
                uuid=uuid,
                num_chunks_from_msg=3,
                chunk_id=number,
                total_chunk_msg_size=len(packed),
            ),
            packed[third * number : third * (number + 1)],
        )
        for number in range(3)
    ]


def test_chunked_messages_are_joined_across_ledgers(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, TOPIC)
    one, two = parts(1, "u-1", b"first" * 50), parts(2, "u-2", b"second" * 99, PulsarCodec.ZSTD)
    lost = parts(3, "u-3", b"never whole")
    write_ledger(folder, 10, [one[0], two[0], *entries(PulsarCodec.NONE, 4), one[1], lost[0]])
    write_ledger(folder, 11, [two[1], one[2], lost[2], two[2]])
    found = rows("pulsar", tmp_path, piece_bytes=200)
    assert found == [pulsar_row(row) for row in lastwrite.read(str(tmp_path), "orders")]
    table = lastwrite.table(tmp_path)
    assert table[b"whole"] == b"second" * 99
    assert dict(table.items())[b"whole"] == b"second" * 99
    lastwrite.compact(str(tmp_path))
    assert lastwrite.latest(str(tmp_path), "orders")["whole"] == b"second" * 99


def test_encrypted_message_is_unsupported(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, TOPIC)
    keys = (EncryptionKey(key="k", value=b"wrapped").encode(),)
    secret = Metadata(producer_name="p", sequence_id=1, publish_time=1, encryption_keys=keys)
    path = write_ledger(
        folder, 10, [*entries(PulsarCodec.NONE, 3), encode_entry(secret, b"ciphertext")]
    )
    with pytest.raises(UnsupportedFormat, match="encrypted") as caught:
        rows("pulsar", tmp_path)
    assert (caught.value.path, caught.value.at is not None) == (str(path), True)


def test_malformed_batch_is_damage(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, TOPIC)
    metadata, payload = encode_batch([message(n) for n in range(3)])
    path = write_ledger(folder, 10, [encode_entry(metadata, payload[:-1])])
    with pytest.raises(CorruptLog) as caught:
        rows("pulsar", tmp_path)
    assert caught.value.path == str(path)


def test_compacted_out_placeholders_are_skipped(tmp_path: Path) -> None:
    folder = topic_folder(tmp_path, TOPIC)
    inside = [message(n, compacted_out=n % 2 == 0) for n in range(6)]
    body = encode_entry(*encode_batch(inside))
    write_ledger(folder, 10, [body])
    write_compacted(folder, 11, [(Position(10, 0), body)], Position(10, 0))
    table = lastwrite.table(tmp_path)
    assert dict(table.items()) == {b"k%d" % (n % 5): inside[n].value for n in (1, 3, 5)}
