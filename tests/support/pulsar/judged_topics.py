"""Random topics for a real Pulsar: the messages that three kinds of clients send.

A step is what one client sends at once. The Java client sends batches, codecs, encryption, chunks
and transactions. The C++ client leaves out sizes, and writes batches of one message. A raw
connection sends entries without checksum, with unknown fields, or with payloads that cannot be
decoded. ``Sender`` sends the steps to a broker.
"""

from __future__ import annotations

import base64
import random
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import pulsar

from tests.support.pulsar.broker import Broker
from tests.support.pulsar.driver import Driver, Line, Message
from tests.support.pulsar.wire import Frame, Wire, message

CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
START_MS = 1_600_000_000_000


@dataclass(frozen=True, slots=True)
class JavaStep:
    lines: list[Line]


@dataclass(frozen=True, slots=True)
class CppStep:
    messages: list[Message]
    is_batch: bool
    codec: str


@dataclass(frozen=True, slots=True)
class WireStep:
    frames: list[Frame]


@dataclass(frozen=True, slots=True)
class UnloadStep:
    """Close the topic and its open ledger."""


Step = JavaStep | CppStep | WireStep | UnloadStep


class Topic:
    """The state of a topic while its steps are drawn: its keys and its open transactions.

    ``met`` counts the drawn cases.
    """

    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng, self.name = rng, name
        self.met: Counter[str] = Counter()
        self.keys: list[str] = []
        self.open: list[str] = []
        self._sent = self._transactions = 0
        count = self.rng.choice((1, 3, 8, 20, 60))
        kinds = self.rng.choice(
            (("plain",), ("plain",), ("plain", "odd"), ("plain", "bytes", "odd"))
        )
        for n in range(count):
            kind = self.rng.choice(kinds)
            if kind == "plain":
                self.keys.append(f"key-{n}")
            elif kind == "bytes":
                self.keys.append(
                    base64.b64encode(self.rng.randbytes(self.rng.randrange(0, 6))).decode()
                )
            else:
                self.keys.append(
                    self.rng.choice(("", "ключ", "k" * 300, " ", f"\U0001f511{n}", '"', "/wA="))
                )
        self._keyless = self.rng.choice((0.0, 0.0, 0.1, 0.5))
        self._empty = self.rng.choice((0.0, 0.1, 0.4))
        self.is_plain = (
            self.rng.random() < 0.25
        )  # only messages that a client without decryption keys can read without waiting

    def steps(self) -> list[Step]:
        """The steps of one round, from one message to some hundred."""
        rng = self.rng
        made: list[Step] = []
        kinds = (
            self._java,
            self._java,
            self._java,
            self._cpp,
            self._wire,
            self._transaction,
            self._unload,
        )
        for _ in range(rng.choice((1, 2, 5, 10))):
            made.append(self._java() if self.is_plain else rng.choice(kinds)())
        if self.open and rng.random() < 0.5:
            made.append(JavaStep([self._end(self.open.pop())]))
        return made

    # ---- messages

    def _message(self) -> Message:
        rng = self.rng
        made: Message = {}
        self._sent += 1
        if rng.random() >= self._keyless:
            key = rng.choice(self.keys)
            if key and rng.random() < 0.1:
                try:
                    made["keyBytes"] = base64.b64encode(
                        base64.b64decode(key, validate=True)
                    ).decode()
                except ValueError:
                    made["key"] = key
            else:
                made["key"] = key
        else:
            self.met["keyless"] += 1
        if rng.random() < self._empty:
            made["value"] = rng.choice((None, ""))
            self.met["deletes"] += 1
        else:
            text = f"{self._sent} ".encode() * rng.choice((1, 1, 4, 40)) + rng.randbytes(
                rng.choice((0, 0, 30))
            )
            made["value"] = base64.b64encode(text).decode()
        if rng.random() < 0.4:
            made["eventTime"] = START_MS + rng.randrange(8)
        if rng.random() < 0.2:
            made["properties"] = {
                f"p{n}": "v" * rng.randrange(4) for n in range(rng.randrange(1, 4))
            }
        if rng.random() < 0.1:
            made["orderingKey"] = base64.b64encode(rng.randbytes(4)).decode()
        return made

    def _messages(self, most: int) -> list[Message]:
        return [self._message() for _ in range(self.rng.randrange(1, most + 1))]

    # ---- steps

    def _java(self) -> Step:
        rng = self.rng
        lines: list[Line] = []
        for _ in range(rng.randrange(1, 4)):
            line: Line = {
                "codec": rng.choice(CODECS),
                "encrypt": not self.is_plain and rng.random() < 0.15,
            }
            kind = rng.choice(("single", "single", "batch", "batch", "batch", "chunk"))
            if kind == "chunk" and not self.is_plain and not line["encrypt"] and rng.random() < 0.5:
                value = base64.b64encode(rng.randbytes(rng.randrange(500, 4000))).decode()
                line |= {"messages": [self._message() | {"value": value}], "chunk": 700}
            else:
                line |= {"messages": self._messages(12), "batch": kind == "batch"}
                if kind != "batch" and rng.random() < 0.1:
                    line["messages"][0]["deliverAt"] = START_MS
            self.met[f"{'encrypted ' if line['encrypt'] else ''}{kind}"] += 1
            lines.append(line)
        return JavaStep(lines)

    def _cpp(self) -> Step:
        rng = self.rng
        self.met["of the C++ client"] += 1
        # A producer setting that batches by key would put keyless messages in a batch of their own.
        # The tests do not use it, so they are in the common batch.
        return CppStep(self._messages(rng.choice((1, 6))), rng.random() < 0.6, rng.choice(CODECS))

    def _transaction(self) -> Step:
        rng = self.rng
        if self.open and rng.random() < 0.5:
            return JavaStep([self._end(self.open.pop(rng.randrange(len(self.open))))])
        if self.open and rng.random() < 0.5:
            name = rng.choice(self.open)
        else:
            self._transactions += 1
            name = f"{self.name} {self._transactions}"
            self.open.append(name)
        line: Line = {
            "messages": self._messages(5),
            "batch": rng.random() < 0.3,
            "codec": rng.choice(CODECS),
            "txn": name,
        }
        lines = [line]
        if rng.random() < 0.7:
            self.open.remove(name)
            lines.append(self._end(name))
        return JavaStep(lines)

    def _end(self, name: str) -> Line:
        does_commit = self.rng.random() < 0.5
        self.met["commits" if does_commit else "aborts"] += 1
        return {"commit" if does_commit else "abort": name}

    def _unload(self) -> Step:
        return UnloadStep()

    def _wire(self) -> Step:
        """Entries that today's clients do not write."""
        rng = self.rng
        frames = []
        for _ in range(rng.randrange(1, 4)):
            fields: dict[int, int | bytes] = {
                1: b"old",
                2: self._sent,
                3: START_MS + self._sent,
            }
            key = rng.choice(self.keys).encode()
            value = f"{self._sent} raw".encode()
            self._sent += 1
            kind = rng.choice(
                (
                    "single",
                    "single",
                    "batch",
                    "batch",
                    "one",
                    "undecodable",
                    "encrypted",
                    "encrypted batch",
                    "marker",
                )
            )
            if rng.random() < 0.8:
                fields[6] = key
            if kind in ("batch", "one"):
                count = 1 if kind == "one" else rng.randrange(2, 6)
                fields[11] = count
                value = b"".join(self._raw_single() for _ in range(count))
                if rng.random() < 0.2:
                    fields[9] = len(value)
            elif kind == "marker":
                fields[20] = rng.choice((0, 10, 11, 13, 99))
                value = b""
            elif kind == "undecodable":
                # Only zlib: with another codec, the error ends the broker's compaction for good.
                fields |= {8: 2, 9: 100, 11: 2}
                value = b"\xff\xff\xff no zlib stream"
            elif kind.startswith("encrypted"):
                fields |= {13: message((1, b"key"), (2, bytes(8))), 15: bytes(12)}
                value = rng.randbytes(24)
                if kind == "encrypted batch":
                    fields[11] = 2
            elif rng.random() < 0.2:
                fields[9] = rng.choice((0, len(value)))
            if rng.random() < 0.2:
                fields |= {
                    16: b"\0\0\0\0\0\0\0\7",
                    18: b"ordering",
                    12: START_MS + rng.randrange(8),
                }
            pairs = sorted(fields.items())
            if rng.random() < 0.2:
                pairs += [(90, 7), (91, b"of tomorrow")]
                self.met["unknown fields"] += 1
            if kind != "undecodable":
                has_checksum = rng.random() < 0.6
                self.met["without a checksum"] += not has_checksum
            else:
                has_checksum = True
            self.met[f"raw {kind}"] += 1
            frames.append(
                Frame(entry(message(*pairs), value, has_checksum=has_checksum), kind == "marker")
            )
        return WireStep(frames)

    def _raw_single(self) -> bytes:
        rng = self.rng
        self._sent += 1
        value = b"" if rng.random() < self._empty else f"{self._sent} inner".encode()
        fields: list[tuple[int, int | bytes]] = []
        if rng.random() < 0.1:
            fields += [(3, 0), (4, 1)]  # a placeholder
            value = b""
        else:
            if rng.random() < 0.8:
                fields.append((2, rng.choice(self.keys).encode()))
            fields.append((3, len(value)))
            if rng.random() < 0.3:
                fields.append((5, START_MS + rng.randrange(8)))
            if rng.random() < 0.3:
                fields.append((8, self._sent))
        single = message(*fields)
        return struct.pack(">I", len(single)) + single + value


