"""Record small topics as a real Pulsar stored them: ``tests/corpus/pulsar/``.

    # from the project's root; needs Java 17
    .venv/bin/python -m tests.corpus.make_pulsar HOME VENV [PART…]

HOME is the folder that the Pulsar peer's ``setup.sh`` filled (LASTWRITE_PEERS is the folder of
peers). VENV is a virtual environment with ``moto[server,s3]`` and ``boto3``. ``pulsar-client`` must
be installed here. PART is one of ``shapes``, ``blocks``, ``killed`` and ``direct``. Without a PART
all of them are recorded.

A cluster of three bookies, with two copies of every entry, is started three times over one folder:

1. Without broker entry metadata. ``shapes`` gets singles and batches of the Java and the C++ client
   in every codec: keyless messages, byte keys, nulls, empty values, encrypted messages, chunks, and
   committed and aborted transactions. ``odd`` gets frames that no current client sends: without
   checksum, with unknown fields, and an unreadable batch. ``parts`` has two partitions. ``files``
   is offloaded to a file system, and ``shapes``, ``odd`` and ``parts`` to an object store. All
   topics are compacted.
2. With broker entry metadata: newer values, deletes, and in ``shapes`` a transaction that stays
   open, with messages after it. All topics are compacted again.
3. Keyless messages are kept, consumers get the broker's entry metadata, the event time decides, and
   nodes of the metadata store are compressed. ``events`` is written, and ``shapes`` again.

The result:

- ``offloaded/``: a bucket's objects, and the user metadata of each in ``NAME.meta.json``
- ``filesystem/``: the files of the file-system offloader
- ``bookies/N/current/*.log.gz``: each bookie's entry logs after an orderly stop
- ``topics/NAME/ROUND/``: after each compaction ``managed-ledger`` and ``cursor`` (nodes of the
  metadata store), ``cursor-ledger.jsonl`` (entries of the cursor's ledger, Base64),
  ``stats-internal.json`` (the output of ``pulsar-admin topics stats-internal``), ``horizon.json``,
  ``compacted.jsonl.gz`` (entries of the real compacted ledger), ``read.jsonl.gz`` and
  ``read-compacted.jsonl.gz`` (messages as the Java reader gets them)
- ``topics/NAME/raw.jsonl.gz``: all raw entries as the bookies return them
- ``topics/unreadable.jsonl``: unreadable batches, and what the real compactor did with each
- ``ledgers/``: nodes of the ledgers in the metadata store
- ``blocks/``: an offloaded ledger of two blocks with padding, from another cluster
- ``direct/``: an entry log that a bookie wrote with direct I/O, from another cluster; its topic is
  ``topics/direct``
- ``killed/``: a bookie that was killed before it wrote an entry log, so its journal has all entries
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("pulsar")
PEER = Path(os.environ.get("LASTWRITE_PEERS", "../shared/peers")).absolute() / "pulsar"
PORT, HTTP_PORT, S3_PORT = (
    int(os.environ.get("LASTWRITE_CORPUS_PORT", "26650")) + more for more in (0, 80, 90)
)
ADMIN = f"http://127.0.0.1:{HTTP_PORT}/admin/v2"
BUCKET = "archive"
INTERCEPTORS = ",".join(
    f"org.apache.pulsar.common.intercept.Append{kind}MetadataInterceptor"
    for kind in ("BrokerTimestamp", "Index")
)
EVENT_TIME = "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"
SETTINGS = {
    "managedLedgerDefaultEnsembleSize": "3",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "transactionCoordinatorEnabled": "true",
    "logSizeLimit": "65536",
    "managedLedgerOffloadDriver": "S3",
    "managedLedgerOffloadBucket": BUCKET,
    "managedLedgerOffloadRegion": "us-east-1",
    "managedLedgerOffloadServiceEndpoint": f"http://127.0.0.1:{S3_PORT}",
    "managedLedgerOffloadMaxBlockSizeInBytes": str(5 << 20),
}
UNREADABLE = ("short", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
CODECS = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
LONG = "a value that repeats itself, for the client compresses nothing below four KiB; " * 55


class Cluster:
    """A standalone with bookies over the folder ``data``. Its client is the peer's ptool."""

    def __init__(self, home: Path, data: Path, classes: Path) -> None:
        self.home, self.data, self.classes = home, data, classes
        data.mkdir(parents=True, exist_ok=True)

    def start(self, bookies: int, **settings: str) -> None:
        # The peer's own start script writes the settings. This method adds bookies.
        plain = {
            "clusterName": "standalone",
            "brokerServicePort": PORT,
            "webServicePort": HTTP_PORT,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "metadataStoreUrl": f"zk:127.0.0.1:{PORT + 1}",
            "configurationMetadataStoreUrl": f"zk:127.0.0.1:{PORT + 1}",
            "managedLedgerDefaultEnsembleSize": 1,
            "managedLedgerDefaultWriteQuorum": 1,
            "managedLedgerDefaultAckQuorum": 1,
            "managedLedgerMinLedgerRolloverTimeMinutes": 0,
            "defaultRetentionTimeInMinutes": -1,
            "defaultRetentionSizeInMB": -1,
            "brokerDeleteInactiveTopicsEnabled": "false",
            "brokerServiceCompactionMonitorIntervalInSeconds": 3600,
            "loadBalancerEnabled": "false",
            "functionsWorkerEnabled": "false",
            "webSocketServiceEnabled": "false",
            "httpServerEnabled": "false",
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "dbStorage_writeCacheMaxSizeMb": 32,
            "dbStorage_readAheadCacheMaxSizeMb": 16,
            "journalMaxSizeMB": 64,
            "journalPreAllocSizeMB": 4,
            "flushInterval": 1000,
            "diskUsageThreshold": "0.99",
            "diskUsageWarnThreshold": "0.99",
            "allowLoopback": "true",
            "offloadersDirectory": self.home / "offloaders",
            "numIOThreads": 2,
            "numHttpServerThreads": 8,
            "numOrderedExecutorThreads": 2,
            **settings,
        }
        (self.data / "standalone.conf").write_text(
            "".join(f"{name}={value}\n" for name, value in plain.items())
        )
        (self.data / "ready").unlink(missing_ok=True)
        environment = os.environ | {
            "PULSAR_STANDALONE_USE_ZOOKEEPER": "1",
            "JAVA_OPTS": "-Xmx1g -XX:MaxDirectMemorySize=1g",
            "ACCESS_KEY_ID": "test",
            "ACCESS_KEY_SECRET": "test",
        }
        with open(self.data / "log", "a") as log:
            self.process = subprocess.Popen(
                self._java("serve", str(PORT), str(HTTP_PORT), str(bookies)),
                stdout=log,
                stderr=log,
                env=environment,
            )
        for _ in range(600):
            if (self.data / "ready").exists():
                self.driver = subprocess.Popen(
                    self._java("drive"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.2)
        raise SystemExit((self.data / "log").read_text()[-3000:])

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.driver.kill()
        self.driver.wait(30)
        self.process.send_signal(how)
        self.process.wait(60)

    def _java(self, command: str, *arguments: str) -> list[str]:
        opens = [
            "java.base/java.nio",
            "java.base/java.lang",
            "java.base/java.util",
            "java.base/java.util.zip",
            "java.base/jdk.internal.misc",
            "java.base/sun.nio.ch",
            "java.base/java.net",
            "java.base/jdk.internal.platform",
            "java.management/sun.management",
            "jdk.management/com.sun.management.internal",
        ]
        flags = [word for name in opens for word in ("--add-opens", f"{name}=ALL-UNNAMED")]
        flags += [
            "-Dio.netty.tryReflectionSetAccessible=true",
            "-Dorg.apache.avro.SERIALIZABLE_PACKAGES=*",
            "-Dpeer.txn=true",
        ]
        flags += ["-Xmx1g", "-XX:MaxDirectMemorySize=1g"] if command == "serve" else ["-Xmx256m"]
        path = f"{self.classes}:{self.home}/classes:{self.home}/lib/*"
        return ["java", *flags, "-cp", path, "PulsarShapes", command, str(self.data), *arguments]

    def ask(self, *words: str) -> list[Any]:
        """Run a command of the peer's ptool. Returns its responses."""
        assert self.driver.stdin is not None and self.driver.stdout is not None
        self.driver.stdin.write(json.dumps(words) + "\n")
        self.driver.stdin.flush()
        answers: list[Any] = []
        while True:
            answer = json.loads(self.driver.stdout.readline())
            if "failed" in answer:
                raise SystemExit(f"{' '.join(words)}: {answer['failed']}")
            if answer == {"done": True}:
                return answers
            answers.append(answer)

    def send(self, topic: str, *lines: dict[str, Any]) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as script:
            script.writelines(json.dumps(line) + "\n" for line in lines)
            script.flush()
            self.ask("send", topic, script.name)

    def node(self, path: str) -> bytes:
        [answer] = self.ask("node", path)
        return base64.b64decode(answer["node"])

    def keep_round(self, topic: str, name: str, number: int, keeps_ledgers: bool = True) -> None:
        """Compact the topic and save the cluster's data about it."""
        done = self.ask("compact", topic)[0]
        assert done["status"] == "SUCCESS", done
        time.sleep(1.5)  # the broker writes a cursor once a second
        folder = TARGET / "topics" / name / str(number)
        folder.mkdir(parents=True)
        [state] = self.ask("ledgers", topic)
        (folder / "managed-ledger").write_bytes(base64.b64decode(state["node"]))
        (folder / "cursor").write_bytes(base64.b64decode(state["cursorNode"]))
        if "cursorEntries" in state:
            (folder / "cursor-ledger.jsonl").write_text(
                "".join(
                    json.dumps({"ledger": state["cursorLedger"], "entry": n, "bytes": data}) + "\n"
                    for n, data in enumerate(state["cursorEntries"])
                )
            )
        with urllib.request.urlopen(f"{ADMIN}/{topic.replace('://', '/')}/internalStats") as answer:
            (folder / "stats-internal.json").write_text(
                json.dumps(json.load(answer), indent=1) + "\n"
            )
        (folder / "horizon.json").write_text(
            json.dumps({**done["after"], "removed": done["removed"]}) + "\n"
        )
        _keep(folder / "compacted.jsonl.gz", self.ask("dump-compacted", topic))
        _keep(folder / "read.jsonl.gz", self.ask("read", topic))
        _keep(folder / "read-compacted.jsonl.gz", self.ask("read", topic, "--compacted"))
        if not keeps_ledgers:  # the ledger ids of this cluster may also exist in another one
            return
        for ledger in {item["ledger"] for item in state["ledgers"]} | {
            int(done["after"]["ledger"])
        }:
            digits = f"{ledger:010d}"
            (TARGET / "ledgers").mkdir(exist_ok=True)
            (TARGET / "ledgers" / str(ledger)).write_bytes(
                self.node(f"/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}")
            )

    def keep_raw(self, topic: str, name: str) -> None:
        _keep(TARGET / "topics" / name / "raw.jsonl.gz", self.ask("dump-topic", topic))


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=300,
        check=False,
        env=os.environ | {"JAVA_OPTS": "-Dpeer.txn=true -Xmx256m"},
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command[-6:])}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


