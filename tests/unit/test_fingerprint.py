"""Tests of fingerprints.

They cover distribution, distinctness at every length, secrecy, and exact comparison on collision.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.encoding.fingerprint import SECRET_WORDS, fingerprint, secret_from
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.spark.inline import INLINE
from tests.support.kafka.logs import read_segments, write_segment
from tests.support.kafka.model import records_of

SECRET = secret_from(os.urandom(8 * SECRET_WORDS))
START = 1_700_000_000_000


def of(key: bytes, secret: np.ndarray = SECRET) -> tuple[int, int]:
    data = np.frombuffer(b"<" + key + b">" * 20, dtype=np.uint8)
    one, two = fingerprint(data, 1, len(key), secret)
    return int(one), int(two)


@given(st.binary(max_size=70), st.binary(max_size=70))
def test_different_keys_have_different_lanes(a: bytes, b: bytes) -> None:
    assert (of(a) == of(b)) == (a == b)
    if a != b:
        assert of(a)[0] != of(b)[0] and of(a)[1] != of(b)[1]


def test_zeros_of_every_length_differ() -> None:
    assert len({of(b"\0" * n) for n in range(200)}) == 200
    assert len({of(b"c" * n) for n in range(200)}) == 200


@pytest.mark.parametrize("length", [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64])
def test_flipped_bit_flips_half_of_the_fingerprint(length: int) -> None:
    key = os.urandom(length)
    flips = []
    for bit in range(length * 8):
        other = bytearray(key)
        other[bit // 8] ^= 1 << bit % 8
        for mine, theirs in zip(of(key), of(bytes(other)), strict=True):
            flips.append((mine ^ theirs).bit_count())
    assert 28 < sum(flips) / len(flips) < 36
    assert min(flips) > 8


def test_sequential_keys_fill_the_buckets_evenly() -> None:
    counts = np.bincount([of(b"key-%08d" % n)[0] >> 56 for n in range(50_000)], minlength=256)
    assert counts.min() > 100 and counts.max() < 300  # 195 on average


def test_another_secret_gives_another_fingerprint() -> None:
    other = secret_from(os.urandom(8 * SECRET_WORDS))
    assert of(b"key", SECRET) != of(b"key", other)


def colliding_keys(count: int) -> list[bytes]:
    """Keys that collide in both 64-bit lanes if all words of the secret are equal."""
    word = int(secret_from(bytes(8 * SECRET_WORDS))[0])
    return [word.to_bytes(8, "little") + n.to_bytes(8, "little") for n in range(count)]


@pytest.mark.parametrize("exact", [False, True])
def test_exact_comparison_separates_colliding_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    weak = bytes(8 * SECRET_WORDS)
    assert len({of(key, secret_from(weak)) for key in colliding_keys(5)}) == 1
    monkeypatch.setattr("lastwrite.engine.plan.new_secret", lambda: weak)
    keys = colliding_keys(5)
    records = [Record(n, START, keys[n % 5], b"%d" % n) for n in range(20)]
    write_segment(tmp_path / "t-0", 0, [encode_batch(records[:7]), encode_batch(records[7:])])
    write_segment(tmp_path / "t-0", 20, [])
    lastwrite.compact(str(tmp_path / "t-0"), spark=INLINE, exact=exact, now_ms=START)
    left = [record.offset for record in records_of(read_segments(tmp_path / "t-0"))]
    assert left == ([15, 16, 17, 18, 19] if exact else [19])
