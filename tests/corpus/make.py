"""Record the corpus: log directories of a real broker, and the records that a consumer read.

    # from the project's root; needs Java 17 and mvn
    .venv/bin/python -m tests.corpus.make

Writes three log roots, each like a broker's ``log.dirs``, to ``tests/corpus/kafka-4.4.0/<state>/``:

stopped   after an orderly shutdown; also has ``__cluster_metadata-0`` with the topics' settings
crashed   the broker was killed: preallocated indexes, and no clean-shutdown file
cleaned   like ``stopped``, after the broker's own cleaner and further appends

Beside each root, ``<state>.jsonl.gz`` has one line for each consumed record, with key and value in
base64. ``ORIGIN.md`` has the versions. A topic's name shows which program compressed its batches:
``client-*`` librdkafka, ``broker-*`` the broker's Java libraries, whose framing differs. The
broker's other internal topics and the indexes of ``__cluster_metadata-0`` are left out because of
their size.
"""

from __future__ import annotations

import base64
import gzip
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka

from tests.support.kafka.broker import VERSION, Broker, kafka_home
from tests.support.kafka.clients import (
    CODECS,
    Seen,
    Sent,
    bounds,
    consume,
    create_topic,
    produce,
    set_topic,
)

HERE = Path(__file__).parent
TARGET = HERE / f"kafka-{VERSION}"
START_MS = 1_700_000_000_000
SMALL = {  # small segments and dense indexes, so that a few bytes contain many of both
    "cleanup.policy": "compact",
    "internal.segment.bytes": "1500",
    "segment.index.bytes": "1024",
    "index.interval.bytes": "200",
    "delete.retention.ms": "0",
}
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def events(seed: int, count: int = 60) -> list[Sent]:
    """Updates, deletes, headers, and empty and unusual keys. Timestamps mostly rise."""
    rng = random.Random(seed)
    keys = [f"user-{n}".encode() for n in range(12)] + [b"", b"\x00\xff\xfe", "schlüssel".encode()]
    sent = []
    for n in range(count):
        headers: list[tuple[str, bytes | None]] = []
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            headers.append(
                (rng.choice(["trace", "é", ""]), rng.choice([None, b"", rng.randbytes(4)]))
            )
        words = " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 9))).encode()
        value = None if rng.random() < 0.15 else b"" if rng.random() < 0.05 else words
        sent.append(
            Sent(
                rng.choice(keys),
                value,
                START_MS + n * 1000 + rng.choice([0, 0, -5000]),
                tuple(headers),
            )
        )
    return sent


def fill(broker: Broker) -> list[str]:
    """Write to all topics. Returns their names."""
    topics = []

    def topic(name: str, **settings: str) -> str:
        topics.append(name)
        create_topic(
            broker, name, SMALL | {key.replace("_", "."): value for key, value in settings.items()}
        )
        return name

    for codec in CODECS:
        produce(broker, topic(f"client-{codec}"), events(1), codec=codec)
    for codec in CODECS[1:]:
        produce(broker, topic(f"broker-{codec}", compression_type=codec), events(1))
    produce(broker, topic("append-time", message_timestamp_type="LogAppendTime"), events(2, 40))
    keyless = topic("keyless", cleanup_policy="delete", retention_ms="-1")
    produce(
        broker,
        keyless,
        [sent._replace(key=None) if n % 3 == 0 else sent for n, sent in enumerate(events(3, 40))],
    )
    set_topic(broker, keyless, {"cleanup.policy": "compact"})
    topic("empty")
    produce(broker, topic("idempotent"), events(4, 30), settings={"enable.idempotence": True})
    in_transaction: dict[str, str | bool] = {
        "enable.idempotence": True,
        "transactional.id": "corpus",
    }
    produce(broker, topic("transactional"), events(5, 30), settings=in_transaction)
    return topics


def record(
    state: str, topics: list[str], broker: Broker, end: Callable[[], None], *more: str
) -> None:
    """Save the records that a consumer reads, end the broker, and keep the topics' folders and
    ``more``.
    """
    lines = []
    for topic in topics:
        lines += [
            line(topic, seen) for seen in consume(broker, topic, start=bounds(broker, topic)[0])
        ]
    end()
    kept = {f"{topic}-0" for topic in topics} | set(more)

    def left_out(folder: str, names: list[str]) -> list[str]:
        if Path(folder) == broker.data:
            return [name for name in names if (broker.data / name).is_dir() and name not in kept]
        return [name for name in names if "__cluster_metadata" in folder and name.endswith("index")]

    shutil.copytree(broker.data, TARGET / state, ignore=left_out)
    (TARGET / f"{state}.jsonl.gz").write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def line(topic: str, seen: Seen) -> str:
    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    return (
        json.dumps(
            {
                "topic": topic,
                "offset": seen.offset,
                "timestamp": seen.timestamp_ms,
                "timestamp_type": "create" if seen.is_create_time else "append",
                "key": text(seen.key),
                "value": text(seen.value),
                "headers": [[name, text(value)] for name, value in seen.headers],
            }
        )
        + "\n"
    )


def wait_until_cleaned(broker: Broker, topics: list[str], seconds: float = 60) -> None:
    """Wait until the broker's cleaner has a checkpoint for each of the topics."""
    deadline = time.monotonic() + seconds
    missing = set(topics)
    while missing:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not cleaned after {seconds} s: {missing}")
        time.sleep(0.2)
        text = (broker.data / "cleaner-offset-checkpoint").read_text()
        missing -= {entry.split(" ")[0] for entry in text.splitlines() if not entry.endswith(" 0")}


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    home = kafka_home()
    with tempfile.TemporaryDirectory(prefix="lastwrite-corpus-") as work:
        broker = Broker(home, Path(work) / "data").start()
        topics = fill(broker)
        record("stopped", topics, broker, broker.stop, "__cluster_metadata-0")

        broker.start()
        torn = ["client-none", "client-zstd", "broker-lz4", "empty"]
        for topic in torn[:3]:
            produce(broker, topic, events(6, 10))
        record("crashed", torn, broker, broker.kill)

        dirty = [topic for topic in topics if topic not in ("empty", "transactional", "idempotent")]
        broker = Broker(home, broker.data, {"log.cleaner.backoff.ms": "100"}).start()
        wait_until_cleaned(broker, dirty)
        broker.stop()
        broker = Broker(home, broker.data).start()
        for topic in dirty:
            produce(broker, topic, events(7, 10))
        record("cleaned", dirty, broker, broker.stop)
    (TARGET / "ORIGIN.md").write_text(
        f"Written by Apache Kafka {VERSION}, one KRaft broker with the settings of `tests/support/kafka/broker.py`,\n"
        f"and confluent-kafka {confluent_kafka.version()} with librdkafka {confluent_kafka.libversion()[0]},\n"
        f"on {time.strftime('%Y-%m-%d', time.gmtime())} by:\n\n    python -m tests.corpus.make\n\n"
        "`make.py` says what each folder is. Nothing in it was touched afterwards; do not edit it, record it anew.\n"
    )


if __name__ == "__main__":
    main()