def entry(metadata: bytes, payload: bytes, *, has_checksum: bool = True) -> bytes:
    """An entry without a broker prefix."""
    rest = struct.pack(">I", len(metadata)) + metadata + payload
    return (
        b"\x0e\x01" + struct.pack(">I", google_crc32c.value(rest)) if has_checksum else b""
    ) + rest


class Sender:
    """Sends steps to a broker with its three kinds of clients."""

    def __init__(self, broker: Broker, driver: Driver) -> None:
        self._driver = driver
        self._broker = broker
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        self._cpp = pulsar.Client(broker.service_url, logger=logger)

    def play(self, topic: str, steps: Sequence[Step]) -> None:
        """Send all steps in order."""
        for step in steps:
            match step:
                case JavaStep():
                    self._driver.send(topic, step.lines)
                case CppStep():
                    self._send_cpp(topic, step)
                case WireStep():
                    with Wire(
                        self._broker.address
                    ) as wire:  # a new connection, because the broker closes an idle one
                        wire.send(topic, step.frames)
                case UnloadStep():
                    self._driver.unload(topic)

    def read(self, topic: str) -> list[tuple[int, int, int, str, bytes]]:
        """What a C++ reader gets of the compacted topic: ledger, entry, index, key, value.

        The reader also returns the placeholders of batches, as messages without key and value. They
        are left out.
        """
        reader = self._cpp.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
        found = []
        while reader.has_message_available():
            each = reader.read_next(10_000)
            place = each.message_id()
            if each.partition_key() or each.data():
                key, index = each.partition_key(), place.batch_index()
                found.append((place.ledger_id(), place.entry_id(), index, key, each.data()))
        reader.close()
        return found

    def close(self) -> None:
        self._cpp.close()

    def _send_cpp(self, topic: str, step: CppStep) -> None:
        codec = {"NONE": "NONE", "LZ4": "LZ4", "ZLIB": "ZLib", "ZSTD": "ZSTD", "SNAPPY": "SNAPPY"}[
            step.codec
        ]
        producer = self._cpp.create_producer(
            topic,
            compression_type=getattr(pulsar.CompressionType, codec),
            batching_enabled=step.is_batch,
            batching_max_publish_delay_ms=60_000,
        )
        failed: list[Any] = []
        for each in step.messages:
            value = each["value"]
            more: dict[str, Any] = {}
            if "key" in each or "keyBytes" in each:
                more["partition_key"] = each["key"] if "key" in each else each["keyBytes"]
            if "eventTime" in each:
                more["event_timestamp"] = each["eventTime"]
            producer.send_async(
                None if value is None else base64.b64decode(value),
                lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None,
                properties=each.get("properties"),
                **more,
            )
        producer.flush()
        producer.close()
        assert not failed, failed
