"""A fuzz target: makes inputs, checks them, and lists the readers that it covers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastwrite.errors import LogError
from tests.fuzz.mutate import harm
from tests.support.edge import Edge
from tests.support.kafka.logs import SCRATCH

READ, REFUSED = "read", "refused"

# Kernels read from INPUT and write to OUTPUT, each before an unreadable page.
INPUT, OUTPUT = Edge(1 << 18), Edge(1 << 20)

Seal = Callable[[bytearray], bytes]


@dataclass(frozen=True)
class Target:
    """One fuzz target.

    ``make`` returns an input and a context. ``check`` takes both, and returns the outcome or fails.
    ``covers`` has the readers of bytes that it runs, as ``module:function``. ``share`` is its
    relative frequency among all inputs.
    """

    name: str
    make: Callable[[random.Random], tuple[bytes, Any]]
    check: Callable[[bytes, Any, random.Random], str]
    covers: tuple[str, ...] = ()
    share: float = 1.0


@contextlib.contextmanager
def refusing() -> Iterator[list[LogError]]:
    """Catch a LogError, which is an allowed outcome. All other errors are findings."""
    met: list[LogError] = []
    try:
        yield met
    except LogError as error:
        met.append(error)


def outcome(read: Callable[[], object]) -> str:
    """``READ``, or ``REFUSED`` if a LogError was raised."""
    try:
        read()
    except LogError:
        return REFUSED
    return READ


def reader(
    name: str,
    read: Callable[[bytes], object],
    samples: Sequence[bytes],
    covers: Sequence[str],
    *,
    seal: Seal | None = None,
    share: float = 1.0,
    extra: Sequence[bytes] = (),
) -> Target:
    """A target for a reader of small files.

    ``seal`` corrects the checksum of about two thirds of the damaged files. ``extra`` has bytes
    with a meaning in the format, which are inserted at random.
    """
    assert samples, name

    def make(rng: random.Random) -> tuple[bytes, Any]:
        data = rng.choice(samples)
        for _ in range(rng.choice([1, 1, 2, 3])):
            data = harm(rng, data, samples, extra)
        return (seal(bytearray(data)) if seal and rng.random() < 0.7 else data), None

    def check(data: bytes, _: Any, rng: random.Random) -> str:
        return outcome(lambda: read(data))

    return Target(name, make, check, tuple(covers), share)


def files(
    name: str,
    read: Callable[[Path], object],
    file: str,
    samples: Sequence[bytes],
    covers: Sequence[str],
    *,
    seal: Seal | None = None,
    share: float = 0.1,
) -> Target:
    """A target for a reader of a file. ``read`` takes the folder of the file."""

    def check_file(data: bytes, folder: Path, rng: random.Random) -> str:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return outcome(lambda: read(folder))

    plain = reader(name, lambda data: None, samples, covers, seal=seal)
    return Target(name, plain.make, on_disk(check_file), tuple(covers), share)


def on_disk(
    check: Callable[[bytes, Path, random.Random], str],
) -> Callable[[bytes, Any, random.Random], str]:
    """Turn a check that needs a folder into a target's check.

    The folder is in memory if possible.
    """
    import shutil
    import tempfile

    def run(data: bytes, _: Any, rng: random.Random) -> str:
        folder = Path(tempfile.mkdtemp(prefix="lastwrite-fuzz-", dir=SCRATCH))
        try:
            return check(data, folder, rng)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return run
