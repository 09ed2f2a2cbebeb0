"""A topic that grows and is compacted, and its tables of all formats: after every round each reader
finds what a plain model has, and the table is proven against the log.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import lastwrite
from tests.support.tables.judges import Rows, readings
from tests.support.tables.topics import TOPICS

FORMATS = "iceberg", "delta", "parquet"
Reader = Callable[[str, Path], Rows]


def play(
    seed: int,
    rounds: int = 20,
    formats: Sequence[str] = FORMATS,
    others: Sequence[tuple[str, Reader]] = (),
) -> Counter[str]:
    """Play one seed; what was met. ``others``: readers beside those of this process.

    Raises:
        AssertionError: somebody reads another table than the model has.
    """
    draw = random.Random(seed)
    system = list(TOPICS)[seed % len(TOPICS)]
    met: Counter[str] = Counter({f"topics of {system}": 1})
    with tempfile.TemporaryDirectory() as folder:
        topic = TOPICS[system](Path(folder, "log"), draw)
        buckets = draw.choice([1, 2, 8])
        for number in range(rounds):
            topic.step()
            for format in formats:
                to = Path(folder, format)
                how = {} if to.exists() else {"buckets": buckets}
                made = lastwrite.table_to(str(topic.root), "t", to=str(to), format=format, **how)
                where = f"seed {seed}, {system}, round {number}, {format}"
                met[f"rounds of {format} {made.how}"] += 1
                assert made.rows == len(topic.model), f"{where}: {made}"
                for name, rows in readings(format, to):
                    assert rows == topic.model, f"{where}: {name} differs"
                    met[f"read by {name}"] += 1
                for name, read in others:
                    if format != "parquet":
                        assert read(format, to) == topic.model, f"{where}: {name} differs"
                        met[f"read by {name}"] += 1
                proof = lastwrite.verify_table(
                    str(topic.root), str(to), topic=made.topic, format=format
                )
                assert proof.is_proven and proof.proven == proof.rows, f"{where}: {proof}"
    return met
