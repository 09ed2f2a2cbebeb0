"""Topic folders as ``fetch`` and rounds leave them, made from entries: for tests of those who read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from lastwrite.formats.pulsar.compacted import decode_record, encode_record, ledger_custom_metadata
from lastwrite.formats.pulsar.entry import (
    Message,
    decode_entry,
    encode_batch,
    encode_entry,
    encode_single,
    is_undecodable,
    messages_of,
)
from lastwrite.formats.pulsar.ledger_metadata import Digest, LedgerMetadata, LedgerState, custom_items
from lastwrite.formats.pulsar.names import INDEX_SUFFIX, TopicName, object_name
from lastwrite.formats.pulsar.offload import BLOCK_HEADER_BYTES, ENTRY_HEAD_BYTES, IndexObject, encode_data
from lastwrite.formats.pulsar.position import Position
from lastwrite.logstore.pulsar.manifest import Manifest, read_manifest, replace_manifest

TOPIC = "persistent://public/default/orders"
START_MS = 1_700_000_000_000


def single(key: str | None, value: str | bytes | None, sequence: int = 0, **fields: Any) -> bytes:
    """A message that was sent alone, framed; value None: a null."""
    plain = b"" if value is None else value.encode() if isinstance(value, str) else value
    codec = fields.pop("codec", None)
    message = Message(
        key=None if key is None else key.encode(), value=plain, is_null=value is None, sequence_id=sequence,
        publish_time=START_MS + sequence, **fields,
    )  # fmt: skip
    return encode_entry(*(encode_single(message) if codec is None else encode_single(message, codec=codec)))


def batch(messages: Sequence[tuple[str | None, str | None]], sequence: int = 0, **how: Any) -> bytes:
    """A batch of keys and values, framed; of ``"gone"`` as a key a placeholder."""
    found = [
        Message(
            index=index, key=None if key is None else key.encode(), value=(value or "").encode(),
            is_null=value is None, sequence_id=sequence + index, publish_time=START_MS + sequence,
            compacted_out=key == "gone",
        )
        for index, (key, value) in enumerate(messages)
    ]  # fmt: skip
    return encode_entry(*encode_batch(found, **how))


def topic_folder(archive: Path, topic: str = TOPIC) -> Path:
    folder = archive / TopicName.parse(topic).managed_ledger
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_ledger(
    folder: Path, ledger: int, entries: Sequence[bytes], custom: Mapping[str, bytes] | None = None,
    block_bytes: int = 64 << 20,
) -> Path:  # fmt: skip
    """A ledger's two objects; the path of the data. A block is larger where an entry needs it."""
    largest = BLOCK_HEADER_BYTES + ENTRY_HEAD_BYTES + max(map(len, entries), default=0)
    data, blocks = encode_data(entries, max(block_bytes, largest))
    metadata = LedgerMetadata(
        quorum=1, ensemble=1, length=sum(map(len, entries)), last_entry=len(entries) - 1, state=LedgerState.CLOSED,
        digest=Digest.CRC32C if custom is None else Digest.CRC32, custom_items=custom_items(dict(custom or {})),
    )  # fmt: skip
    path = folder / object_name(uuid4() if custom else UUID(int=ledger), ledger)
    Path(f"{path}{INDEX_SUFFIX}").write_bytes(IndexObject(len(data), metadata.encode(), tuple(blocks)).encode())
    path.write_bytes(data)
    return path


def write_compacted(
    folder: Path, ledger: int, entries: Sequence[tuple[Position, bytes]], horizon: Position,
    block_bytes: int = 64 << 20, messages: int | None = None,
) -> Manifest:  # fmt: skip
    """Publish a compacted ledger as a round does: its objects, then the manifest, then the former one is removed."""
    name = TopicName.of_managed_ledger("/".join(folder.parts[-4:]))
    former = read_manifest(str(folder))
    last = entries[-1][0] if entries else horizon
    custom = ledger_custom_metadata(name.full, last, name.partition) | {"lastwrite": b"1"}
    records = [encode_record(position, name.partition, body) for position, body in entries]
    path = write_ledger(folder, ledger, records, custom, block_bytes)
    manifest = Manifest(
        topic=name.full, ledger=ledger, object=path.name, from_=entries[0][0] if entries else horizon, to=last,
        horizon=horizon, entries=len(entries), size_bytes=sum(map(len, records)),
        messages=_count(entries) if messages is None else messages,
    )  # fmt: skip
    replace_manifest(str(folder), manifest)
    if former is not None:
        for suffix in ("", INDEX_SUFFIX):
            Path(f"{folder / former.object}{suffix}").unlink(missing_ok=True)
    return manifest


def write_records(folder: Path, ledger: int, records: Sequence[bytes], horizon: Position) -> Manifest:
    """The same of a real compacted ledger's entries."""
    found = [decode_record(record) for record in records]
    return write_compacted(folder, ledger, [(position, body) for position, _, body in found], horizon)


def _count(entries: Sequence[tuple[Position, bytes]]) -> int:
    """The messages in them; what cannot be looked into is one."""
    count = 0
    for position, body in entries:
        entry = decode_entry(body, *position)
        unreadable = is_undecodable(entry)
        count += 1 if unreadable else sum(not message.compacted_out for message in messages_of(entry))
    return count
