"""Microseconds for a compressed batch, by step and by library, on one core.

    python -m bench.codecs                  # batches of 500 records of 107 bytes (55 KB plain)
    python -m bench.codecs --value 10240 --records 50

The results are processor seconds, the best of several runs over the same batches, so that the
machine's load matters little. A batch is reduced to a quarter of its records before it is
compressed again, as in a round over a log with four writes of each key.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import cramjam
import lz4.block
import lz4.frame
import numpy as np
import zstandard

from lastwrite.encoding.compression import Codec, Codecs, compress, decompress_into
from lastwrite.encoding.lz4_frame import decode_frame
from lastwrite.kafka.format.batch import encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.chunk import KafkaFormat
from lastwrite.model.columns import NO_HORIZON, ByteArray

_STAMP = 1_700_000_000_000
_RUNS = 7
_HEADER_BYTES = 61


def batches(codec: Codec, count: int, records: int, value: int) -> list[bytes]:
    """Batches with random keys. A third of each value is random, the rest are repeated words."""
    draw = np.random.default_rng(1)
    words = [draw.bytes(6).hex().encode() for _ in range(300)]
    out = []
    for base in range(0, count * records, records):
        keys = draw.integers(0, 4_000_000, records).tolist()
        made = []
        for i, key in enumerate(keys):
            text = b" ".join(words[n] for n in draw.integers(0, len(words), value // 13 + 1))[
                :value
            ]
            made.append(Record(base + i, _STAMP + i // 100, b"key-%08d" % key, text, ()))
        out.append(encode_batch(made, base_offset=base, codec=codec))
    return out


def best(work: Callable[[], object]) -> float:
    """Processor seconds of the fastest run."""
    fastest = float("inf")
    for _ in range(_RUNS):
        begin = time.process_time()
        work()
        fastest = min(fastest, time.process_time() - begin)
    return fastest


def show(name: str, seconds: float, count: int, plain_bytes: int) -> None:
    print(
        f"  {name:48} {seconds / count * 1e6:8.2f} us a batch {plain_bytes / seconds / 1e9:6.2f} GB/s"
    )


def steps(data: ByteArray, count: int, plain_bytes: int) -> None:
    """Time the format's own calls: a scan and a rewrite, without reading and writing files."""
    form = KafkaFormat()
    table = form.split(data, 0, len(data), 0).table.copy()
    assert len(table) == count
    actions, horizons = np.ones(count, np.uint8), np.full(count, NO_HORIZON, np.int64)
    keep = (np.random.default_rng(2).random(int(table["records"].sum())) < 0.25).astype(np.uint8)
    out, rows = np.empty(2 * len(data) + (1 << 20), np.uint8), np.empty((count, 5), np.int64)

    def opened() -> None:
        for _ in form.opened(data, table):
            pass

    show("opened", best(opened), count, plain_bytes)
    show(
        "rebuild (opened, thinned, compressed, sealed)",
        best(lambda: form.rebuild(data, table, actions, horizons, keep, out, rows)),
        count,
        plain_bytes,
    )


def each(work: Callable[[ByteArray], object], blobs: Sequence[ByteArray]) -> float:
    def run() -> None:
        for blob in blobs:
            work(blob)

    return best(run)


def libraries(codec: Codec, packed: list[ByteArray]) -> None:
    """Time the compression libraries, one batch at a time."""
    out = np.empty(4 << 20, np.uint8)
    plain = [out[: decompress_into(codec, blob, out)].copy() for blob in packed]
    thin = [blob[: len(blob) // 4].copy() for blob in plain]
    codecs, opener = Codecs(), zstandard.ZstdDecompressor()
    packer = zstandard.ZstdCompressor(level=3, write_content_size=False)
    most = max(len(blob) for blob in plain)
    openers: dict[str, Callable[[ByteArray], object]] = {
        "compression.decompress_into": lambda blob: decompress_into(codec, blob, out),
    }
    packers: dict[str, Callable[[ByteArray], object]] = {
        "compression.compress": lambda blob: compress(codec, blob)
    }
    if codec is Codec.LZ4:
        openers |= {
            "cramjam.lz4.decompress_into": lambda blob: cramjam.lz4.decompress_into(blob, out),
            "lz4.frame.decompress": lz4.frame.decompress,
            "our kernel": lambda blob: decode_frame(
                blob.ctypes.data, 0, len(blob), len(blob), out.ctypes.data, 0, len(out)
            ),
        }
        packers |= {"lz4.block.compress": lambda blob: lz4.block.compress(blob, store_size=False)}
    if codec is Codec.ZSTD:
        openers |= {
            "Codecs.decompress_into": lambda blob: codecs.decompress_into(codec, blob, out),
            "zstandard, one shot, new bytes": lambda blob: opener.decompress(
                blob, max_output_size=most
            ),
        }
        packers |= {
            "Codecs.compress": lambda blob: codecs.compress(codec, blob),
            "zstandard, one shot (other bytes)": packer.compress,
        }
    for what, works, blobs in (("decompress", openers, packed), ("compress", packers, thin)):
        for name, work in works.items():
            show(
                f"{what}: {name}",
                each(work, blobs),
                len(blobs),
                sum(map(len, plain if works is openers else thin)),
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--codec", choices=[codec.label for codec in Codec if codec], action="append"
    )
    parser.add_argument("--records", type=int, default=500, help="in a batch")
    parser.add_argument("--value", type=int, default=88, help="bytes of a record's value")
    given = parser.parse_args()
    count = max(4, 200_000 // given.records * 100 // (given.value + 19))
    for codec in (
        found for found in Codec if found and (not given.codec or found.label in given.codec)
    ):
        made = batches(codec, count, given.records, given.value)
        data = np.frombuffer(b"".join(made), np.uint8).copy()
        packed = [np.frombuffer(batch, np.uint8)[_HEADER_BYTES:] for batch in made]
        out = np.empty(4 << 20, np.uint8)
        plain_bytes = sum(decompress_into(codec, blob, out) for blob in packed)
        print(
            f"{codec.label}: {count} batches, {plain_bytes // count} bytes plain, {len(data) // count} packed"
        )
        steps(data, count, plain_bytes)
        libraries(codec, packed)


if __name__ == "__main__":
    main()
