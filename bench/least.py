"""The minimum time of a two-pass compaction that decides nothing.

Its steps are to read the input twice from the page cache, decompress its batches twice, compress
the output's batches once, write and sync the new files, and remove them. As many processes run as
there are workers, with this project's codecs and writer, each step by itself.

If a benchmark is near this sum, only a faster codec or disk can bring it nearer to its target.
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
_ROOM = 64 << 20  # bytes for one decompressed batch


class _Share(NamedTuple):
    """Every ``of``-th stretch or batch of these logs, beginning with the ``nth``."""

    paths: list[str]
    nth: int
    of: int


def least(source: Path, result: Path, workers: int) -> dict[str, float]:
    """Seconds by step of two passes over ``source`` with the output ``result``."""
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
    """Run the work in all processes. Returns the seconds of the slowest."""
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
    """Seconds to compress the batches, without decompressing them first."""
    codecs, room, seconds = Codecs(), np.empty(_ROOM, np.uint8), 0.0
    for codec, data in _compressed(share):
        plain = room[: codecs.decompress_into(codec, data, room)]
        begin = time.perf_counter()
        codecs.compress(codec, plain)
        seconds += time.perf_counter() - begin
    return seconds


def _written(aside: str, share: _Share) -> float:
    """Seconds to write whole files with this project's writer, without reading them first."""
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
    """The codec and the records section of each compressed batch."""
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
