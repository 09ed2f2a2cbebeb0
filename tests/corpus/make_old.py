"""Record logs of message formats v0 and v1, written by Kafka's own append path.

    # from the project's root; needs Java 17 and mvn, or a filled LASTWRITE_KAFKA_HOME
    .venv/bin/python -m tests.corpus.make_old

The logs are in ``tests/corpus/old-formats/``. A current broker writes neither format, but its
classes do if they append as a follower of an old leader. The peer's command ``write`` does this.
Folders such as ``v0-gzip-0`` have one format in one codec, ``v1-append-time-*-0`` has append time,
and ``mixed-0`` has all of these and v2 batches. Beside them ``records.json.gz`` has every batch and
record by folder, as Kafka reads them, with keys and values in hex.
"""

from __future__ import annotations

import gzip
import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.kafka.oracle import Oracle, shut_down

TARGET = Path(__file__).with_name("old-formats")
START = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4")
CONFIG = {"cleanup.policy": "delete", "index.interval.bytes": "200", "segment.index.bytes": "1024"}
WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")


def batches(seed: int, magic: int, codec: str, **more: Any) -> list[dict[str, Any]]:
    """Appends of wrappers with one to nine records, or of as many messages.

    Some keys and values are null or empty.
    """
    rng = random.Random(seed)
    found, clock = [], START
    for _ in range(6):
        records = []
        for _ in range(rng.randint(1, 9)):
            clock += rng.choice([1, 40, -7])
            key = rng.choice([None, b"", b"\x00\xff", *(b"user-%d" % n for n in range(5))])
            value = rng.choice(
                [None, b"", *(" ".join(rng.choices(WORDS, k=n)).encode() for n in (1, 4, 30))]
            )
            records.append(
                {
                    "k": None if key is None else key.hex(),
                    "v": None if value is None else value.hex(),
                    "t": clock,
                }
            )
        spec = {"magic": magic, "codec": codec, **more}
        if codec == "none" and magic < 2:
            found += [{"batch": {**spec, "records": [record]}} for record in records]
        else:
            found.append({"batch": {**spec, "records": records}})
    return found


def logs() -> dict[str, list[dict[str, Any]]]:
    """The appends by folder name."""
    found = {}
    for magic in (0, 1):
        for n, codec in enumerate(CODECS):
            found[f"v{magic}-{codec}-0"] = batches(4 * magic + n, magic, codec)
    for n, codec in enumerate(CODECS):
        found[f"v1-append-time-{codec}-0"] = batches(20 + n, 1, codec, append_time=START + 5000)
    parts = [
        batches(30 + 4 * magic + n, magic, codec)[:4]
        for magic in (0, 1, 2)
        for n, codec in enumerate(CODECS)
    ]
    random.Random(3).shuffle(parts)
    found["mixed-0"] = [action for part in parts for action in part]
    return found


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    oracle, seen = Oracle(), {}
    with tempfile.TemporaryDirectory(prefix="lastwrite-corpus-") as work:
        for name, actions in logs().items():
            folder = Path(work) / name
            folder.mkdir()
            oracle.ask(
                "write",
                dir=str(folder),
                now_ms=START,
                config=CONFIG,
                actions=[{"clock": START + 5000}, *actions],
            )
            shut_down(folder)
            [segment] = oracle.ask("state", dir=str(folder))["segments"]
            seen[name] = segment["batches"]
            (TARGET / name).mkdir(parents=True)
            for suffix in ("log", "index", "timeindex"):
                shutil.copy(folder / f"{0:020d}.{suffix}", TARGET / name)
    oracle.close()
    (TARGET / "records.json.gz").write_bytes(gzip.compress(json.dumps(seen).encode(), mtime=0))
    (TARGET / "ORIGIN.md").write_text(
        "Written by the append path of Apache Kafka 4.4.0 (`write` of the Kafka peer, as a follower writes),\n"
        f"on {time.strftime('%Y-%m-%d', time.gmtime())} by:\n\n    python -m tests.corpus.make_old\n\n"
        "`make_old.py` says what each folder is. Nothing was touched afterwards; do not edit it, record it anew.\n"
    )


if __name__ == "__main__":
    main()
