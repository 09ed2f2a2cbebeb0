"""Fetching a topic from a live broker, compared with librdkafka's consumer, which only counts.

    python -m bench.fetching [--megabytes N] [--repeats N] [--json FILE]

One real broker on this machine has one partition of 1 kB records in batches of 500. The sides take
turns, each in a process of its own, which measures its time after its imports:

    lastwrite    ``lastwrite.fetch`` into a folder, warm: a small topic was fetched before
    librdkafka   ``confluent_kafka.Consumer.consume`` up to the end, without storing records
    cp           the partition's ``.log`` files, copied and synced
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.support.kafka.broker import Broker, kafka_home
from tests.support.kafka.clients import create_topic

_TIMED = """
import json, resource, shutil, sys, time
{imports}
address, folder = sys.argv[1:]
begun, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
{work}
seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
print(json.dumps({{"seconds": seconds, "cpu": cpu}}))
"""
_OURS = _TIMED.format(
    imports="""import lastwrite
address, folder = sys.argv[1:]
lastwrite.fetch([f"kafka://{address}"], folder + "/warm", topic="warm")""",
    work="""done = lastwrite.fetch([f"kafka://{address}"], folder + "/archive", topic="large")
assert done.exit_status == 0 and done.partitions[0].segments""",
)
_THEIRS = _TIMED.format(
    imports="from confluent_kafka import Consumer, TopicPartition",
    work="""consumer = Consumer({"bootstrap.servers": address, "group.id": "bench"})
end, at = consumer.get_watermark_offsets(TopicPartition("large", 0))[1], 0
consumer.assign([TopicPartition("large", 0, 0)])
while at < end:
    at += len(consumer.consume(10_000, 1.0))
consumer.close()""",
)
_CP = _TIMED.format(
    imports="import os",
    work="""shutil.copytree(address, folder + "/copy")
os.sync()""",
)


def fill(broker: Broker, topic: str, megabytes: int) -> None:
    """Append records of 1 kB."""
    from confluent_kafka import Producer

    create_topic(broker, topic, {})
    client = Producer(
        {
            "bootstrap.servers": broker.address,
            "batch.num.messages": 500,
            "batch.size": 1_000_000,
            "linger.ms": 20,
            "queue.buffering.max.messages": 20_000,
        }
    )
    value = random.Random(1).randbytes(1000)
    for number in range(megabytes * 1000):
        while True:
            try:
                client.produce(topic, value, b"key-%08d" % number)
                break
            except BufferError:
                client.poll(0.05)
    client.flush()


def timed(code: str, address: str) -> dict[str, float]:
    """Run one side. Returns the figures that it prints."""
    with tempfile.TemporaryDirectory(prefix="lastwrite-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-c", code, address, folder], check=True, capture_output=True
        )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1700)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="lastwrite-bench-"))
    runs: dict[str, list[dict[str, float]]] = {"lastwrite": [], "librdkafka": [], "cp": []}
    try:
        with Broker(kafka_home(), folder / "data") as broker:
            fill(broker, "warm", 1)
            fill(broker, "large", asked.megabytes)
            stored = sum(p.stat().st_size for p in (broker.data / "large-0").glob("*.log"))
            for _ in range(asked.repeats):
                runs["lastwrite"].append(timed(_OURS, broker.address))
                runs["librdkafka"].append(timed(_THEIRS, broker.address))
                runs["cp"].append(timed(_CP, str(broker.data / "large-0")))
    finally:
        shutil.rmtree(folder)
    result: dict[str, Any] = {"bytes": stored, "runs": runs}
    for side, each in runs.items():
        seconds = statistics.median(run["seconds"] for run in each)
        cpu = statistics.median(run["cpu"] for run in each)
        rate, per_gb = stored / seconds / 1e6, cpu / stored * 1e9
        print(f"{side:12} {seconds:6.2f} s  {rate:6.0f} MB/s  {per_gb:5.2f} s of CPU a GB")
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
