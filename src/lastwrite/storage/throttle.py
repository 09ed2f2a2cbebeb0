"""So many bytes a second, read and written, over all workers together; and a word to stop.

The workers of a machine share a small file in the scratch folder. It says at which pace bytes fall
due, from an anchor on: at 100 bytes a second, anchored at second 7, the 50th byte is due at 7.5.
Who has read or written some adds them to the common count and sleeps until its last one is due::

    offset  type
    0       f64   bytes a second; infinity: as fast as it goes
    8       f64   the anchor, in seconds of the machine's monotonic clock
    16      f64   the count at the anchor
    24      f64   the count now
    32      u8    1: stop

A change of the rate moves the anchor, and sleepers look again, so it acts at once. Time in which
nobody had anything to do is not saved up, but for as much as Kafka looks back, 300 ms. On a
cluster, where no file is shared, each worker keeps its own count, with its part of the rate.

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

# to be told of bytes; waits, and raises LogError where the work shall stop
Spend: TypeAlias = Callable[[int], None]

_PACE = struct.Struct("=dddd")
_STOP = _PACE.size
_SIZE = _STOP + 1
_SAVED_S = 0.3
_LOOK_S = 0.1  # so often a sleeper looks whether rate or orders have changed
_LEAST_SLEEP_S = 0.01


class Pacer:
    """One throttle, as a process that reads and writes sees it; threads may share it."""

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

    # bound: the interpreter may be ending
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self._file is not None:
            close(self._file)

    def spend(self, size_bytes: int) -> None:
        """Say that so many bytes were read or written, and wait as long as the rate asks for.

        Raises:
            LogError: the work is to stop now.
        """
        self._check()
        if not math.isfinite(self.bytes_per_second):
            return
        with self._turn():
            rate, anchor, base, count = self._read()
            now = time.monotonic()
            if math.isfinite(rate) and anchor + (count - base) / rate < now - _SAVED_S:
                anchor, base = now - _SAVED_S, count
            mine = count + size_bytes
            self._write(rate, anchor, base, mine)
        while True:
            with self._turn():
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
        """Let all who share it go on at another pace. What was read too early by the old one is
        waited for.
        """
        with self._turn():
            rate, anchor, base, count = self._read()
            now = time.monotonic()
            if rate != bytes_per_second:
                due = base + (now - anchor) * rate if math.isfinite(rate) else count
                self._write(bytes_per_second, now, min(due, count), count)

    def stop(self) -> None:
        """Let the next ``spend`` of anybody fail."""
        self._pace[_STOP] = 1

    @property
    def is_stopped(self) -> bool:
        return bool(self._pace[_STOP])

    def _check(self) -> None:
        if self.is_stopped:
            raise LogError(
                "the work was stopped", remedy="the log is as it was; start again when you like"
            )

    def _read(self) -> tuple[float, float, float, float]:
        return _PACE.unpack_from(self._pace, 0)

    def _write(self, *pace: float) -> None:
        _PACE.pack_into(self._pace, 0, *pace)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._lock:  # record locks are a process's, not a thread's
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                if self._file is not None:
                    fcntl.lockf(self._file, fcntl.LOCK_UN)


class Throttles:
    """The throttles of a run: on what is read and written together, on what is read, and on what is
    written.
    """

    def __init__(self, scratch: str, rates: Rates, workers: int) -> None:
        """``scratch``, ``workers``: as for ``make_throttle``."""
        self._both, self._reading, self._writing = (
            make_throttle(scratch, rate, workers, what) for what, rate in rates._asdict().items()
        )

    def on(self, limits: Limits) -> Limits:
        """``limits``, and these throttles."""
        return replace(
            limits, reading=(self._both, self._reading), writing=(self._both, self._writing)
        )

    def set_rates(self, rates: Rates) -> None:
        """Let all who share them go on at another pace: see ``Pacer.set_rate``."""
        for throttle, rate in zip((self._both, self._reading, self._writing), rates, strict=True):
            pacer_of(throttle).set_rate(rate)

    def stop(self) -> None:
        """Let whoever reads or writes next fail, sleepers too."""
        for throttle in (self._both, self._reading, self._writing):
            pacer_of(throttle).stop()


def make_throttle(scratch: str, bytes_per_second: float, workers: int, what: str = "") -> Throttle:
    """A throttle for all ``workers``: a file in the folder ``scratch``, or without one a part of
    the rate for each.
    """
    if not scratch:
        return Throttle("", bytes_per_second / workers, what)
    path = os.path.join(scratch, f"throttle-{uuid.uuid4().hex[:12]}")
    with open(path, "xb") as file:
        file.write(_PACE.pack(bytes_per_second, time.monotonic(), 0.0, 0.0) + b"\0")
    return Throttle(path, bytes_per_second, what)


def spender(throttles: Sequence[Throttle]) -> Spend:
    """What to call with each number of bytes: ``Pacer.spend`` of all of them. Without a throttle
    nobody waits.
    """
    pacers = [pacer_of(throttle) for throttle in throttles]

    def spend(size_bytes: int) -> None:
        for pacer in pacers:
            pacer.spend(size_bytes)

    return spend


# One a throttle: record locks go with the first handle that is closed.
@lru_cache(maxsize=24)
def pacer_of(throttle: Throttle) -> Pacer:
    """This process's share in a throttle."""
    return Pacer(throttle)
