"""Write the sample of ``lastwrite demo``: a log root that a real broker wrote, and its last writes.

    # from the project's root; needs Java 17 and mvn
    .venv/bin/python -m tests.corpus.make_sample

``src/lastwrite/demo/sample`` gets topic ``orders`` and the metadata log. ``last-writes.jsonl`` has
the last write of each key, from the records that a Kafka consumer read. Each line is an array of
key and value, or of key and null for a delete.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path

from tests.support.kafka.broker import Broker, kafka_home
from tests.support.kafka.clients import Sent, bounds, consume, create_topic, produce, set_topic

TARGET = Path(__file__).parents[2] / "src" / "lastwrite" / "demo" / "sample"
TOPIC = "orders"
START_MS = 1_790_000_000_000
ORDERS, RECORDS = 1_500, 12_000
STATES = ("placed", "paid", "packed", "shipped", "delivered")
SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "1048576", "segment.ms": "604800000"}


def events() -> list[Sent]:
    """Orders that pass through their states. One in twelve is deleted at the end."""
    rng = random.Random(12)
    steps = dict.fromkeys(range(ORDERS), 0)
    sent = []
    for n in range(RECORDS):
        order = min(rng.randrange(ORDERS), rng.randrange(ORDERS))
        steps[order] += 1
        state = STATES[min(steps[order], len(STATES)) - 1]
        value = {"state": state, "version": steps[order], "cents": 500 + order * 7919 % 20_000}
        body = json.dumps(value, separators=(",", ":")).encode()
        is_deleted = state == STATES[-1] and order % 12 == 0
        key = f"order-{order:04d}".encode()
        sent.append(Sent(key, None if is_deleted else body, START_MS + n * 1000, ()))
    return sent


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    with tempfile.TemporaryDirectory(prefix="lastwrite-sample-") as work:
        broker = Broker(kafka_home(), Path(work) / "data").start()
        small = {"internal.segment.bytes": "131072", "segment.index.bytes": "4096"}
        create_topic(broker, TOPIC, SETTINGS | small)
        produce(broker, TOPIC, events())
        # Larger than the existing segments, so that a round merges them.
        set_topic(broker, TOPIC, SETTINGS | {"internal.segment.bytes": "524288"})
        last: dict[str, str | None] = {}
        for seen in consume(broker, TOPIC, start=bounds(broker, TOPIC)[0]):
            assert seen.key is not None
            last[seen.key.decode()] = None if seen.value is None else seen.value.decode()
        broker.stop()
        for name in (f"{TOPIC}-0", "__cluster_metadata-0"):
            leave_out = shutil.ignore_patterns("*index") if name.startswith("__") else None
            shutil.copytree(broker.data / name, TARGET / name, ignore=leave_out)
        for file in broker.data.iterdir():
            if file.is_file() and not file.name.endswith((".lock", "bootstrap.checkpoint")):
                shutil.copy2(file, TARGET)
    lines = (json.dumps(entry) for entry in sorted(last.items()))
    (TARGET / "last-writes.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
