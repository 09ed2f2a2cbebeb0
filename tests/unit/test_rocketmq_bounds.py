"""Tests that no RocketMQ kernel reads beyond its input, whatever the input contains.

The input ends before an unreadable page, so a read beyond it kills the process. Therefore the
kernels run in a separate process.
"""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np

from lastwrite.rocketmq.format import kernels
from tests.support.edge import Edge
from tests.support.rocketmq.records import (
    EXAMPLE_INNER,
    EXAMPLE_RECORD_CRC,
    EXAMPLE_V1,
    EXAMPLE_V2,
    EXAMPLE_V3,
)

ROUNDS = 3000


def damaged(draw: random.Random) -> bytes:
    """Some records, with bytes overwritten by typical wrong lengths, and cut at some position."""
    examples = [EXAMPLE_V1, EXAMPLE_V2, EXAMPLE_V3, EXAMPLE_RECORD_CRC, EXAMPLE_INNER]
    raw = bytearray(b"".join(draw.choices(examples, k=draw.randint(1, 3))))
    for _ in range(draw.choice([0, 1, 1, 2, 5])):
        raw[draw.randrange(len(raw))] = draw.choice(
            [0, 1, 2, 0x7F, 0x80, 0xFF, draw.randrange(256)]
        )
    return bytes(raw[: draw.choice([len(raw), draw.randint(1, len(raw))])])


def main() -> None:
    edge, draw = Edge(), random.Random(1)
    table = np.zeros(100, kernels.MESSAGE)
    hashes, places, times = (np.zeros(1000, np.int64) for _ in range(3))
    seen = 0
    for _ in range(ROUNDS):
        data = edge.put(damaged(draw))
        rows = kernels.split(data, 0, len(data), table, draw.random() < 0.5)[0]
        kernels.index_keys(data, table, 0, rows, hashes, places, times)
        seen += rows
    print(seen)
    sys.stdout.flush()
    # Called with a length that is eight bytes too large.
    kernels.split(edge.put(EXAMPLE_V1), 0, len(EXAMPLE_V1) + 8, table, False)


def test_no_kernel_reads_beyond_its_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", __name__], capture_output=True, text=True, timeout=120, check=False
    )
    assert int(done.stdout) > ROUNDS, done.stderr
    assert done.returncode < 0, "memory behind the bytes could be read: the test proves nothing"


if __name__ == "__main__":
    main()
