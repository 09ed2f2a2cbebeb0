"""Record Kafka's own compacted topics of a real broker: ``tests/corpus/internal-topics/``.

    # from the project's root; needs Java 17 and mvn
    .venv/bin/python -m tests.corpus.make_internal

``__consumer_offsets-0`` and ``__transaction_state-0`` are copied after an orderly shutdown. They
have groups of both protocols, subscribed by name and by pattern, a static member and a deleted
group. They also have committed and aborted transactions, one of them with a group's offsets.
``CoordinatorRecords.java`` writes ``coordinator-records.jsonl.gz`` beside them: every record type
in every version as Kafka's own classes write it, with the field names of Kafka's converters.
"""

from __future__ import annotations

import gzip
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import confluent_kafka

from tests.support.kafka.broker import VERSION, Broker, kafka_home
from tests.support.kafka.clients import create_topic
from tests.support.kafka.groups import forget, join_and_commit, transact

TARGET = Path(__file__).with_name("internal-topics")
KEPT = ("__consumer_offsets-0", "__transaction_state-0")


def fill(broker: Broker) -> None:
    """Run the groups and producers. The tests rely on these actions."""
    create_topic(broker, "orders", {})
    create_topic(broker, "payments", {})
    join_and_commit(
        broker, "classic", [{"orders": 5, "payments": 7}, {"orders": 6}], metadata="härter"
    )
    join_and_commit(broker, "static", [{"orders": 1}], instance="first")
    join_and_commit(broker, "new", [{"orders": 11, "payments": 12}], protocol="consumer")
    join_and_commit(broker, "pattern", [{"orders": 21}], protocol="consumer", subscribe="^ord.*")
    join_and_commit(broker, "gone", [{"orders": 99}])
    forget(broker, "gone")
    transact(
        broker,
        "exactly-once",
        "orders",
        [(True, [b"a", b"b"]), (False, [b"c"])],
        group="classic",
        offset=30,
    )
    transact(broker, "aborted", "payments", [(False, [b"d"])])


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    home = kafka_home()
    with tempfile.TemporaryDirectory(prefix="lastwrite-corpus-") as work:
        with Broker(home, Path(work) / "data") as broker:
            fill(broker)
        for folder in KEPT:
            shutil.copytree(broker.data / folder, TARGET / folder)
    program = Path(__file__).with_name("CoordinatorRecords.java")
    lines = subprocess.run(
        ["java", "-cp", f"{home}/lib/*", str(program)], check=True, stdout=subprocess.PIPE
    ).stdout
    (TARGET / "coordinator-records.jsonl.gz").write_bytes(gzip.compress(lines, 9, mtime=0))
    (TARGET / "ORIGIN.md").write_text(
        f"Written by Apache Kafka {VERSION}, one KRaft broker with the settings of `tests/support/kafka/broker.py`,\n"
        f"and confluent-kafka {confluent_kafka.version()} with librdkafka {confluent_kafka.libversion()[0]},\n"
        f"on {time.strftime('%Y-%m-%d', time.gmtime())} by:\n\n    python -m tests.corpus.make_internal\n\n"
        "`make_internal.py` says what each file is. Do not edit it, record it anew.\n"
    )


if __name__ == "__main__":
    main()
