"""A topic that grows and is compacted, and its tables in all formats.

After every round each reader finds the rows of a plain model, and the table is verified against the
log.
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

VECTORS = "-vectors"  # suffix of a format's name here: with deletion vectors
FORMATS = "iceberg", "iceberg-vectors", "delta", "delta-vectors", "parquet"


def play(
    seed: int,
    rounds: int = 20,
    formats: Sequence[str] = FORMATS,
    spark: SparkReader | None = None,
) -> Counter[str]:
    """Play one seed. Returns counts of what happened.

    With ``spark`` Spark replaces the other readers. At the end it reads every table as of each
    commit that ended a round. It cannot read plain Parquet.

    Raises:
        AssertionError: a reader finds other rows than the model.
    """
    if spark is not None:
        formats = [each for each in formats if each != "parquet"]
    draw = random.Random(seed)
    system = list(TOPICS)[seed % len(TOPICS)]
    met: Counter[str] = Counter({f"topics of {system}": 1})
    with tempfile.TemporaryDirectory() as folder:
        topic = TOPICS[system](Path(folder, "log"), draw)
        buckets = draw.choice([1, 2, 8])
        # the first round with deletion vectors; later rounds keep them
        switched = draw.choice([0, 0, 3])
        room: int = draw.choice([100, 300, 1 << 20])  # bytes at which a bucket is split
        had: dict[str, int] = {}  # buckets by format
        # expected rows of each commit by format
        seen: dict[str, list[tuple[State, Rows, str]]] = {}
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
