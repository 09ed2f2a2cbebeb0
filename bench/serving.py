"""``lastwrite serve`` compared with Kafka's broker, on the same files:  python -m bench.serving

A broker writes a topic of 1 kB records. Lastwrite and the broker serve links to its segments. The
rows are librdkafka's records a second; fetches of 1 MiB and 16 MiB by a raw client, with the
server's processor seconds for a GB; the same with TLS; fetches of a batch of 1 kB; a thousand long
polls without new records; the delay from a fetch into an archive to its waiting reader; and the
start with many partitions. Figures are medians of the repeats, and the sides take turns. On a busy
machine only processor seconds are comparable, and 720 MB take a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Producer, TopicPartition

import lastwrite
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from tests.support.jars import free_ports
from tests.support.kafka.broker import Broker, kafka_home
from tests.support.kafka.clients import create_topic
from tests.support.kafka.logs import write_segment
from tests.support.sockets import receive_into, received

TOPIC, SMALL = "bench", "small"
SMALL_RECORDS = 20_000
RECORD_BYTES = 1000
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Side(NamedTuple):
    """A server: its process, and its addresses without and with TLS."""

    name: str
    pid: int
    address: str
    tls: str

    def cpu_s(self) -> float:
        """Its processor seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE


class Raw:
    """A connection that fetches records and discards them."""

    def __init__(self, address: str, is_tls: bool = False, topic: str = TOPIC) -> None:
        self._topic = topic
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self._socket = context.wrap_socket(self._socket)
        self._room = memoryview(bytearray(1 << 20))

    def ask(self, offset: int, most: int, wait_ms: int = 0) -> None:
        """Send a Fetch request of version 4 for partition 0."""
        body = struct.pack(">hhihiiiib", 1, 4, 1, -1, -1, wait_ms, 1, most, 0)
        body += struct.pack(">ih", 1, len(self._topic)) + self._topic.encode()
        body += struct.pack(">iiqi", 1, 0, offset, most)
        self._socket.sendall(struct.pack(">i", len(body)) + body)

    def heard(self) -> tuple[int, int]:
        """Receive the answer. Returns the bytes of complete batches, and the next offset."""
        (size,) = struct.unpack(">i", received(self._socket, 4))
        if size > len(self._room):
            self._room = memoryview(bytearray(size))
        receive_into(self._socket, self._room[:size])
        begin = 4 + 4 + 4 + 2 + len(self._topic) + 4 + 4 + 2 + 8 + 8 + 4 + 4
        at, following = begin, -1
        while size - at >= 61:
            base, length = struct.unpack_from(">qi", self._room, at)
            if at + length + 12 > size:
                break
            following = base + struct.unpack_from(">i", self._room, at + 23)[0] + 1
            at += length + 12
        return at - begin, following

    def close(self) -> None:
        self._socket.close()


# ---------------------------------------------------------------------- rows


