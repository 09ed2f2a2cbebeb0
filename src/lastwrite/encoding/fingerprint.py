"""Fingerprints of record keys: 96 bits under a secret, so that clients cannot construct collisions.

A fingerprint has two lanes with separate secrets. Each lane folds 128-bit products of the key's
words. A final bijective mix spreads the bits, because the top bits choose the bucket. Keys of up to
16 bytes, the usual case, need one product per lane, from two loads that may overlap. Each such
length has its own secret words, so ``a`` and ``a\\0`` differ like any two keys. Longer keys need
one product per lane for each 16 bytes, and one for the length.

Each round draws a new secret and does not disclose it, so a client cannot search for collisions. A
collision by chance (probability below 1e-11 for a billion keys in a partition) does not repeat in
the next round.
"""
# mypy: disable-error-code="untyped-decorator, no-untyped-def"

from __future__ import annotations

import numpy as np

from lastwrite.encoding.intrinsics import folded_product, load8, load32, load64
from lastwrite.encoding.kernel import njit
from lastwrite.model.columns import UInt64Array

SECRET_WORDS = 17 * 4 + 8


def secret_from(seed: bytes) -> UInt64Array:
    """Convert random bytes to the secret of a round: ``SECRET_WORDS`` uint64 other than 0."""
    words = np.frombuffer(seed, dtype="<u8").astype(np.uint64)
    if len(words) != SECRET_WORDS:
        raise ValueError(f"a secret takes {SECRET_WORDS * 8} bytes")
    return np.where(words == 0, np.uint64(0x9E3779B97F4A7C15), words)


@njit(cache=True, nogil=True, inline="always")
def _spread(value):
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@njit(cache=True, nogil=True, forceinline=True)
def fingerprint(data, at, length, secret):
    """The fingerprint of the key ``data[at:at + length]``, two uint64. The first is never 0.

    ``data`` is an array of bytes or an address.
    """
    if length <= 16:
        if length >= 8:
            a = load64(data, at)
            b = load64(data, at + length - 8)
        elif length >= 4:
            a = load32(data, at)
            b = load32(data, at + length - 4)
        elif length > 0:
            a = load8(data, at) | load8(data, at + (length >> 1)) << np.uint64(8)
            b = load8(data, at + length - 1)
        else:
            a = np.uint64(0)
            b = np.uint64(0)
        row = length * 4
        first = folded_product(a ^ secret[row], b ^ secret[row + 1])
        second = folded_product(a ^ secret[row + 2], b ^ secret[row + 3])
    else:
        first = secret[68]
        second = secret[69]
        last = at + length - 16
        while at < last:
            a = load64(data, at)
            b = load64(data, at + 8)
            first = folded_product(a ^ secret[70], b ^ first)
            second = folded_product(a ^ secret[71], b ^ second)
            at += 16
        a = load64(data, last)
        b = load64(data, last + 8)
        first = folded_product(a ^ secret[70], b ^ first)
        second = folded_product(a ^ secret[71], b ^ second)
        size = np.uint64(length)
        first = folded_product(first ^ secret[72], size ^ secret[73])
        second = folded_product(second ^ secret[74], size ^ secret[75])
    first = _spread(first)
    if first == np.uint64(0):
        first = np.uint64(1)
    return first, _spread(second)
