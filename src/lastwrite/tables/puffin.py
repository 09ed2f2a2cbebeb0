"""Deletion vectors of an Iceberg table: a Puffin file per commit, with a blob for each data file.

    ======  ============  =========================================================
    at      type
    ======  ============  =========================================================
    0       4 bytes       magic, ``PFA1``
    4                     blobs, one after another: see ``vectors``
            4 bytes       magic
                          JSON: type, offset, length and properties of each blob
    end-12  i32, little   bytes of the JSON
    end-8   4 bytes       flags: none is set, the JSON is not compressed
    end-4   4 bytes       magic
    ======  ============  =========================================================

Manifests contain the offset and length of each blob, so most readers of a table do not need the
footer. pyiceberg reads it.

Source: Iceberg's Puffin, ``deletion-vector-v1``; its table format, Deletion Vectors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from lastwrite.model.columns import Int64Array
from lastwrite.tables.vectors import encode

MAGIC: Final = b"PFA1"
_BLOB: Final = "deletion-vector-v1"
_POSITION: Final = 2147483645  # reserved id of the column ``_pos``, which vectors refer to


def encode_puffin(deleted: Mapping[str, Int64Array]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """Encode deletion vectors as a Puffin file.

    Returns the file's bytes, and the offset and length of each data file's blob.
    """
    parts, at, places, blobs = [MAGIC], len(MAGIC), {}, []
    for name, positions in deleted.items():
        vector = encode(positions)
        places[name] = at, len(vector)
        blobs.append(
            {
                "type": _BLOB,
                "fields": [_POSITION],
                "snapshot-id": -1,  # -1 means inherited from the commit, like the sequence number
                "sequence-number": -1,
                "offset": at,
                "length": len(vector),
                "properties": {"referenced-data-file": name, "cardinality": str(len(positions))},
            }
        )
        parts.append(vector)
        at += len(vector)
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": "lastwrite"}}).encode()
    parts += [MAGIC, footer, len(footer).to_bytes(4, "little"), bytes(4), MAGIC]
    return b"".join(parts), places
