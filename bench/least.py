"""What a row costs whoever compacts in two passes, beside deciding: the input read twice from the
page cache, its compressed batches opened twice, the output's compressed once, written and synced,
and the new files removed again. By as many processes as there are workers, with this project's own
codecs and writer, each step for itself.

A row that is near the sum can only come nearer to its goal by a quicker codec or disk.
"""

from __future__ import annotations

import os
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lastwrite.encoding.compression import Codec, Codecs
from lastwrite.storage.files import fsync_file
from lastwrite.storage.new_file import NewFile

_READ_BYTES = 2 << 20
_HEADER_BYTES, _SIZE_AT, _ATTRIBUTES_AT = 61, 8, 21
_ROOM = 64 << 20  # of one batch, opened


class _Share(NamedTuple):
    """Of these logs' stretches or batches every one in ``of``, from the ``nth`` on."""

    paths: list[str]
    nth: int
    of: int


def least(source: Path, result: Path, workers: int) -> dict[str, float]:
    """Seconds by step, of two passes over ``source`` that end in ``result``."""
    inputs, outputs = sorted(source.glob("*.log")), sorted(result.glob("*.log"))
    with tempfile.TemporaryDirectory(prefix="least-", dir=result.parent) as aside:
        steps = {
            "read twice": 2 * _by_all(_read, inputs, workers),
            "opened twice": 2 * _by_all(_opened, inputs, workers),
            "packed": _by_all(_packed, outputs, workers),
            "written": _by_all(partial(_written, aside), outputs, workers),
        }
        begin = time.perf_counter()
        for path in Path(aside).iterdir():
            path.unlink()
        steps["removed"] = time.perf_counter() - begin
    return {step: round(seconds, 3) for step, seconds in steps.items()}


def _by_all(work: Callable[[_Share], float], logs: Sequence[Path], workers: int) -> float:
    """Seconds of the slowest process."""
    shares = [_Share([str(log) for log in logs], n, workers) for n in range(workers)]
    with get_context("spawn").Pool(workers) as pool:
        return max(pool.map(work, shares, 1))


def _timed(step: Callable[[], None]) -> float:
    begin = time.perf_counter()
    step()
    return time.perf_counter() - begin


def _read(share: _Share) -> float:
    buffer = bytearray(_READ_BYTES)

    def step() -> None:
        for path in share.paths:
            with open(path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                for at in range(share.nth * _READ_BYTES, size, share.of * _READ_BYTES):
                    os.preadv(file.fileno(), [buffer], at)

    return _timed(step)


def _opened(share: _Share) -> float:
    codecs, room = Codecs(), np.empty(_ROOM, np.uint8)
    batches = list(_compressed(share))

    def step() -> None:
        for codec, data in batches:
            codecs.decompress_into(codec, data, room)

    return _timed(step)


def _packed(share: _Share) -> float:
    """Opening them is not counted."""
    codecs, room, seconds = Codecs(), np.empty(_ROOM, np.uint8), 0.0
    for codec, data in _compressed(share):
        plain = room[: codecs.decompress_into(codec, data, room)]
        begin = time.perf_counter()
        codecs.compress(codec, plain)
        seconds += time.perf_counter() - begin
    return seconds


def _written(aside: str, share: _Share) -> float:
    """Through our own writer, whole files; the bytes are in memory before the clock starts."""
    paths = share.paths[share.nth :: share.of]
    contents = [Path(path).read_bytes() for path in paths]

    def step() -> None:
        for path, data in zip(paths, contents, strict=True):
            to = str(Path(aside, Path(path).name))
            file = NewFile(to, None)
            for at in range(0, len(data), _READ_BYTES):
                file.append(memoryview(data)[at : at + _READ_BYTES])
            file.close()
            fsync_file(to)

    return _timed(step)


def _compressed(share: _Share) -> Iterator[tuple[Codec, memoryview]]:
    """The records of each compressed batch, and how they are."""
    number = 0
    for path in share.paths:
        data, at = memoryview(Path(path).read_bytes()), 0
        while at + _HEADER_BYTES <= len(data):
            end = at + 12 + struct.unpack_from(">i", data, at + _SIZE_AT)[0]
            codec = Codec(struct.unpack_from(">h", data, at + _ATTRIBUTES_AT)[0] & 7)
            if codec:
                number += 1
                if number % share.of == share.nth:
                    yield codec, data[at + _HEADER_BYTES : end]
            at = end
