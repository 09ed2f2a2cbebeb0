"""What a log says of a table's rows: the last write, or the delete, of each key, bucket by bucket.

Either of what was written since the table's offsets, or of the whole log. They are gathered by
bucket in memory, and beyond a limit in scratch files, so that a bucket can be looked at by itself.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lastwrite.decoding.options import ASIDE, NULL, DecodingConfig
from lastwrite.errors import BadValue, InvalidConfig
from lastwrite.model.columns import RecordColumns
from lastwrite.model.log import TopicPartition
from lastwrite.rows.arrow import HEADERS, arrow_schema, batches_of
from lastwrite.rows.decoded import REMEDY, DecodedRows, decoder_of, put_aside
from lastwrite.rows.last_writes import LastWrites
from lastwrite.rows.reading import read_records
from lastwrite.storage.run_folder import make_folder, remove_folder
from lastwrite.tables.buckets import buckets_of
from lastwrite.tables.columns import KEY, NAMES, RAW_KEY, as_bytes, identity_of

IS_DELETE = "_is_delete"  # of a change; no column of a table
_AT_ONCE = 64 << 10  # rows that are decoded and laid into buckets together


class Rows:
    """How records become rows of a table.

    Args:
        topic: whose records they are.
        has_headers: whether headers are a column.

    Raises:
        InvalidConfig, RemoteFailed: as ``DecodedRows``.
    """

    def __init__(self, config: DecodingConfig, topic: str, has_headers: bool) -> None:
        self._config = config
        self._keys = None
        columns = ["key", "value", "partition", "offset", "timestamp", *[HEADERS] * has_headers]
        if config.key_format != "raw":
            self._keys = decoder_of(config, "key", topic, ())
            if config.on_bad == ASIDE:
                raise InvalidConfig(
                    "on_bad=aside is for values", remedy="leave key_format raw, or on_bad=fail"
                )
        self._values = DecodedRows(_with_raw_keys(config), columns, topic)
        self.read_columns = self._values.raw_columns
        fields = [field.with_name(NAMES.get(field.name, field.name)) for field in self._values.arrow_schema]
        if self._keys is not None:
            fields[0] = pa.field(KEY, self._keys.type)
            if config.key_format != "utf8":
                fields.append(pa.field(RAW_KEY, pa.binary()))
        self.schema = pa.schema(fields)
        self.identity = identity_of(self.schema)
        self._raw_schema = arrow_schema(self.read_columns)

    @property
    def change_schema(self) -> pa.Schema:
        """Of a change: a row's, and whether it is a delete, of which all is null but the key."""
        return self.schema.append(pa.field(IS_DELETE, pa.bool_()))

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Last writes and deletes, which have ``read_columns``, as changes.

        Raises:
            BadValue: a key or value is bad, and ``on_bad`` says nothing else.
        """
        is_delete = batch.column("value").is_null()
        writes = batch.filter(is_delete.invert())
        made = [self._changes(writes, each) for each in self._values.of([writes]) if len(each)]
        lost = _lost(writes, made) if self._config.on_bad == ASIDE else writes.slice(0, 0)
        deletes = [batch.filter(is_delete), lost]
        made += [self._deletes(each) for each in deletes if len(each)]
        return pa.concat_batches(made) if made else self.change_schema.empty_table().to_batches()[0]

    def _changes(self, writes: pa.RecordBatch, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self._joined(rows.column("key"), dict(zip(rows.schema.names, rows.columns, strict=True)), writes, False)

    def _deletes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        places = {name: batch.column(name) for name in ("partition", "offset", "timestamp")}
        return self._joined(batch.column("key"), places, batch, True)

    def _joined(
        self, keys: pa.Array, columns: Mapping[str, pa.Array], batch: pa.RecordBatch, is_delete: bool
    ) -> pa.RecordBatch:
        given = {NAMES.get(name, name): column for name, column in columns.items()}
        given[KEY] = given[RAW_KEY] = keys
        if self._keys is not None:
            given[KEY], bad = self._keys.decode(keys)
            if bad and not (is_delete and self.identity == RAW_KEY):
                row = min(bad)
                where = {name: batch.column(name)[row].as_py() for name in ("partition", "offset")}
                name = TopicPartition(self._values_topic(batch), where["partition"])
                raise BadValue(f"offset {where['offset']}, key: {bad[row]}", path=str(name), remedy=REMEDY)
        arrays = [
            given[field.name] if field.name in given else pa.nulls(len(keys), field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(
            [*arrays, pa.repeat(is_delete, len(keys))], schema=self.change_schema
        )
