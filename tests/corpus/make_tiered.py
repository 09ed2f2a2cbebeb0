"""Record the corpus of tiered segments: a broker's tier and log root, and the consumed records.

    # from the project's root; needs a JDK and mvn
    .venv/bin/python -m tests.corpus.make_tiered

Writes ``tests/corpus/tiered/``:

tier               the folders of ``LocalTieredStorage``
local              the broker's log root after an orderly shutdown, with the same topics and
                   ``__remote_log_metadata-0``
committed.jsonl.gz one line for each record that a consumer got with ``read_committed``
plain.jsonl.gz     one line for each record that a consumer got with ``read_uncommitted``

The topics are:

orders             plain batches of all codecs, and committed and aborted transactions; the broker
                   restarted once; records below offset 40 were deleted
forked             the broker lost the end of its log after copying it, as by an unclean election,
                   and then appended: two histories overlap in the tier
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
from pathlib import Path

import confluent_kafka
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.corpus.make import events, line
from tests.support.kafka.broker import VERSION, Broker
from tests.support.kafka.clients import CODECS, bounds, consume, create_topic, produce
from tests.support.kafka.tiered import TIERED, tier_of, tiered_broker, wait_until_copied

TARGET = Path(__file__).parent / "tiered"
TOPICS = ("orders", "forked")
LOG_START = 40


def transactions(broker: Broker, topic: str, name: str, seed: int, count: int = 6) -> None:
    """Transactions of ten records each, every other one aborted."""
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": name,
            "linger.ms": 20,
            "batch.num.messages": 4,
        }
    )
    producer.init_transactions(60)
    for number in range(count):
        producer.begin_transaction()
        for sent in events(seed + number, 10):
            producer.produce(topic, key=sent.key, value=sent.value, timestamp=sent.timestamp_ms)
        producer.flush(60)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)


def set_checkpoint(root: Path, name: str, partition: str, offset: int) -> None:
    """Change the offset of one partition in a checkpoint file of a log root."""
    version, count, *rows = (root / name).read_text().splitlines()
    topic, number = partition.rsplit("-", 1)
    rows = [
        f"{topic} {number} {offset}" if row.startswith(f"{topic} {number} ") else row
        for row in rows
    ]
    (root / name).write_text("\n".join([version, count, *rows]) + "\n")


def lose_the_end(broker: Broker, aside: Path, end: int) -> None:
    """Put back an older copy of ``forked-0``, which ends at ``end``."""
    folder = broker.data / "forked-0"
    shutil.rmtree(folder)
    shutil.copytree(aside, folder)
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        set_checkpoint(broker.data, name, "forked-0", end)


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="lastwrite-tiered-") as work:
        tier, aside = Path(work) / "tier", Path(work) / "aside"
        broker = tiered_broker(Path(work) / "data", tier)
        broker.start()
        for topic in TOPICS:
            create_topic(broker, topic, TIERED)
        for n, codec in enumerate(CODECS):
            produce(broker, "orders", events(10 + n, 40), codec=codec)
        transactions(broker, "orders", "first", 20)
        produce(broker, "forked", events(30, 120))
        wait_until_copied(broker.data, "orders-0")
        wait_until_copied(broker.data, "forked-0")
        broker.stop()
        shutil.copytree(broker.data / "forked-0", aside)

        broker.start()
        end = bounds(broker, "forked")[1]
        produce(broker, "forked", events(31, 120))
        transactions(broker, "orders", "second", 40)
        produce(broker, "orders", events(50, 60), settings={"enable.idempotence": True})
        wait_until_copied(broker.data, "orders-0")
        wait_until_copied(broker.data, "forked-0")
        broker.stop()
        lose_the_end(broker, aside, end)

        broker.start()
        produce(broker, "forked", events(32, 200))
        produce(broker, "orders", events(51, 20))
        admin = AdminClient({"bootstrap.servers": broker.address})
        for done in admin.delete_records([TopicPartition("orders", 0, LOG_START)]).values():
            done.result(30)
        wait_until_copied(broker.data, "orders-0")
        wait_until_copied(broker.data, "forked-0")
        for isolation, name in (("read_committed", "committed"), ("read_uncommitted", "plain")):
            lines = [
                line(topic, seen)
                for topic in TOPICS
                for seen in consume(
                    broker, topic, start=bounds(broker, topic)[0], isolation=isolation
                )
            ]
            TARGET.mkdir(exist_ok=True)
            content = gzip.compress("".join(lines).encode(), mtime=0)
            (TARGET / f"{name}.jsonl.gz").write_bytes(content)
        broker.stop()
        kept = {*(f"{topic}-0" for topic in TOPICS), "__remote_log_metadata-0"}

        def left_out(folder: str, names: list[str]) -> list[str]:
            if Path(folder) != broker.data:
                return []
            return [name for name in names if (broker.data / name).is_dir() and name not in kept]

        shutil.copytree(broker.data, TARGET / "local", ignore=left_out)
        shutil.copytree(tier_of(tier), TARGET / "tier")
    (TARGET / "ORIGIN.md").write_text(
        f"Written by Apache Kafka {VERSION}, one KRaft broker with `LocalTieredStorage` of\n"
        f"kafka-storage 4.3.1, and confluent-kafka {confluent_kafka.version()}, on "
        f"{time.strftime('%Y-%m-%d', time.gmtime())} by:\n\n"
        "    python -m tests.corpus.make_tiered\n\n"
        "`make_tiered.py` says what each folder is. Nothing in it was touched afterwards; do not\n"
        "edit it, record it anew.\n"
    )


if __name__ == "__main__":
    main()