def _keep(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix != ".gz":
        path.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
        return
    with gzip.GzipFile(path, "wb", mtime=0) as out:
        for row in rows:
            out.write(json.dumps(row, sort_keys=True).encode() + b"\n")


# ---------------------------------------------------------------- what is sent


def keyed(key: str, value: str | None, **more: Any) -> dict[str, Any]:
    return {"key": key, "value": value, **more}


def alone(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Messages to send as one entry each."""
    return {"messages": messages, **more}


def batch(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Messages to send as a single entry."""
    return {"messages": messages, "batch": True, **more}


def single_shapes() -> list[dict[str, Any]]:
    return [
        {"messages": [keyed(f"k{n % 4}", f"single {n}") for n in range(8)]},
        alone(
            {"value": "keyless"},
            keyed("gone", "to be deleted"),
            keyed("gone", None),
            keyed("void", "x"),
        ),
        alone(
            keyed("void", ""),
            {"keyBytes": "/wA=", "value": "byte key"},
            keyed("/wA=", "its Base64 as text"),
        ),
        alone(keyed("", "the empty key"), keyed("käse-\U0001f9c0", "Käse"), keyed("empty", "")),
        alone(
            keyed(
                "all",
                "all fields",
                eventTime=1_600_000_000_000,
                orderingKey="order",
                properties={"a": "1", "b": "ß"},
            )
        ),
        alone(keyed("later", "delivered late", deliverAt=1_600_000_000_000)),
        *(
            {
                "codec": codec,
                "messages": [keyed(f"single-{codec}", LONG + codec), keyed("codec", LONG)],
            }
            for codec in CODECS
        ),
    ]


def batch_shapes() -> list[dict[str, Any]]:
    def in_codec(codec: str) -> dict[str, Any]:
        messages = [
            keyed(f"b{n % 5}", f"{codec} {n} {LONG[:500]}", eventTime=1_600_000_000_000 + n)
            for n in range(9)
        ]
        messages += [
            {"value": "keyless in a batch"},
            keyed("gone", None),
            keyed("void", ""),
            keyed(f"only-{codec}", "y"),
        ]
        messages[3]["properties"] = {"p": codec}
        return {"batch": True, "codec": codec, "messages": messages}

    return [
        *map(in_codec, CODECS),
        batch(keyed("k0", None), keyed("k1", ""), {"value": None}),
        batch(
            keyed("k3", "in a batch"),
            {"keyBytes": "AAEC", "value": "byte key"},
            keyed("", "empty key"),
        ),
        batch({"value": "all"}, {"value": "keyless"}),
        alone(
            keyed("secret", "one"),
            keyed("secret", "two"),
            keyed("k2", None),
            {"value": "keyless"},
            encrypt=True,
        ),
        batch(keyed("first", "1"), keyed("secret", "hidden"), keyed("k2", "h"), encrypt=True),
        batch(keyed("fresh", LONG), keyed("x", "2"), encrypt=True, codec="LZ4"),
        batch(keyed("lost", "goes with its batch"), keyed("y", "too"), encrypt=True),
        alone(keyed("lost", "later, alone")),
    ]


def long_shapes() -> list[dict[str, Any]]:
    return [
        alone(keyed("chunked", "0123456789" * 90), keyed("replaced", "9876543210" * 70), chunk=300),
        alone(keyed("replaced", "whole")),
        alone(keyed("k0", "committed"), keyed("t-good", "committed"), txn="good"),
        {
            "txn": "good",
            "batch": True,
            "messages": [keyed("k1", "committed"), keyed("t-batch", "c"), keyed("gone", "back")],
        },
        alone(keyed("k0", "aborted"), keyed("t-bad", "aborted"), keyed("k2", None), txn="bad"),
        alone(keyed("between", "two transactions")),
        {"commit": "good"},
        batch(keyed("k1", "aborted"), keyed("t-bad", "aborted"), txn="bad"),
        {"abort": "bad"},
        alone(keyed("k3", "after both")),
    ]


def later_shapes() -> list[dict[str, Any]]:
    return [
        alone(keyed("k3", "with broker metadata"), keyed("t-good", None), {"value": "keyless"}),
        batch(
            keyed("b1", "second round " + LONG), keyed("b2", None), keyed("new", "n"), codec="ZSTD"
        ),
        batch(keyed("b0", "second round"), keyed("b4", "second round"), keyed("only-LZ4", None)),
        alone(keyed("secret", "three"), encrypt=True),
        alone(keyed("chunked", None), keyed("fresh", "no more a batch")),
        alone(keyed("t-good", "again"), txn="good"),
        alone(keyed("new", "aborted"), txn="bad"),
        {"commit": "good"},
        {"abort": "bad"},
        alone(keyed("k0", "the last before an open transaction")),
    ]


def open_shapes() -> list[dict[str, Any]]:
    return [
        alone(keyed("k0", "undecided"), keyed("t-open", "undecided"), txn="open"),
        alone(keyed("k1", "behind the open transaction")),
        batch(keyed("k2", "behind"), keyed("k3", None)),
    ]


def send_by_cpp(topic: str) -> None:
    """Send what the C++ client writes differently.

    It leaves out the size of uncompressed messages, and batches single messages.
    """
    import pulsar

    client = pulsar.Client(
        f"pulsar://127.0.0.1:{PORT}", logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    )
    singles = client.create_producer(topic)
    for key, value in (
        ("c0", b"plain"),
        ("c1", b""),
        ("c2", b"to be deleted"),
        ("c2", None),
        (None, b"keyless"),
    ):
        singles.send(value, partition_key=key) if key is not None else singles.send(value)
    names = (
        pulsar.CompressionType.LZ4,
        pulsar.CompressionType.ZLib,
        pulsar.CompressionType.ZSTD,
        pulsar.CompressionType.SNAPPY,
    )
    for name in names:
        alone = client.create_producer(topic, compression_type=name)
        alone.send(
            f"alone {name}".encode() * 9, partition_key=f"alone-{name}", properties={"p": "q"}
        )
        many = client.create_producer(
            topic,
            compression_type=name,
            batching_enabled=True,
            batching_max_publish_delay_ms=60_000,
        )
        for n in range(4):
            many.send_async(
                f"batched {n}".encode() * 9,
                lambda *_: None,
                partition_key=f"c{n}",
                event_timestamp=n,
            )
        many.flush()
        many.send_async(b"a batch of one", lambda *_: None, partition_key=f"one-{name}")
        many.flush()
    client.close()


# ---------------------------------------------------------------- what no client sends


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _put(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _crc32c(data: bytes) -> int:
    import google_crc32c

    return int(google_crc32c.value(data))


def _single(key: bytes | None, size: int, more: bytes = b"") -> bytes:
    return (b"" if key is None else _put(2, key)) + _put(3, size) + more


def odd_frames() -> list[tuple[bytes, bytes, bool]]:
    """Unusual frames: metadata after its first three fields, payload, and whether there is a
    checksum.
    """
    batch = b""
    for key, value, more in (
        (b"k1", b"one", b"\x08\x01"),
        (b"k2", b"two", b""),
        (None, b"keyless", b""),
        (b"k1", b"three", b""),
    ):
        meta = _single(key, len(value), _put(99, b"not of today") if more else b"")
        batch += struct.pack(">I", len(meta)) + meta + value
    return [
        (_put(6, b"k0"), b"without a checksum", False),
        (_put(6, b"k1") + _put(98, 7) + _put(99, b"of tomorrow"), b"with unknown fields", True),
        (_put(6, b"k1") + _put(11, 4) + _put(99, b"of tomorrow"), batch, False),
        (_put(6, b"k5") + _put(8, 3) + _put(9, 100), b"alone, and no ZSTD frame", True),
        (_put(6, b"k6"), b"", False),
        (_put(6, b"k7"), b"the last", True),
    ]


def unreadable_frames(kind: str) -> list[tuple[bytes, bytes, bool]]:
    """A batch that no client can read, between two readable messages."""
    if kind == "short":
        broken = (
            _put(6, b"k1") + _put(11, 5),
            struct.pack(">I", 6) + _single(b"k1", 400) + b"no 400 bytes",
            True,
        )
    else:
        codec = _put(8, CODECS.index(kind)) + _put(9, 400)
        broken = (_put(6, b"k1") + codec + _put(11, 3), b"nothing that was ever compressed", True)
    return [(_put(6, b"k1"), b"before", True), broken, (_put(6, b"k2"), b"after", True)]


def send_frames(topic: str, frames: list[tuple[bytes, bytes, bool]]) -> None:
    """Send frames that a broker stores unchanged. It verifies only a checksum, if there is one."""

    def frame(kind: int, body: bytes, behind: bytes = b"") -> bytes:
        command = _put(1, kind) + _put(kind, body)
        whole = struct.pack(">I", len(command)) + command + behind
        return struct.pack(">I", len(whole)) + whole

    def answer(want: int) -> None:
        while True:
            (size,) = struct.unpack(">I", reader.read(4))
            data = reader.read(size)
            kind = data[5]
            if kind == 18:
                sock.sendall(frame(19, b""))
            elif kind == want:
                return
            elif kind in (7, 14) or data[4] != 8:
                raise SystemExit(f"the broker refused a frame: {data!r}")

    with (
        socket.create_connection(("127.0.0.1", PORT), timeout=30) as sock,
        sock.makefile("rb") as reader,
    ):
        sock.sendall(frame(2, _put(1, b"corpus") + _put(4, 19)))
        answer(3)
        sock.sendall(frame(23, _put(1, topic.encode()) + _put(2, 1)))
        answer(24)
        sock.sendall(frame(5, _put(1, topic.encode()) + _put(2, 1) + _put(3, 2)))
        answer(17)
        for n, (more, payload, is_checked) in enumerate(frames):
            meta = _put(1, b"odd") + _put(2, n) + _put(3, 1_700_000_000_000 + n) + more
            body = struct.pack(">I", len(meta)) + meta + payload
            if is_checked:
                body = b"\x0e\x01" + struct.pack(">I", _crc32c(body)) + body
            sock.sendall(frame(6, _put(1, 1) + _put(2, n), body))
            answer(7)


def event_shapes() -> list[dict[str, Any]]:
    def at(key: str, value: str | None, time_ms: int) -> dict[str, Any]:
        return keyed(key, value, eventTime=time_ms) if time_ms else keyed(key, value)

    return [
        alone(
            at("a", "1", 5),
            at("a", "2", 4),
            at("b", "1", 5),
            at("b", "2", 5),
            at("c", "1", 0),
            at("c", "2", 0),
        ),
        batch(at("a", "3", 5), at("b", "3", 5), at("d", "1", 7), at("d", "2", 6), at("c", "3", 0)),
        alone(
            at("e", "1", 9),
            at("e", None, 8),
            at("f", "1", 9),
            at("f", None, 9),
            at("f", "2", 1),
            {"value": "keyless"},
        ),
        batch(at("g", "1", 5), at("g", None, 5), at("g", "2", 4), at("h", "1", 3)),
    ]


# ---------------------------------------------------------------- the runs


def main(home_name: str, venv_name: str, *parts: str) -> None:
    home, venv = Path(home_name).absolute(), Path(venv_name).absolute()
    if not parts:
        shutil.rmtree(TARGET, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="lastwrite-corpus-", dir="/var/tmp") as folder:
        work = Path(folder)
        classes = work / "classes"
        source = Path(__file__).with_name("PulsarShapes.java")
        _run(
            [
                "javac",
                "-nowarn",
                "-proc:none",
                "-cp",
                f"{home}/classes:{home}/lib/*",
                "-d",
                str(classes),
                str(source),
            ]
        )
        mock = subprocess.Popen(
            [str(PEER / "s3mock.sh"), str(venv), str(S3_PORT), BUCKET],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert mock.stdout is not None
        assert mock.stdout.readline() == b"ready\n"
        try:
            for part in parts or ("shapes", "blocks", "killed", "direct"):
                cluster = Cluster(home, work / part, classes)
                if part == "shapes":
                    record_shapes(cluster, venv, work)
                elif part == "blocks":
                    record_blocks(cluster, venv, work)
                elif part == "killed":
                    record_killed(cluster)
                else:
                    record_direct(cluster)
        finally:
            os.killpg(mock.pid, signal.SIGTERM)
            mock.wait(30)
    (TARGET / "ORIGIN.md").write_text(
        f"""Written by Apache Pulsar 4.2.4 (BookKeeper 4.17.3, offloaders 4.0.8) on {time.strftime("%Y-%m-%d")}, by:

    python -m tests.corpus.make_pulsar HOME VENV

`make_pulsar.py` says what each folder is. Nothing was touched afterwards, save that files were packed with gzip where
their names say so; do not edit it, record it anew.
"""
    )


def record_shapes(cluster: Cluster, venv: Path, work: Path) -> None:
    shapes, odd, parts, events = (
        f"persistent://public/default/{name}" for name in ("shapes", "odd", "parts", "events")
    )
    in_files = "persistent://public/fs/files"
    rounds = [
        (shapes, "shapes"),
        (odd, "odd"),
        (f"{parts}-partition-1", "parts-partition-1"),
        (in_files, "files"),
    ]

    cluster.start(3, **SETTINGS)
    try:
        cluster.ask("namespace", "public/fs")
        cluster.ask(
            "offload-policies",
            "public/fs",
            "managedLedgerOffloadDriver=filesystem",
            f"fileSystemURI=file://{work}/filesystem",
            f"fileSystemProfilePath={PEER / 'hadoop-site.xml'}",
            f"offloadersDirectory={cluster.home / 'offloaders'}",
        )
        for topic in (shapes, odd, in_files):
            cluster.ask("create", topic)
        cluster.ask("create", parts, "--partitions", "2")
        cluster.send(shapes, *single_shapes(), {"unload": True}, *batch_shapes(), {"unload": True})
        send_by_cpp(shapes)
        cluster.send(shapes, *long_shapes())
        cluster.ask("unload", shapes)
        cluster.send(shapes, alone(keyed("k2", "in a ledger that stays open")))
        cluster.send(odd, alone(keyed("k0", "of a client of today")))
        send_frames(odd, odd_frames())
        cluster.send(
            parts,
            alone(*(keyed(f"p{n % 7}", f"{n}") for n in range(20))),
            batch(*(keyed(f"p{n % 9}", f"b{n}") for n in range(20)), codec="LZ4"),
        )
        cluster.send(in_files, *single_shapes(), {"unload": True}, *batch_shapes()[:5])
        for topic in (odd, f"{parts}-partition-1", in_files):
            cluster.ask("unload", topic)
        for topic, name in rounds:
            cluster.ask("offload", topic)
            cluster.keep_round(topic, name, 1)
        _keep(
            TARGET / "topics" / "unreadable.jsonl",
            [try_unreadable(cluster, kind) for kind in UNREADABLE],
        )
    finally:
        cluster.stop()

    cluster.start(3, **SETTINGS, brokerEntryMetadataInterceptors=INTERCEPTORS)
    try:
        cluster.send(shapes, *later_shapes())
        cluster.send(odd, alone(keyed("k5", "new"), keyed("k6", "x")))
        cluster.send(in_files, alone(keyed("k1", "with broker metadata"), keyed("b1", None)))
        cluster.send(
            parts,
            {"messages": [keyed(f"p{n}", None if n % 3 else "second round") for n in range(9)]},
        )
        cluster.ask("unload", shapes)
        cluster.send(shapes, *open_shapes())
        for topic, name in rounds:
            cluster.ask("offload", topic)
            cluster.keep_round(topic, name, 2)
    finally:
        cluster.stop()

    cluster.start(
        3,
        **SETTINGS,
        brokerEntryMetadataInterceptors=INTERCEPTORS,
        exposingBrokerEntryMetadataToClientEnabled="true",
        topicCompactionRetainNullKey="true",
        compactionServiceFactoryClassName=EVENT_TIME,
        managedLedgerInfoCompressionType="LZ4",
        managedCursorInfoCompressionType="ZSTD",
    )
    try:
        cluster.ask("create", events)
        cluster.send(events, *event_shapes())
        cluster.keep_round(events, "events", 1)
        cluster.send(
            events,
            {
                "messages": [
                    keyed("a", "4", eventTime=1),
                    keyed("f", "3", eventTime=2),
                    keyed("h", None),
                ]
            },
        )
        cluster.ask("unload", events)
        cluster.keep_round(events, "events", 2)
        for topic, name in [*rounds, (events, "events")]:
            cluster.keep_raw(topic, name)
    finally:
        cluster.stop()

    _run(
        [
            str(venv / "bin" / "python"),
            str(PEER / "s3get.py"),
            f"http://127.0.0.1:{S3_PORT}",
            BUCKET,
            str(TARGET / "offloaded"),
        ]
    )
    shutil.copytree(work / "filesystem", TARGET / "filesystem")
    for number in range(3):
        _pack_logs(
            cluster.data / f"bookkeeper{number}" / "current",
            TARGET / "bookies" / str(number) / "current",
        )


def try_unreadable(cluster: Cluster, kind: str) -> dict[str, Any]:
    """Record what the real compactor does with a batch that it cannot read."""
    topic = f"persistent://public/default/unreadable-{kind}"
    cluster.ask("create", topic)
    send_frames(topic, unreadable_frames(kind))
    [done] = cluster.ask("compact", topic)
    found = {
        "kind": kind,
        "status": done["status"],
        "error": done.get("error"),
        "raw": cluster.ask("dump-topic", topic),
    }
    return found | {
        "compacted": cluster.ask("dump-compacted", topic) if done["status"] == "SUCCESS" else None
    }


def _pack_logs(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.suffix in (".log", ".txn"):
            (target / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        elif path.is_file() and path.name in ("lastId", "VERSION", "lastMark"):
            shutil.copy(path, target)


def record_blocks(cluster: Cluster, venv: Path, work: Path) -> None:
    topic = "persistent://public/default/blocks"
    cluster.start(
        1,
        **SETTINGS
        | {
            f"managedLedgerDefault{name}": "1"
            for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")
        },
    )
    try:
        cluster.ask("create", topic)
        text = "a long row of the same words " * 24_000
        cluster.send(topic, {"messages": [keyed(f"k{n % 5}", f"{n} {text}") for n in range(9)]})
        cluster.ask("unload", topic)
        cluster.ask("offload", topic)
    finally:
        cluster.stop()
    bucket = work / "bucket"
    _run(
        [
            str(venv / "bin" / "python"),
            str(PEER / "s3get.py"),
            f"http://127.0.0.1:{S3_PORT}",
            BUCKET,
            str(bucket),
        ]
    )
    (TARGET / "blocks").mkdir()
    for path in sorted(bucket.iterdir()):
        if (TARGET / "offloaded" / path.name).exists():
            continue
        if path.name.endswith(("-index", ".json")):
            shutil.copy(path, TARGET / "blocks")
        else:
            (TARGET / "blocks" / f"{path.name}.gz").write_bytes(
                gzip.compress(path.read_bytes(), mtime=0)
            )


def record_killed(cluster: Cluster) -> None:
    topic = "persistent://public/default/killed"
    one = {
        f"managedLedgerDefault{name}": "1" for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")
    }
    cluster.start(1, **SETTINGS | one | {"flushInterval": "600000"})
    try:
        cluster.ask("create", topic)
        cluster.send(
            topic, {"messages": [keyed(f"k{n % 3}", f"only in the journal {n}") for n in range(6)]}
        )
        [state] = cluster.ask("ledgers", topic)
    finally:
        cluster.stop(signal.SIGKILL)
    target = TARGET / "killed"
    target.mkdir()
    (target / "managed-ledger").write_bytes(base64.b64decode(state["node"]))
    _pack_logs(cluster.data / "bookkeeper0" / "current", target / "0" / "current")


def record_direct(cluster: Cluster) -> None:
    topic = "persistent://public/default/direct"
    direct = {"dbStorage_directIOEntryLogger": "true"}
    direct |= {
        f"dbStorage_directIOEntryLoggerTotal{kind}BufferSizeMb": "8" for kind in ("Write", "Read")
    }
    one = {
        f"managedLedgerDefault{name}": "1" for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")
    }
    shutil.rmtree(TARGET / "direct", ignore_errors=True)
    shutil.rmtree(TARGET / "topics" / "direct", ignore_errors=True)
    cluster.start(1, **SETTINGS | one | direct)
    try:
        cluster.ask("create", topic)
        cluster.send(topic, alone(*(keyed(f"k{n % 7}", f"first {n} " * 20) for n in range(30))))
        cluster.ask("unload", topic)
        cluster.send(topic, alone(*(keyed(f"k{n % 9}", f"then {n} " * 20) for n in range(30))))
        cluster.keep_round(topic, "direct", 1, keeps_ledgers=False)
        cluster.keep_raw(topic, "direct")
    finally:
        cluster.stop()
    _pack_logs(cluster.data / "bookkeeper0" / "current", TARGET / "direct" / "0" / "current")


if __name__ == "__main__":
    main(*sys.argv[1:])