def librdkafka(side: Side, end: int) -> dict[str, float]:
    """Read all records with librdkafka. Returns records a second and processor seconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": side.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 1_000_000,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    cpu, begin, found, size = side.cpu_s(), time.perf_counter(), 0, 0
    while found < end:
        for message in consumer.consume(10_000, 10.0):
            found += 1
            size += len(message.value() or b"")
    seconds = time.perf_counter() - begin
    consumer.close()
    return {"MB/s": size / seconds / 1e6, "server s/GB": (side.cpu_s() - cpu) / size * 1e9}


def raw(side: Side, end: int, most: int, *, is_tls: bool = False) -> dict[str, float]:
    """Read the whole log in fetches of ``most`` bytes."""
    client = Raw(side.tls if is_tls else side.address, is_tls)
    cpu, begin, offset, size = side.cpu_s(), time.perf_counter(), 0, 0
    while offset < end:
        client.ask(offset, most)
        got, following = client.heard()
        size += got
        if not got:
            raise RuntimeError(f"{side.name} gives nothing at offset {offset}")
        offset = following
    seconds = time.perf_counter() - begin
    client.close()
    return {"GB/s": size / seconds / 1e9, "server s/GB": (side.cpu_s() - cpu) / size * 1e9}


class Compiled(Broker):
    """A broker with both compiler tiers, as in production. Tests only use the first."""

    def _java(self, *arguments: str) -> Sequence[str]:
        return [each for each in super()._java(*arguments) if "TieredStopAtLevel" not in each]


def small(side: Side, seconds: float) -> dict[str, float]:
    """Fetch a batch of one record, again and again."""
    client = Raw(side.address, topic=SMALL)
    cpu, begin, count = side.cpu_s(), time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        client.ask((count * 7919) % SMALL_RECORDS, 1)
        client.heard()
        count += 1
    took = time.perf_counter() - begin
    client.close()
    return {"a second": count / took, "a server's second": count / (side.cpu_s() - cpu)}


def idle(side: Side, end: int, polls: int, seconds: float) -> dict[str, float]:
    """Hold long polls at the log end."""
    before = side.resident_bytes()
    clients = [Raw(side.address) for _ in range(polls)]
    for client in clients:
        client.ask(end, 1 << 20, 60_000)
    time.sleep(2)
    cpu, begin = side.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    share = (side.cpu_s() - cpu) / (time.perf_counter() - begin)
    grown = side.resident_bytes() - before
    for client in clients:
        client.close()
    return {"% of a core": 100 * share, "MB more": grown / 1e6, "MB": side.resident_bytes() / 1e6}


def arrival(folder: Path, times: int) -> dict[str, float]:
    """Milliseconds from a fetch into an archive until a waiting reader has the batch.

    The begin is the last modification time of the archive's files, with a resolution of 4 ms. Only
    Lastwrite is measured.
    """
    root, archive, heard_s = folder / "grows", folder / "archive", []

    def append(offset: int) -> float:
        record = Record(offset, 1_700_000_000_000, b"key", b"v" * RECORD_BYTES)
        write_segment(root / f"{TOPIC}-0", offset, [encode_batch([record])])
        lastwrite.fetch([str(root)], to=str(archive), include_active=True)
        return max(each.stat().st_mtime for each in archive.rglob("*"))

    append(0)
    with serving(archive, folder / "arrival-state", {}) as (_, address):
        client = Raw(address)
        for offset in range(1, times + 1):
            client.ask(offset, 1 << 20, 60_000)
            with ThreadPoolExecutor(1) as waiting:
                heard = waiting.submit(lambda: (client.heard(), time.time()))
                written_s = append(offset)
                (_, following), now_s = heard.result(60)
            assert following == offset + 1
            heard_s.append(now_s - written_s)
        client.close()
    return {
        "ms": 1000 * statistics.median(heard_s),
        "ms, p99": 1000 * statistics.quantiles(heard_s, n=100)[98],
    }


def start(folder: Path, source: Path, partitions: int) -> dict[str, float]:
    """Seconds until the server has listed all topics. Only Lastwrite is measured."""
    root = folder / "many"
    segments = [each for each in source.iterdir() if each.is_file()]
    for number in range(partitions):
        made = root / f"topic-{number // 10}-{number % 10}"
        made.mkdir(parents=True, exist_ok=True)
        for each in segments:
            target = made / each.name
            if not target.exists():
                os.link(each, target)
    begin = time.perf_counter()
    with serving(root, folder / "many-state", {}) as (pid, address):
        listening = time.perf_counter() - begin
        consumer = Consumer({"bootstrap.servers": address, "group.id": "x"})
        listed = consumer.list_topics(timeout=120)
        assert sum(len(each.partitions) for each in listed.topics.values()) == partitions
        consumer.close()
        told = time.perf_counter() - begin
        cpu = Side("lastwrite", pid, address, "").cpu_s()
    return {"s to listen": listening, "s to all topics": told, "server s": cpu}


# ---------------------------------------------------------------------- both servers


@contextmanager
def serving(root: Path, state: Path, config: dict[str, str]) -> Iterator[tuple[int, str]]:
    """Run ``lastwrite serve`` in a process of its own. Returns its process id and address."""
    program = [sys.executable, "-m", "lastwrite.cli", "serve", str(root), "--json"]
    settings = {"max.connections": "20000", **config}
    pairs = [part for each in settings.items() for part in ("--config", "=".join(each))]
    command = [*program, "--listen", "127.0.0.1:0", "--state", str(state), *pairs]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            text = ""
            while "}" not in text:
                line = process.stdout.readline()
                if not line:
                    raise RuntimeError(f"serve ended with {process.wait()}")
                text += line
            yield process.pid, json.loads(text)["address"]
        finally:
            process.terminate()
            process.wait()


def fill(broker: Broker, topic: str, count: int, batch_records: int) -> None:
    """Append ``count`` records of random bytes, which do not compress."""
    create_topic(broker, topic, {"segment.bytes": str(1 << 28)})
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "linger.ms": 50,
            "batch.num.messages": batch_records,
            "batch.size": 10_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "acks": 1,
        }
    )
    noise = os.urandom(1 << 20)
    for number in range(count):
        at = number * 61 % ((1 << 20) - RECORD_BYTES)
        while True:
            try:
                producer.produce(topic, noise[at : at + RECORD_BYTES], partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


def certificate(folder: Path) -> tuple[Path, Path]:
    line = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=bench -keyout key.pem -out cert.pem"
    subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
    both = folder / "both.pem"
    both.write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return both, folder / "both.pem"


@contextmanager
def sides(folder: Path, size_bytes: int) -> Iterator[tuple[list[Side], int, Path]]:
    """Both servers on links of the same segments, the record count, and a partition's folder."""
    both, _ = certificate(folder)
    port = free_ports(1)[0]
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(both),
        "max.message.bytes": "20000000",
        "message.max.bytes": "20000000",
    }
    data = folder / "data"
    broker = Compiled(kafka_home(), data, settings, listeners={"TLS": ("SSL", port, port)})
    with ExitStack() as held:
        held.callback(broker.kill)
        broker.start()
        count = size_bytes // RECORD_BYTES
        fill(broker, TOPIC, count, 500)
        fill(broker, SMALL, SMALL_RECORDS, 1)
        broker.stop()
        copy = folder / "links"
        shutil.copytree(data, copy, copy_function=os.link)
        for name in (".lock", ".kafka_cleanshutdown"):
            (copy / name).unlink(missing_ok=True)
        broker.start()
        pid = broker._process.pid  # type: ignore[union-attr]
        theirs = Side("broker", pid, broker.address, f"127.0.0.1:{port}")
        plain_pid, plain = held.enter_context(serving(copy, folder / "state", {}))
        tls = {"ssl.certificate.location": str(both)}
        tls_pid, secured = held.enter_context(serving(copy, folder / "state-tls", tls))
        ours = Side("lastwrite", plain_pid, plain, "")
        in_tls = Side("lastwrite in TLS", tls_pid, "", secured)
        yield [theirs, ours, in_tls], count, copy / f"{TOPIC}-0"


