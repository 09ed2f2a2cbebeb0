"""Topic folders for tests: ledgers written and read with the slow codecs of ``formats.pulsar``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID, uuid5

from lastwrite.pulsar.format.compacted import decode_record
from lastwrite.pulsar.format.ledger_metadata import (
    Digest,
    LedgerMetadata,
    LedgerState,
    custom_items,
)
from lastwrite.pulsar.format.names import INDEX_SUFFIX, TopicName, object_name
from lastwrite.pulsar.format.offload import IndexObject, walk_data
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.manifest import read_manifest
from tests.support.pulsar.writers import encode_data

TOPIC = "persistent://public/default/t"
_SPACE = UUID("b6f1c1d2-7a54-4f0e-9a43-1f5a4f0a5d11")


def topic_folder(archive: Path, topic: str = TOPIC) -> Path:
    """The topic's folder, which is created."""
    folder = archive.joinpath(*TopicName.parse(topic).managed_ledger.split("/"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def put_ledger(
    folder: Path,
    ledger: int,
    entries: Sequence[bytes],
    block_bytes: int = 1 << 20,
    custom: Mapping[str, bytes] | None = None,
    uuid: UUID | None = None,
) -> Path:
    """Write a ledger as the offloader does. Returns the path of the data object.

    Each object appears whole, the index first, because a server may list the folder at any time.
    """
    data, blocks = encode_data(entries, block_bytes)
    metadata = LedgerMetadata(
        quorum=1,
        ensemble=1,
        ack_quorum=1,
        length=sum(map(len, entries)),
        last_entry=len(entries) - 1,
        state=LedgerState.CLOSED,
        digest=Digest.CRC32C,
        custom_items=custom_items(
            {"application": b"pulsar", "component": b"managed-ledger", **(custom or {})}
        ),
    )
    path = folder / object_name(uuid or uuid5(_SPACE, f"{folder}/{ledger}"), ledger)
    index = IndexObject(
        data_bytes=len(data), metadata_bytes=metadata.encode(), blocks=tuple(blocks)
    )
    aside = folder.with_name(f"{folder.name}.aside")
    for name, content in ((path.name + INDEX_SUFFIX, index.encode()), (path.name, data)):
        aside.write_bytes(content)
        aside.rename(folder / name)
    return path


def read_ledger(path: Path) -> list[bytes]:
    """The entries of a data object. Its index must agree."""
    data = path.read_bytes()
    index = IndexObject.decode(path.with_name(path.name + INDEX_SUFFIX).read_bytes())
    found = [(entry, data[at : at + size]) for entry, at, size in walk_data(data)]
    assert [entry for entry, _ in found] == list(range(len(found)))
    assert (index.data_bytes, index.metadata.last_entry) == (len(data), len(found) - 1)
    assert index.metadata.length == sum(len(each) for _, each in found)
    for block in index.blocks:
        assert next(walk_data(data[block.offset : index.block_end(block)]))[0] == block.first_entry
    return [each for _, each in found]


def read_compacted(folder: Path) -> list[tuple[Position, bytes]]:
    """The ids and bodies of the manifest's compacted ledger.

    All ids must have the same partition.
    """
    manifest = read_manifest(str(folder))
    assert manifest is not None
    records = [decode_record(each) for each in read_ledger(folder / manifest.object)]
    name = TopicName.of_managed_ledger("/".join(folder.parts[-4:]))
    assert {partition for _, partition, _ in records} <= {name.partition}
    places = [position for position, _, _ in records]
    assert places == sorted(set(places))
    assert manifest.entries == len(records)
    assert (manifest.from_, manifest.to) == (
        (places[0], places[-1]) if places else (manifest.horizon,) * 2
    )
    return [(position, body) for position, _, body in records]
