"""The coverage of the fuzz tests: a target runs each reader of bytes, or a reason is given here.

A reader of bytes is a public function or method of the formats (``FOLDERS``) that takes bytes.
``tests/unit/test_fuzz.py`` fails if a reader is neither covered nor listed.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import lastwrite

# The folders whose modules read bytes, by the prefix with which this file names their modules.
FOLDERS = {
    "": "encoding",
    "scan_cache.": "scan_cache",
    "decoding.": "decoding",
    "kafka.": "kafka/format",
    "kafka.automq.": "kafka/automq",
    "kafka.cluster.": "kafka/cluster",
    "kafka.look.": "kafka/look",
    "kafka.old_format.": "kafka/old_format",
    "kafka.producers.": "kafka/producers",
    "kafka.recovery.": "kafka/recovery",
    "pulsar.": "pulsar/format",
    "rocketmq.": "rocketmq/format",
}
_PACKAGES = {front: "lastwrite." + folder.replace("/", ".") for front, folder in FOLDERS.items()}


def imported(name: str) -> str:
    """The full name of a reader's module."""
    front, dot, module = name.partition(":")[0].rpartition(".")
    return f"{_PACKAGES[front + dot]}.{module}"


_NO_FORMATS = ("intrinsics", "files", "cache", "task", "survivors")

# Prefixes of functions that only write bytes.
WRITERS = (
    "encode_",
    "put",
    "compress",
    "wrapped",
    "framed",
    "patched",
    "seal_",
    "inserted",
    "with_",
)
NOT_READERS = {
    # The caller has found the position. Every kernel that reads runs these.
    "big_endian:i64": "loads",
    "big_endian:i32": "loads",
    "big_endian:u32": "loads",
    "big_endian:i16": "loads",
    "big_endian:u16": "loads",
    "checksum:crc32": "sums",
    "checksum:crc32c": "sums",
    "fingerprint:fingerprint": "sums",
    "kafka.partitioner:murmur2": "sums",
    "kafka.partitioner:partition_of": "sums",
    "slices:gathered": "copies stretches that are known",
    "slices:bytes_of": "the same, as objects",
    "json_structs:decode_struct": "msgspec reads; the readers of each struct are fuzzed",
    "layout:Layout.unpack_from": "callers have checked the size",
    "layout:Layout.iter_unpack": "as unpack_from",
    # These read Lastwrite's own secrets and random numbers.
    "fingerprint:secret_from": "random bytes",
    "kafka.look.content:seed_from": "random bytes",
    "scan_cache.format:digest_of": "our secret",
    "decoding.slots:FilledColumns.__init__": "what a kernel has filled",
    # These write.
    "pulsar.framing:frame": "writes what a round has read",
    "pulsar.framing:renumber": "writes what it has framed",
    "pulsar.ledger_metadata:custom_items": "writes",
    "rocketmq.record:make_message": "writes",
    "rocketmq.index_file:build": "writes",
    "kernel_cache:store_code": "writes",
    "scan_cache.format:header_of": "writes",
    "rocketmq.chunk:RocketmqFormat.add_versions": "there are none",
    # Of the functions for inspection, only those for ``verify`` decode a format of their own.
    "kafka.look.problems:frame_bytes": "inspect and dump, on damaged logs in test_damage.py",
    "kafka.look.rows:index_rows": "dump, by the decoders of kafka.index",
    "kafka.look.rows:batch_row": "dump, by the decoders of kafka.batch",
    "kafka.look.survey:Surveyor.count": "inspect, by KafkaFormat",
    "kafka.producers.history:decode_aborted": "kafka.index:decode_transaction_index, as values",
    "kafka.cluster.message:MessageReader.__init__": "a target has it as MessageReader",
    # These read batches that KafkaFormat has already checked.
    "kafka.gather:gather": "as kernels.walk, beside decode_batch in test_gather.py",
    "kafka.outgoing:Sender.batches": "as kernels.walk, beside decode_batch in test_outgoing.py",
    "kafka.outgoing_kernels:renumber": "the same",
    "rocketmq.gather:gather": "messages that were split, beside read in test_other_rows.py",
    "pulsar.gather:open_singles": "entries that were split, beside read in test_other_rows.py",
    "kafka.kernels:reseal": "writes",
    "kafka.transplant:Transplant.of": "drawn logs in test_kafka_restore.py",
    "kafka.producers.history:sightings_in": "headers that were split",
    "kafka.producers.last_batches:LastBatches.add": "headers that were split",
    # File names in a tier. test_kafka_tier.py has damaged ones.
    "kafka.names:decode_tier_folder": "a name",
    "kafka.names:decode_tier_file": "a name",
    # Stored scans in an archive are encrypted. test_kept_objects.py damages them at random.
    "scan_cache.format:split_block": "test_kept_objects.py",
    "scan_cache.objects:read_cached": "test_kept_objects.py",
    "scan_cache.objects:CacheObjectWriter.__init__": "writes",
    "scan_cache.objects:CacheObjectWriter.append": "writes",
    "scan_cache.secret:partition_secret": "our secret",
}
_BYTES = ("Buffer", "bytes", "ByteArray", "memoryview", "Units")
_BARE = (
    "data",
    "buffer",
    "source",
    "plain",
    "segment",
    "text",
    "raw",
    "payload",
)  # names of untyped kernel parameters
# functions that take a name or JSON
_OF_TEXT = ("parse", "decode", "from_", "classify", "of_managed_ledger")


@functools.cache
def readers() -> list[str]:
    """Every public function and method of the formats that takes bytes, as ``module:name``."""
    root = Path(lastwrite.__file__).parent
    found = []
    for front, folder in FOLDERS.items():
        for path in sorted((root / folder).glob("*.py")):
            if path.stem in _NO_FORMATS:
                continue
            found += [
                f"{front}{path.stem}:{name}"
                for name in _named(ast.parse(path.read_text()).body, "")
            ]
    return [
        name for name in found if not name.rpartition(":")[2].rpartition(".")[2].startswith(WRITERS)
    ]


def _named(body: list[ast.stmt], front: str) -> Iterator[str]:
    for item in body:
        if isinstance(item, ast.ClassDef) and not item.name.startswith("_"):
            yield from _named(item.body, f"{front}{item.name}.")
        elif isinstance(item, ast.FunctionDef) and (
            not item.name.startswith("_") or item.name == "__init__"
        ):
            given = [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]
            if any(_takes_bytes(one, item.name) for one in given):
                yield front + item.name


def _takes_bytes(one: ast.arg, function: str) -> bool:
    if one.annotation is None:
        return one.arg in _BARE
    kind = ast.unparse(one.annotation)
    return any(word in kind for word in _BYTES) or (kind == "str" and function.startswith(_OF_TEXT))
