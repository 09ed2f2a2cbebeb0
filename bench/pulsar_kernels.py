"""Nanoseconds for a message in each step over Pulsar's entries, on one core: the best of many runs.

    python -m bench.pulsar_kernels

Messages have 110 bytes and keys of 5 to 10, as the Java client sends them: single ones and batches
of 200, uncompressed or in each codec. Values of compressed batches compress to about a fifth. One
in four messages is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np

from lastwrite.encoding.fingerprint import SECRET_WORDS, secret_from
from lastwrite.model.columns import COPY, DROP, REBUILD, ROW_COLUMNS, BatchTable
from lastwrite.pulsar.format.chunk import PulsarFormat
from lastwrite.pulsar.format.codecs import PulsarCodec
from lastwrite.pulsar.format.entry import PulsarMessage, encode_batch, encode_entry, encode_single
from lastwrite.pulsar.format.offload import block_header
from lastwrite.pulsar.format.survey import EntrySurveyor

_RUNS = 15
_MESSAGES = 6000
_BATCH = 200
_STAMP = 1_700_000_000_000
_BASE = 10 << 32
_KEPT = 0.25
_SECRET = secret_from(bytes(range(1, 9)) * SECRET_WORDS)


def messages(draw: np.random.Generator, packs: bool) -> list[PulsarMessage]:
    """The messages of one measurement."""
    return [
        PulsarMessage(
            key=b"key-%d" % draw.integers(0, 250_000),
            sequence_id=n,
            publish_time=_STAMP + n,
            value=(b"value-%d-" % draw.integers(0, 1000) * 20)[:110] if packs else draw.bytes(110),
        )
        for n in range(_MESSAGES)
    ]


def data_object(bodies: list[bytes]) -> bytes:
    """A data object with one block of entries."""
    content = b"".join(
        len(body).to_bytes(4, "big") + number.to_bytes(8, "big") + body
        for number, body in enumerate(bodies)
    )
    return block_header(128 + len(content), 0) + content


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest run."""
    fastest = float("inf")
    for _ in range(_RUNS):
        begin = time.perf_counter()
        work()
        fastest = min(fastest, time.perf_counter() - begin)
    return fastest


def measure(name: str, content: bytes) -> None:
    """Print the time of each step over the object."""
    data = np.frombuffer(content, dtype=np.uint8).copy()
    form, surveyor = PulsarFormat(), EntrySurveyor()
    states = np.empty(_MESSAGES, dtype=np.uint8)
    entries = np.empty((_MESSAGES, 2), dtype=np.uint64)
    out = np.empty(2 * len(data), dtype=np.uint8)
    rows = np.empty((_MESSAGES, ROW_COLUMNS), dtype=np.int64)
    keep = (np.random.default_rng(2).random(_MESSAGES) < _KEPT).astype(np.uint8)

    def tables() -> Iterator[BatchTable]:
        at, lowest = 0, _BASE
        while at < len(data):
            table, at, _, _ = form.split(data, at, len(data), lowest)
            lowest = int(table["next_offset"][-1])
            yield table

    def split() -> None:
        for _ in tables():
            pass

    def survey() -> None:
        at, lowest = 0, _BASE
        while at < len(data):
            found, at, _ = surveyor.take(data, at, len(data), lowest)
            lowest = int(found["offset"][-1]) + 1

    def scan() -> None:
        filled = seen = 0
        for table in tables():
            for run in form.opened(data, table):
                filled = form.walk(run, table, _SECRET, seen, states[seen:], entries, filled)
                seen += int(table["records"][run.first : run.last].sum())
        assert seen == _MESSAGES

    def rewrite() -> None:
        seen = 0
        for table in tables():
            records = table["records"]
            here = keep[seen : seen + int(records.sum())]
            seen += len(here)
            kept = np.add.reduceat(here.astype(np.int64), np.cumsum(records) - records)
            actions = np.where(kept == 0, DROP, np.where(kept == records, COPY, REBUILD)).astype(
                np.uint8
            )
            form.rebuild(
                data, table, actions, np.zeros(len(table), dtype=np.int64), here, out, rows
            )

    for step, work in (
        ("survey", survey),
        ("split", split),
        ("split and walk", scan),
        ("split and rebuild", rewrite),
    ):
        seconds = best(work)
        print(
            f"{name:14} {step:18} {seconds / _MESSAGES * 1e9:7.1f} ns a message {len(data) / seconds / 1e9:7.2f} GB/s"
        )


def main() -> None:
    draw = np.random.default_rng(1)
    measure(
        "single",
        data_object([encode_entry(*encode_single(each)) for each in messages(draw, packs=False)]),
    )
    for codec in PulsarCodec:
        some = messages(draw, packs=bool(codec))
        batches = [some[n : n + _BATCH] for n in range(0, _MESSAGES, _BATCH)]
        bodies = [encode_entry(*encode_batch(batch, codec=codec)) for batch in batches]
        measure(f"batches, {codec.label}", data_object(bodies))


if __name__ == "__main__":
    main()
