"""A limit of bytes read and written per second for all workers together, and a stop signal.

The workers of a machine share a small file in the scratch folder. It contains a rate and an anchor:
at 100 bytes a second, anchored at second 7, the 50th byte is due at 7.5. A worker adds the bytes
that it has read or written to the common count, and sleeps until its last byte is due::

    offset  type
    0       f64   bytes per second; infinity means no limit
    8       f64   the anchor, in seconds of the machine's monotonic clock
    16      f64   the count at the anchor
    24      f64   the count now
    32      u8    1 if the run must stop

A change of the rate moves the anchor. Sleeping workers check the file every 100 ms, so the change
takes effect at once. Idle time of at most 300 ms can be used later, as in Kafka. On a cluster there
is no shared file: each worker has its own count, and an equal part of the rate.

Source: Kafka 4.4 ``Throttler``: reading and writing, at most every 300 ms;
docs/formats/kafka-cleaning.md, "Throttle and buffers".
"""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import struct
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

from lastwrite.errors import LogError
from lastwrite.model.work import Limits, Rates, Throttle

# A function that gets a number of bytes, and waits as a limit requires. It raises a LogError to
# stop the work.
Spend: TypeAlias = Callable[[int], None]

_PACE = struct.Struct("=dddd")
_STOP = _PACE.size
_SIZE = _STOP + 1
_SAVED_S = 0.3
_LOOK_S = 0.1  # seconds between a sleeping worker's checks for a new rate or a stop
_LEAST_SLEEP_S = 0.01


class Pacer:
    """Delays a process's reads and writes to the rate of a throttle. Threads may share it."""

    def __init__(self, throttle: Throttle) -> None:
        self._lock = threading.Lock()
        self._file: int | None = None
        self._pace: mmap.mmap | bytearray
        if throttle.path:
            self._file = os.open(throttle.path, os.O_RDWR)
            self._pace = mmap.mmap(self._file, _SIZE)
        else:
            self._pace = bytearray(_SIZE)
            self._write(throttle.bytes_per_second, time.monotonic(), 0.0, 0.0)

    # ``close`` is a default argument, because ``os`` may be gone when the interpreter shuts down.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file is not None:
            close(self._file)

    def throttle(self, size_bytes: int) -> None:
        """Count bytes that were read or written, and wait as the rate requires.

        Raises:
            LogError: the run was stopped.
        """
        self._check()
        if not math.isfinite(self.bytes_per_second):
            return
        with self._locked():
            rate, anchor, base, count = self._read()
            now = time.monotonic()
            if math.isfinite(rate) and anchor + (count - base) / rate < now - _SAVED_S:
                anchor, base = now - _SAVED_S, count
            mine = count + size_bytes
            self._write(rate, anchor, base, mine)
        while True:
            with self._locked():
                rate, anchor, base, _ = self._read()
            left = anchor + (mine - base) / rate - time.monotonic()
            if left < _LEAST_SLEEP_S:
                return
            time.sleep(min(left, _LOOK_S))
            self._check()

    @property
    def bytes_per_second(self) -> float:
        rate, *_ = self._read()
        return rate

    def set_rate(self, bytes_per_second: float) -> None:
        """Change the rate for all workers. Workers still wait for earlier bytes."""
        with self._locked():
            rate, anchor, base, count = self._read()
            now = time.monotonic()
            if rate != bytes_per_second:
                due = base + (now - anchor) * rate if math.isfinite(rate) else count
                self._write(bytes_per_second, now, min(due, count), count)

    def stop(self) -> None:
        """Make the next read or write of every worker fail."""
        self._pace[_STOP] = 1

    @property
    def is_stopped(self) -> bool:
        return bool(self._pace[_STOP])

    def _check(self) -> None:
        if self.is_stopped:
            raise LogError(
                "the command was stopped", remedy="the log is unchanged; run the command again"
            )

    def _read(self) -> tuple[float, float, float, float]:
        return _PACE.unpack_from(self._pace, 0)

    def _write(self, *pace: float) -> None:
        _PACE.pack_into(self._pace, 0, *pace)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # a thread lock is needed too, because record locks do not exclude threads of this process
        with self._lock:
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if self._file is not None:
                    fcntl.lockf(self._file, fcntl.LOCK_UN)


class Throttles:
    """The throttles of a run: for reading and writing together, for reading, and for writing."""

    def __init__(self, scratch: str, rates: Rates, workers: int) -> None:
        """Create the throttles.

        Args:
            scratch: folder of the files through which workers share the rates. If it is empty,
                each worker gets an equal part of each rate.
            rates: the highest rates of all workers together, in bytes per second.
            workers: number of workers.
        """
        self._both, self._reading, self._writing = (
            make_throttle(scratch, rate, workers, what) for what, rate in rates._asdict().items()
        )

    def on(self, limits: Limits) -> Limits:
        """A copy of ``limits`` that uses these throttles."""
        return replace(
            limits, reading=(self._both, self._reading), writing=(self._both, self._writing)
        )

    def set_rates(self, rates: Rates) -> None:
        """Change the rates for all workers. Workers still wait for earlier bytes."""
        for throttle, rate in zip((self._both, self._reading, self._writing), rates, strict=True):
            pacer_of(throttle).set_rate(rate)

    def stop(self) -> None:
        """Make the next read or write of every worker fail. Workers that sleep fail too."""
        for throttle in (self._both, self._reading, self._writing):
            pacer_of(throttle).stop()


def make_throttle(scratch: str, bytes_per_second: float, workers: int, what: str = "") -> Throttle:
    """A throttle for all ``workers``. The workers share a file in ``scratch``.

    Without ``scratch``, each worker gets an equal part of the rate.
    """
    if not scratch:
        return Throttle("", bytes_per_second / workers, what)
    path = os.path.join(scratch, f"throttle-{uuid.uuid4().hex[:12]}")
    with open(path, "xb") as file:
        file.write(_PACE.pack(bytes_per_second, time.monotonic(), 0.0, 0.0) + b"\0")
    return Throttle(path, bytes_per_second, what)


def spender(throttles: Sequence[Throttle]) -> Spend:
    """A function that counts bytes on all the throttles, and waits as their rates require."""
    pacers = [pacer_of(throttle) for throttle in throttles]

    def spend(size_bytes: int) -> None:
        for pacer in pacers:
            pacer.throttle(size_bytes)

    return spend


# A process has only one pacer per throttle: if it closed a second handle of the file, it would lose
# its record locks.
@lru_cache(maxsize=24)
def pacer_of(throttle: Throttle) -> Pacer:
    """The only ``Pacer`` of a throttle in this process, created on first use."""
    return Pacer(throttle)
