"""Decrypts messages with a private key as Pulsar's Java client does, in plain Python.

The package does not decrypt, so it depends on no library for it. Source: Pulsar 4.2.4
``MessageCryptoBc``: RSA/NONE/OAEPWithSHA1AndMGF1Padding wraps the data key, AES/GCM/NoPadding with
a tag of 16 bytes encrypts the payload.
"""

from __future__ import annotations

import base64
import hashlib


def unwrapped(pem: str, wrapped: bytes) -> bytes:
    """The data key that ``wrapped`` contains."""
    text = "".join(line for line in pem.splitlines() if "-" not in line)
    _, _, inner = _fields(_fields(base64.b64decode(text))[0])  # the PKCS#8 private key
    _, modulus, _, exponent, *_ = map(int.from_bytes, _fields(_fields(inner)[0]))
    size = len(wrapped)
    plain = pow(int.from_bytes(wrapped), exponent, modulus).to_bytes(size)
    seed = _xor(plain[1:21], _mask(plain[21:], 20))
    block = _xor(plain[21:], _mask(seed, size - 21))
    assert (plain[0], block[:20]) == (0, hashlib.sha1(b"").digest())
    return block[20:].lstrip(b"\0")[1:]


def decrypted(key: bytes, iv: bytes, stored: bytes) -> bytes:
    """The payload, still compressed. The tag is not checked."""
    cipher = stored[:-16]
    stream = b"".join(
        _aes(key, iv + (2 + n).to_bytes(4)) for n in range(-(-len(cipher) // 16))
    )  # GCM uses the first counter for the tag
    return _xor(cipher, stream[: len(cipher)])


def _fields(der: bytes) -> list[bytes]:
    """The contents of the values in a DER sequence."""
    found = []
    at = 0
    while at < len(der):
        size, at = der[at + 1], at + 2
        if size & 0x80:
            more = size & 0x7F
            size, at = int.from_bytes(der[at : at + more]), at + more
        found.append(der[at : at + size])
        at += size
    return found


def _mask(seed: bytes, size: int) -> bytes:
    blocks = (hashlib.sha1(seed + n.to_bytes(4)).digest() for n in range(-(-size // 20)))
    return b"".join(blocks)[:size]


def _xor(one: bytes, two: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, two, strict=True))


def _times(a: int, b: int) -> int:
    """The product in the field of AES."""
    found = 0
    while b:
        found ^= a if b & 1 else 0
        a = a << 1 ^ (0x11B if a & 0x80 else 0)
        b >>= 1
    return found


def _substitute(value: int) -> int:
    inverse = next((n for n in range(256) if _times(value, n) == 1), 0)
    found = 0x63
    for turn in range(5):
        found ^= (inverse << turn | inverse >> (8 - turn)) & 0xFF
    return found


_BOX = bytes(map(_substitute, range(256)))


def _aes(key: bytes, block: bytes) -> bytes:
    """Encrypt one block."""
    words = [key[at : at + 4] for at in range(0, len(key), 4)]
    given, power = len(words), 1
    while len(words) < 4 * (given + 7):
        word = words[-1]
        if len(words) % given == 0:
            word = _xor((word[1:] + word[:1]).translate(_BOX), bytes((power, 0, 0, 0)))
            power = _times(power, 2)
        elif given > 6 and len(words) % given == 4:
            word = word.translate(_BOX)
        words.append(_xor(word, words[-given]))
    keys = [b"".join(words[at : at + 4]) for at in range(0, len(words), 4)]
    state = _xor(block, keys[0])
    for turn, own in enumerate(keys[1:], 1):
        state = bytes(state.translate(_BOX)[(5 * n) % 16] for n in range(16))
        if turn < len(keys) - 1:
            columns = (state[at : at + 4] for at in range(0, 16, 4))
            state = b"".join(map(_mixed, columns))
        state = _xor(state, own)
    return state


def _mixed(column: bytes) -> bytes:
    a, b, c, d = column
    turns = ((a, b, c, d), (b, c, d, a), (c, d, a, b), (d, a, b, c))
    return bytes(_times(w, 2) ^ _times(x, 3) ^ y ^ z for w, x, y, z in turns)
