"""Deletion vectors of a Delta table: their files, and the log actions that refer to them.

    _vectors/deletion_vector_<uuid>.bin   1 byte, the version, 1; then vectors, see ``vectors``

All vectors of a commit are in one file. Its folder begins with an underscore, because delta-rs'
full vacuum ignores references to vectors: in other folders it would remove the file.

An action that replaces or removes a data file must repeat the descriptor of its vector, which
deltalake does not return. The last action of each file is therefore read from the last checkpoint
and the commits since then.

Source: Delta's protocol, Deletion Vectors.
"""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq

from lastwrite.errors import UnsupportedFormat
from lastwrite.model.columns import Int64Array
from lastwrite.storage.objects.address import join
from lastwrite.tables.conditional import lost, was_put
from lastwrite.tables.files import locate
from lastwrite.tables.format import ANEW
from lastwrite.tables.vectors import AROUND, encode, read

FEATURE: Final = "deletionVectors"
SWITCH: Final = "delta.enableDeletionVectors"  # the table property
FOLDER: Final = "_vectors"
_VERSION: Final = b"\x01"
_UUID_CHARACTERS: Final = 20
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_TO_Z85, _FROM_Z85 = bytes.maketrans(_B85, _Z85), bytes.maketrans(_Z85, _B85)
_READ = "path", "modificationTime", "stats", "deletionVector"


class LastAction(NamedTuple):
    """The last ``add`` action of a data file in the log."""

    stats: Mapping[str, Any]
    modified_ms: int
    vector: Mapping[str, Any] | None  # descriptor of the file's deletion vector, if it has one


def vector_path(address: str, descriptor: Mapping[str, Any]) -> str:
    """The path of the file that contains a vector.

    Raises:
        UnsupportedFormat: the vector is not in a file below the table's address.
    """
    text = descriptor["pathOrInlineDv"]
    prefix, name = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
    try:
        if descriptor["storageType"] != "u":
            raise ValueError
        id_ = uuid.UUID(bytes=base64.b85decode(name.encode().translate(_FROM_Z85)))
    except ValueError as error:
        raise UnsupportedFormat(
            "Lastwrite does not support deletion vectors of storage type "
            f"{descriptor['storageType']!r}, {text[:40]!r}",
            path=address,
            remedy=ANEW,
        ) from error
    return join(address, *filter(None, prefix.split("/")), f"deletion_vector_{id_}.bin")


def write_vectors(
    address: str, deletes: Mapping[str, Int64Array]
) -> Mapping[str, Mapping[str, Any]]:
    """Write the vectors of data files to one new file.

    Returns their descriptors by data file path.
    """
    if not deletes:
        return {}
    id_ = uuid.uuid4()
    name = FOLDER + base64.b85encode(id_.bytes).translate(_TO_Z85).decode()
    parts, at, found = [_VERSION], len(_VERSION), {}
    for path, positions in deletes.items():
        vector = encode(positions)
        found[path] = {
            "storageType": "u",
            "pathOrInlineDv": name,
            "offset": at,
            "sizeInBytes": len(vector) - AROUND,
            "cardinality": len(positions),
        }
        parts.append(vector)
        at += len(vector)
    path = join(address, FOLDER, f"deletion_vector_{id_}.bin")
    store, key = locate(path)
    if not was_put(store, key, b"".join(parts), None):
        raise lost(path, "nothing")
    return found


def read_vector(address: str, descriptor: Mapping[str, Any]) -> Int64Array:
    """The positions in a vector, ascending.

    Raises:
        CorruptLog: the vector is missing or damaged, or its count of positions is wrong.
        UnsupportedFormat: as ``vector_path``.
    """
    return read(
        vector_path(address, descriptor),
        descriptor.get("offset") or 0,
        descriptor["sizeInBytes"] + AROUND,
        descriptor["cardinality"],
    )


def last_actions(commits: Sequence[bytes], checkpoint: Sequence[bytes]) -> Mapping[str, LastAction]:
    """The last ``add`` action of each path in the log. Removed files may be included.

    Args:
        commits: the contents of the commits since the checkpoint, the newest first.
        checkpoint: the contents of the checkpoint's files. Empty means there is no checkpoint.
    """
    found: dict[str, LastAction] = {}
    for content in commits:
        # if a commit removes and adds the same path, only the vector of ``add`` is current
        for action in map(json.loads, content.splitlines()):
            if added := action.get("add"):
                found.setdefault(added["path"], _last(added))
    for content in checkpoint:
        for added in _checkpointed(content):
            found.setdefault(added["path"], _last(added))
    return found


def _checkpointed(content: bytes) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(io.BytesIO(content)) as file:
        for batch in file.iter_batches(columns=[f"add.{name}" for name in _READ]):
            yield from (each for each in batch.column("add").to_pylist() if each and each["path"])


def _last(added: Mapping[str, Any]) -> LastAction:
    vector = added.get("deletionVector")
    has = vector is not None and vector.get("storageType") is not None
    return LastAction(
        json.loads(added.get("stats") or "{}"), added["modificationTime"], vector if has else None
    )