def measured(work: Callable[[], dict[str, float]], repeats: int) -> dict[str, float]:
    """The median of each figure. A first run is a warm-up."""
    work()
    found = [work() for _ in range(repeats)]
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.serving", description=__doc__)
    parser.add_argument("--size", type=int, default=720, help="of the topic, in MB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--polls", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of small fetches, and idle")
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    figures: dict[str, dict[str, dict[str, float]]] = {}

    def row(name: str, side: str, found: dict[str, Any]) -> None:
        figures.setdefault(name, {})[side] = found
        said = ", ".join(f"{value:,.3g} {unit}" for unit, value in found.items())
        print(f"{name:<22} {side:<18} {said}", flush=True)

    with tempfile.TemporaryDirectory(prefix="serving-") as made:
        folder = Path(made)
        with sides(folder, given.size * 1_000_000) as ((theirs, ours, in_tls), end, partition):
            again = given.repeats
            for side in (theirs, ours):
                row("librdkafka", side.name, measured(lambda s=side: librdkafka(s, end), again))
            for most in (1 << 20, 16 << 20):
                for side in (theirs, ours):
                    found = measured(lambda s=side, m=most: raw(s, end, m), again)
                    row(f"raw, {most >> 20} MiB", side.name, found)
            for side in (theirs, in_tls):
                found = measured(lambda s=side: raw(s, end, 1 << 20, is_tls=True), again)
                row("TLS, 1 MiB", side.name, found)
            for side in (theirs, ours):
                row(
                    "small fetches",
                    side.name,
                    measured(lambda s=side: small(s, given.seconds), again),
                )
            for side in (theirs, ours):
                row("idle long polls", side.name, idle(side, end, given.polls, given.seconds))
            row("arrival", "lastwrite", arrival(folder, 200))
            few = folder / "few-0"
            few.mkdir()
            _cut(partition, few)
        row("start", "lastwrite", start(folder, few, given.partitions))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1))
    return 0


def _cut(source: Path, target: Path) -> None:
    """Write a partition with the first batch of another one, and empty indexes."""
    with (source / f"{0:020}.log").open("rb") as file:
        length = int.from_bytes(file.read(12)[8:], "big") + 12
        file.seek(0)
        (target / f"{0:020}.log").write_bytes(file.read(length))
    for name in ("index", "timeindex"):
        (target / f"{0:020}.{name}").write_bytes(b"")


if __name__ == "__main__":
    sys.exit(main())
