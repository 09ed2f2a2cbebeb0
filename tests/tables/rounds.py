"""A topic that grows and is compacted, and its tables of all formats: after every round each reader
finds what a plain model has, and the table is proven against the log.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import lastwrite
from lastwrite.commands.table_to import format_at
from tests.support.tables.judges import Rows, readings
from tests.support.tables.spark import SparkReader, State
from tests.support.tables.topics import TOPICS

VECTORS = "-vectors"  # of a format's name here: with deletion vectors
FORMATS = "iceberg", "iceberg-vectors", "delta", "delta-vectors", "parquet"


def play(
    seed: int,
    rounds: int = 20,
    formats: Sequence[str] = FORMATS,
    spark: SparkReader | None = None,
) -> Counter[str]:
    """Play one seed; what was met. ``spark`` reads in place of the readers of this process: at the
    end, of each table all commits that a round ended with. It reads no plain Parquet.

    Raises:
        AssertionError: somebody reads another table than the model has.
    """
    if spark is not None:
        formats = [each for each in formats if each != "parquet"]
    draw = random.Random(seed)
    system = list(TOPICS)[seed % len(TOPICS)]
    met: Counter[str] = Counter({f"topics of {system}": 1})
    with tempfile.TemporaryDirectory() as folder:
        topic = TOPICS[system](Path(folder, "log"), draw)
        buckets = draw.choice([1, 2, 8])
        switched = draw.choice([0, 0, 3])  # the round that asks for vectors; later ones do not
        room: int = draw.choice([100, 300, 1 << 20])  # bytes of a bucket, before there are more
        had: dict[str, int] = {}  # buckets
        seen: dict[str, list[tuple[State, Rows, str]]] = {}  # of a format what Spark is to find
        for number in range(rounds):
            topic.step()
            for format in formats:
                to = Path(folder, format)
                how = {} if to.exists() else {"buckets": buckets}
                plain = format.removesuffix(VECTORS)
                vectors = format != plain and number == switched
                with patch("lastwrite.tables.update._bucket_bytes", lambda _: room):
                    made = lastwrite.table_to(
                        str(topic.root), "t", to=str(to), format=plain, vectors=vectors, **how
                    )
                where = f"seed {seed}, {system}, round {number}, {format}"
                met[f"rounds of {format} {made.how}"] += 1
                met[f"rounds of {format} in more buckets"] += (
                    had.get(format, 1 << 30) < made.buckets
                )
                had[format] = made.buckets
                assert made.rows == len(topic.model), f"{where}: {made}"
                if spark is not None:
                    states, state = seen.setdefault(format, []), State.of(plain, to)
                    if not states or states[-1][0] != state:
                        states.append((state, dict(topic.model), where))
                    continue
                for name, rows in readings(format, to):
                    assert rows == topic.model, f"{where}: {name} differs"
                    met[f"read by {name}"] += 1
                proof = lastwrite.verify_table(
                    str(topic.root), str(to), topic=made.topic, format=plain
                )
                head = format_at(str(to), plain, made.topic, None).head()
                if head is not None and any(file.deleted for file in head.files):
                    met[f"rounds of {format} with deleted rows in files"] += 1
                assert proof.is_proven and proof.proven == proof.rows, f"{where}: {proof}"
        if spark is not None:
            for states in seen.values():
                found = spark.read([state for state, _, _ in states])
                for rows, (_, model, where) in zip(found, states, strict=True):
                    assert rows == model, f"{where}: Spark differs"
                    met["read by Spark"] += 1
    return met
