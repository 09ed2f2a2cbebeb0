"""Properties of the kernels that find a fingerprint's first row."""

from __future__ import annotations

import numpy as np
import pytest

from lastwrite.rows import place_kernels


@pytest.mark.parametrize("seed", range(20))
def test_first_of_equal_fingerprints_is_found(seed: int) -> None:
    draw = np.random.default_rng(seed)
    some = draw.integers(0, 1 << 64, draw.integers(1, 2_000), dtype=np.uint64)
    lanes = np.sort(np.repeat(some, draw.integers(1, 5, len(some))))
    others = np.zeros(len(lanes), np.uint32)
    first = np.searchsorted(lanes, some)
    found = [place_kernels.find(lanes, others, lane, np.uint32(0)) for lane in some]
    assert found == first.tolist()
    absent = draw.integers(0, 1 << 64, 200, dtype=np.uint64)
    for lane in absent[~np.isin(absent, some)]:
        assert place_kernels.find(lanes, others, lane, np.uint32(0)) == -1
        assert place_kernels.find(lanes, others, some[0], np.uint32(1)) == -1
