"""Tests of keys given as text, hexadecimal digits or Base64.

Each form finds the same records in every command and system.
"""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.rocketmq.format import properties
from tests.support.files import unpack
from tests.support.kafka.logs import write_segment
from tests.support.pulsar.corpus import CORPUS
from tests.support.pulsar.folders import batch, single, write_ledger
from tests.support.pulsar.topics import topic_folder
from tests.support.rocketmq.queues import Sent, write_queue
from tests.support.rocketmq.stores import StoreWriter

PULSAR = "persistent://public/default/orders"
KEY = b"a key"


def ways(key: bytes) -> list[tuple[str, str]]:
    """The options with which a command accepts the key."""
    found = [
        ("--key-hex", key.hex()),
        ("--key-base64", base64.b64encode(key).decode()),
    ]
    return found if not key.isascii() else [("--key", key.decode()), *found]


def write(system: str, root: Path) -> str:
    """Write a topic ``orders`` in which ``KEY`` is written twice, the second time with
    value ``2``.
    """
    if system == "kafka":
        pairs = [(KEY, b"1"), (b"b", b"1"), (KEY, b"2")]
        records = [Record(n, 1_700_000_000_000, *pair) for n, pair in enumerate(pairs)]
        write_segment(root / "orders-0", 0, [encode_batch(records)])
        write_segment(root / "orders-0", 3, [])
    elif system == "rocketmq":
        text = KEY.decode().replace(" ", "-")
        sent = [(text, b"1"), ("b", b"1"), (text, b"2")]
        write_queue(root, "orders", 0, [[Sent(n, *each) for n, each in enumerate(sent)]])
    else:
        coded = base64.b64encode(KEY).decode()
        entries = [
            single("b", "1", 0),
            single(coded, "1", 1, is_b64=True),
            batch([("c", "1"), (KEY.decode(), "2")], 2),
        ]
        if system == "pulsar, bytes":
            entries[2] = single(coded, "2", 2, is_b64=True)
        write_ledger(topic_folder(root, PULSAR), 10, entries)
    return str(root)


def lines(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """The JSON lines that a command prints, and its standard error."""
    assert run([*arguments, "--json"]) == 0
    printed = capfd.readouterr()
    return [json.loads(line) for line in printed.out.splitlines()], printed.err


def explained(capfd: pytest.CaptureFixture[str], *arguments: str) -> int:
    """The number of records of the key that ``explain`` lists."""
    assert run(["explain", *arguments, "--json"]) == 0
    [partition] = json.loads(capfd.readouterr().out)["partitions"]
    return len(partition["records"])


@pytest.mark.parametrize("system", ["kafka", "rocketmq", "pulsar", "pulsar, bytes"])
def test_every_command_finds_the_same_records(
    system: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(system, tmp_path)
    key = KEY.replace(b" ", b"-") if system == "rocketmq" else KEY
    value = "body" if system == "rocketmq" else "value"
    where = ("--topic", "orders")
    expected = ["MQ==", "Mg=="]
    for way in ways(key):
        rows, _ = lines(capfd, "dump", path, *where, *way)
        assert [row[value] for row in rows] == expected
        *rows, end = lines(capfd, "read", path, *where, *way)[0]
        assert [row[value] for row in rows] == expected and end["messages"] == 2
        assert explained(capfd, path, *where, *way) == 2
    latest, table = lastwrite.latest(path, "orders"), lastwrite.table(path, "orders")
    assert latest[key] == latest[key.decode()] == table[key] == table[key.decode()] == b"2"
    assert key in latest and key.decode() in latest and latest.get("nothing") is None
    assert key in table and key.decode() in table and "nothing" not in table
    [row] = list(lastwrite.read(path, "orders", key=key, limit=1))
    assert row[value] == "MQ=="


@pytest.mark.parametrize("system", ["kafka", "rocketmq", "pulsar"])
def test_lookup_without_a_match_is_reported(
    system: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write(system, tmp_path)
    where = (path, "--topic", "orders", "--key", "nothing")
    assert "no record has this key" in lines(capfd, "dump", *where)[1] or system == "rocketmq"
    if system == "rocketmq":
        assert "no message matches" in lines(capfd, "dump", *where)[1]
    assert "no message has this key" in lines(capfd, "read", *where)[1]
    assert run(["explain", *where]) == 0
    assert "no record of the key" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("topic", "key"), [("kvavro", bytes.fromhex("0204633000")), ("kvstr", b"device-0")]
)
def test_key_of_a_key_value_schema_is_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], topic: str, key: bytes
) -> None:
    """Pulsar stores these keys as Base64, and Java's ``getKey`` returns that text."""
    unpack(CORPUS / "p6-keyvalue-archive.tgz", tmp_path)
    path, coded = str(tmp_path / "arch6"), base64.b64encode(key).decode()
    whole = [row for row in lastwrite.dump(path, topic=topic) if row["key"] == coded]
    assert len(whole) == 2 and whole[0]["key_b64_encoded"]
    for way in [*ways(key), ("--key", coded)]:
        assert lines(capfd, "dump", path, "--topic", topic, *way)[0] == whole
        *rows, _ = lines(capfd, "read", path, "--topic", topic, *way)[0]
        assert [row["entry"] for row in rows] == [row["entry"] for row in whole]
        assert explained(capfd, path, "--topic", topic, *way) == 2
    last = base64.b64decode(whole[-1]["value"])
    name = f"persistent://public/default/{topic}"
    latest, table = lastwrite.latest(path, name), lastwrite.table(path, name)
    assert latest[key] == latest[coded] == table[key] == last


def test_message_of_an_inner_batch_is_found_by_its_key(tmp_path: Path) -> None:
    """RocketMQ's broker enters only the whole batch in the index files."""
    writer = StoreWriter(tmp_path)
    pairs = [properties.build({"KEYS": f"k{n} x"}) for n in range(3)]
    writer.send("b", inner=[(n, b"body %d" % n, pairs[n]) for n in range(3)])
    writer.send("c", b"single", {"KEYS": "k1"})
    writer.write()
    bodies = [base64.b64encode(body).decode() for body in (b"body 1", b"single")]
    for folder in ("index", "none"):
        assert [row["body"] for row in lastwrite.dump(str(tmp_path), key=b"k1")] == bodies
        shutil.rmtree(tmp_path / folder, ignore_errors=True)
    told: list[str] = []
    assert not list(lastwrite.dump(str(tmp_path), key=b"k9", say=told.append))
    assert "no message matches" in told
