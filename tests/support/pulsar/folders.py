"""Topic folders made from entries, as ``fetch`` and rounds leave them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from lastwrite.pulsar.format.compacted import encode_record, ledger_custom_metadata
from lastwrite.pulsar.format.entry import (
    PulsarMessage,
    decode_entry,
    encode_batch,
    encode_entry,
    encode_single,
    is_undecodable,
    messages_of,
)
from lastwrite.pulsar.format.names import INDEX_SUFFIX, TopicName
from lastwrite.pulsar.format.offload import BLOCK_HEADER_BYTES, ENTRY_HEAD_BYTES
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.manifest import CompactionManifest, read_manifest, replace_manifest
from tests.support.pulsar.topics import put_ledger

START_MS = 1_700_000_000_000


def single(key: str | None, value: str | bytes | None, sequence: int = 0, **fields: Any) -> bytes:
    """A framed entry of one message. Value None means a null value."""
    plain = b"" if value is None else value.encode() if isinstance(value, str) else value
    codec = fields.pop("codec", None)
    message = PulsarMessage(
        key=None if key is None else key.encode(),
        value=plain,
        is_null=value is None,
        sequence_id=sequence,
        publish_time=START_MS + sequence,
        **fields,
    )
    return encode_entry(
        *(encode_single(message) if codec is None else encode_single(message, codec=codec))
    )


def batch(
    messages: Sequence[tuple[str | None, str | None]], sequence: int = 0, **how: Any
) -> bytes:
    """A framed batch of keys and values. The key ``"gone"`` makes a placeholder."""
    found = [
        PulsarMessage(
            index=index,
            key=None if key is None else key.encode(),
            value=(value or "").encode(),
            is_null=value is None,
            sequence_id=sequence + index,
            publish_time=START_MS + sequence,
            compacted_out=key == "gone",
        )
        for index, (key, value) in enumerate(messages)
    ]
    return encode_entry(*encode_batch(found, **how))


def write_ledger(
    folder: Path, ledger: int, entries: Sequence[bytes], block_bytes: int = 64 << 20
) -> Path:
    """Write a raw ledger's data object and index. Returns the path of the data object.

    A block is larger than ``block_bytes`` if an entry needs it.
    """
    return put_ledger(folder, ledger, entries, _fitting(block_bytes, entries))


def _fitting(block_bytes: int, entries: Sequence[bytes]) -> int:
    return max(
        block_bytes, BLOCK_HEADER_BYTES + ENTRY_HEAD_BYTES + max(map(len, entries), default=0)
    )


def write_compacted(
    folder: Path,
    ledger: int,
    entries: Sequence[tuple[Position, bytes]],
    horizon: Position,
    block_bytes: int = 64 << 20,
    messages: int | None = None,
) -> CompactionManifest:
    """Publish a compacted ledger as a round does.

    Writes its objects, then the manifest, and then removes the former compacted ledger.
    """
    name = TopicName.of_managed_ledger("/".join(folder.parts[-4:]))
    former = read_manifest(str(folder))
    last = entries[-1][0] if entries else horizon
    custom = ledger_custom_metadata(name.full, last, name.partition) | {"lastwrite": b"1"}
    records = [encode_record(position, name.partition, body) for position, body in entries]
    path = put_ledger(folder, ledger, records, _fitting(block_bytes, records), custom, uuid4())
    manifest = CompactionManifest(
        topic=name.full,
        ledger=ledger,
        object=path.name,
        from_=entries[0][0] if entries else horizon,
        to=last,
        horizon=horizon,
        entries=len(entries),
        size_bytes=sum(map(len, records)),
        messages=_count(entries) if messages is None else messages,
    )
    replace_manifest(str(folder), manifest)
    if former is not None:
        for suffix in ("", INDEX_SUFFIX):
            Path(f"{folder / former.object}{suffix}").unlink(missing_ok=True)
    return manifest


def _count(entries: Sequence[tuple[Position, bytes]]) -> int:
    """The number of messages in the entries. An entry that cannot be decoded counts as one."""
    count = 0
    for position, body in entries:
        entry = decode_entry(body, *position)
        unreadable = is_undecodable(entry)
        count += (
            1 if unreadable else sum(not message.compacted_out for message in messages_of(entry))
        )
    return count
