"""Deletion vectors of an Iceberg table: a Puffin file a commit, a blob for each file of rows.

    ======  ============  =========================================================
    at      type
    ======  ============  =========================================================
    0       4 bytes       magic, ``PFA1``
    4                     blobs, one behind the other: see ``vectors``
            4 bytes       magic
                          JSON: of each blob type, offset, length, properties
    end-12  i32, little   bytes of the JSON
    end-8   4 bytes       flags: none is set, the JSON is not compressed
    end-4   4 bytes       magic
    ======  ============  =========================================================

A manifest says where its file's blob lies, so readers of a table need no footer; pyiceberg reads it.

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
_POSITION: Final = 2147483645  # the number of the column that a vector is of, ``_pos``


def encode_puffin(deleted: Mapping[str, Int64Array]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A file of the vectors of files of rows, by their names; and offset and length of each."""
    parts, at, places, blobs = [MAGIC], len(MAGIC), {}, []
    for name, positions in deleted.items():
        vector = encode(positions)
        places[name] = at, len(vector)
        blobs.append(
            {
                "type": _BLOB,
                "fields": [_POSITION],
                "snapshot-id": -1,  # both are the commit's, and not known here
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
