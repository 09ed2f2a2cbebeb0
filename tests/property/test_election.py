"""Election beside a dict: cut into buckets and elected block by block, the same records win."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.compaction.election import drop_losers, elect, mark, new_table, partition, partition_order
from lastwrite.model.columns import SHADOWED

# Keys as fingerprints: lanes that agree in one half only, or in their bucket only.
FINGERPRINTS = [(first << 60 | low, second) for first in (0, 1, 15) for low in (1, 3, 2**40 + 1) for second in (0, 7)]
BLOCKS = st.lists(st.lists(st.integers(0, len(FINGERPRINTS) - 1), max_size=30), max_size=4)


def entries_of(block: list[int]) -> np.ndarray:
    rows = [(FINGERPRINTS[key][0], FINGERPRINTS[key][1] << 32 | ordinal) for ordinal, key in enumerate(block)]
    return np.array(rows, dtype=np.uint64).reshape(-1, 2)


@pytest.mark.parametrize("exact", [False, True])
@given(blocks=BLOCKS, bits=st.integers(0, 4), dirty=st.lists(st.integers(0, 30), min_size=4, max_size=4))
def test_the_last_dirty_write_of_a_key_wins(exact: bool, blocks: list[list[int]], bits: int, dirty: list[int]) -> None:
    """With ``exact`` two keys share each fingerprint, and their bytes tell them apart."""
    names = [
        [f"{key}-{(ordinal * 7 + n) % 2}" if exact else str(key) for ordinal, key in enumerate(block)]
        for n, block in enumerate(blocks)
    ]
    latest: dict[str, tuple[int, int]] = {}
    for n, block in enumerate(names):
        for ordinal, name in enumerate(block):
            if ordinal >= dirty[n]:
                latest[name] = (n, ordinal)
    expected = {
        (n, ordinal) for n, block in enumerate(names) for ordinal, name in enumerate(block)
        if latest.get(name, (-1, -1)) > (n, ordinal)
    }  # fmt: skip

    sorted_blocks, ends, keys = [], np.zeros((len(blocks), 1 << bits), np.uint32), []
    for n, block in enumerate(blocks):
        entries, out, order = entries_of(block), np.zeros((len(block), 2), np.uint64), np.zeros(len(block), np.uint32)
        partition(entries, len(block), bits, out, ends[n])
        again = ends[n].copy()
        partition_order(entries, len(block), bits, order, again)
        assert (entries[order] == out).all() and (again == ends[n]).all()
        sorted_blocks.append(out)
        keys += [names[n][at].encode() for at in order]
    key_at = np.cumsum([0, *map(len, keys)]).astype(np.int64) if exact else np.zeros(0, np.int64)
    dirty_from = np.array(dirty[: len(blocks)], np.int64)
    addresses = np.array([block.ctypes.data for block in sorted_blocks], np.int64)
    total = sum(map(len, blocks))
    losers, lost = np.zeros(len(blocks), np.int64), np.zeros(total, np.uint32)
    winners = elect(
        addresses, 2, ends, dirty_from, lost, losers, new_table(ends, exact), key_at,
        np.frombuffer(b"".join(keys), np.uint8),
    )  # fmt: skip
    starts = np.cumsum([0, *map(len, blocks)])
    found = [(n, int(at)) for n in range(len(blocks)) for at in lost[starts[n] : starts[n] + losers[n]]]
    assert len(found) == len(set(found)) == losers.sum()
    assert set(found) == expected
    assert winners == total - len(expected)
    states = np.full(31, 64, np.uint8)
    mark(states, np.array([at for n, at in found if n == 0], np.uint32))
    assert {(0, int(at)) for at in np.flatnonzero(states != 64)} == {pair for pair in expected if pair[0] == 0}
    assert set(states) <= {64, 64 | SHADOWED}

    for n, block in enumerate(sorted_blocks):
        lost = np.array([SHADOWED if (n, at) in expected else 0 for at in range(len(block))], np.uint8)
        before = np.split(block.copy(), ends[n].astype(np.int64))
        kept = drop_losers(block, ends[n], lost)
        after = np.split(block[:kept], ends[n].astype(np.int64))
        for old, new in zip(before, after, strict=True):
            ordinals = (old[:, 1] & np.uint64(0xFFFFFFFF)).astype(np.int64)
            assert (old[lost[ordinals] == 0] == new).all()
