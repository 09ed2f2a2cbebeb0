"""Decode the keys and values of record batches, and handle bad ones.

Last writes are elected before they are decoded. A bad record that is left out is therefore not
replaced by an older record of its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from lastwrite.decoding.options import ASIDE, FAIL, NULL, DecodingConfig
from lastwrite.decoding.shape import quoted
from lastwrite.errors import BadValue
from lastwrite.model.columns import RecordColumns
from lastwrite.model.log import TopicPartition
from lastwrite.rows.arrow import (
    COLUMNS,
    HEADERS,
    arrow_schema,
    chosen_columns,
    headers_column,
    spark_schema,
)
from lastwrite.storage import files

if TYPE_CHECKING:
    from lastwrite.rows.column_decoder import ColumnDecoder

ERROR = "_error"
DELETED = "deleted"
_PLACE = ("topic", "partition", "offset")
_ASIDE = ("key", "value", "topic", "partition", "offset", "timestamp")
REMEDY = (
    "to read bad values as null, with the reason, give on_bad=null; to write such records to a "
    "folder, give on_bad=aside; to read bytes, use the format raw"
)
# the remedy of readers that do not support ``on_bad=aside``
REMEDY_OF_VALUES = "to read bad values as null, give on_bad=null; to read bytes, use the format raw"


class DecodedRows:
    """Decodes the keys and values of records to columns. Safe to pickle.

    Attributes:
        raw_columns: the columns of records that decoding needs.

    Args:
        columns: as for ``chosen_columns``; ``value.name`` requests one field of the value. None
            means all.
        topic: the topic of the records. ``confluent`` needs it if no schema to read by is given.

    Raises:
        InvalidConfig: a column does not exist, or a schema cannot be used.
        RemoteFailed: the registry does not answer.
    """

    def __init__(
        self,
        config: DecodingConfig,
        columns: Sequence[str] | None,
        topic: str | Callable[[], str] | None,
        has_headers: bool = False,
    ) -> None:
        self.config = config
        names, paths = _split(columns)
        self.columns = chosen_columns(names, has_headers)
        is_repeated = columns is not None and len(set(columns)) < len(columns)
        has_no_fields = any(
            fields and getattr(config, f"{name}_format", "raw") in ("raw", "utf8")
            for name, fields in paths.items()
        )
        if is_repeated or has_no_fields:
            chosen_columns(columns)  # raises InvalidConfig
        self._decoders: dict[str, ColumnDecoder] = {}
        for which in ("key", "value"):
            format = getattr(config, f"{which}_format")
            if format == "raw" or which not in self.columns:
                continue
            self._decoders[which] = decoder_of(config, which, topic, tuple(paths.get(which, ())))
        needed = {*self.columns}
        if self._decoders:
            needed |= {*_PLACE, *(_ASIDE if config.on_bad == ASIDE else ())}
        if self.has_headers:
            needed.add(HEADERS)
        others = [name for name in COLUMNS if name in needed and name not in self.columns]
        self.raw_columns = (*self.columns, *others)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The schema of each decoded batch."""
        fields = [
            pa.field(each.name, self._decoders[each.name].type)
            if each.name in self._decoders
            else each
            for each in arrow_schema(self.columns)
        ]
        return pa.schema(fields + [pa.field(ERROR, pa.string())] * self._has_errors)

    @property
    def spark_schema(self) -> str:
        """The schema of the decoded columns in Spark's notation."""
        words = [
            f"{quoted(name)} {self._decoders[name].spark_type}"
            if name in self._decoders
            else spark_schema([name])
            for name in self.columns
        ]
        return ", ".join(words + [f"`{ERROR}` STRING"] * self._has_errors)

    @property
    def decoders(self) -> Mapping[str, ColumnDecoder]:
        """The decoder of each decoded column, by column name."""
        return self._decoders

    @property
    def _has_errors(self) -> bool:
        return self.config.on_bad == NULL and bool(self._decoders)

    def of(
        self, batches: Iterable[pa.RecordBatch], *, as_changes: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Decode batches of records that have ``raw_columns``.

        ``as_changes`` adds the column ``deleted``. If a record with a bad value is put aside, its
        key is returned as deleted. A delete with a bad key is left out unless ``on_bad`` is
        ``null``, because no write of this key was returned before.

        Raises:
            BadValue: a key or value is bad, and ``on_bad`` is ``fail``.
        """
        for batch in batches:
            if not self._decoders:
                is_deleted = [batch.column("value").is_null()] if as_changes else []
                yield _with_deleted(batch, *is_deleted)
            elif len(batch):
                yield self._decoded(batch, as_changes)

    def _decoded(self, batch: pa.RecordBatch, as_changes: bool) -> pa.RecordBatch:
        made: dict[str, pa.Array] = {}
        bad: dict[int, str] = {}
        removed: set[int] = set()
        deleted = np.asarray(batch.column("value").is_null()).copy() if as_changes else None
        for which, decoder in self._decoders.items():
            headers = batch.column(HEADERS) if decoder.header else None
            made[which], faults = decoder.decode(batch.column(which), headers)
            if which == "key" and deleted is not None and self.config.on_bad != NULL:
                removed |= {row for row in faults if deleted[row]}
                faults = {row: why for row, why in faults.items() if not deleted[row]}
            for row, why in faults.items():
                bad[row] = f"{bad[row]}; {which}: {why}" if row in bad else f"{which}: {why}"
            if self.config.on_bad == ASIDE:
                if which == "key" or deleted is None:
                    removed |= set(faults)
                else:
                    deleted[list(faults)] = True
        if bad and self.config.on_bad == FAIL:
            row = min(bad)
            topic, partition, offset = (batch.column(name)[row].as_py() for name in _PLACE)
            name = TopicPartition(topic, partition)
            raise BadValue(f"offset {offset}, {bad[row]}", path=str(name), remedy=REMEDY)
        arrays = [made.get(name, batch.column(name)) for name in self.columns]
        if self._has_errors:
            arrays.append(pa.array([bad.get(row) for row in range(len(batch))], pa.string()))
        found = pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)
        if bad and self.config.on_bad == ASIDE:
            write_bad_records(batch, bad, self.config.bad_to)
        if deleted is not None:
            found = _with_deleted(found, pa.array(deleted))
        if removed:
            found = found.filter(pa.array([row not in removed for row in range(len(batch))]))
        return found

    @property
    def has_headers(self) -> bool:
        """Whether a record's headers may contain its schema id."""
        return any(each.header for each in self._decoders.values())

    def value(self, key: bytes | None, value: bytes, topic: str, record: RecordColumns) -> Any:
        """Decode one value to Python's types. A bad value is None if ``on_bad`` is ``null``.

        ``record`` is the value's record, with headers if ``has_headers``.

        Raises:
            BadValue: the value is bad, and ``on_bad`` is not ``null``.
        """
        decoder = self._decoders.get("value")
        if decoder is None:
            return value
        headers = headers_column(record) if decoder.header else None
        column, bad = decoder.decode(pa.array([value], pa.binary()), headers)
        if bad and self.config.on_bad != NULL:
            raise BadValue(f"key {key!r}, value: {bad[0]}", path=topic, remedy=REMEDY_OF_VALUES)
        return column[0].as_py()


def _with_deleted(batch: pa.RecordBatch, is_deleted: pa.Array | None = None) -> pa.RecordBatch:
    if is_deleted is None:
        return batch
    schema = batch.schema.append(pa.field(DELETED, pa.bool_()))
    return pa.RecordBatch.from_arrays([*batch.columns, is_deleted], schema=schema)


def write_bad_records(batch: pa.RecordBatch, bad: Mapping[int, str], folder: str) -> None:
    """Write the bad records of a batch unchanged to a file in ``folder``.

    The file's name contains their partition, offsets and a hash, so a repeated run overwrites the
    file with equal content.
    """
    import pyarrow.parquet as pq

    rows = batch.take(pa.array(sorted(bad), pa.int64()))
    if rows.column("offset").null_count:  # an index missed this delete, so only its key is known
        return
    columns = [name for name in _ASIDE if name in rows.schema.names]
    rows = rows.select(columns).append_column("error", pa.array([bad[n] for n in sorted(bad)]))
    topic, partition, offset = (rows.column(name)[0].as_py() for name in _PLACE)
    last = rows.column("offset")[-1].as_py()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([rows]), sink)
    content = sink.getvalue().to_pybytes()
    if not Path(folder).is_dir():
        files.make_folder(folder)
    mark = hashlib.blake2b(content, digest_size=4).hexdigest()
    # ``quote``, because names of Pulsar topics contain slashes
    name = f"{quote(topic, safe='')}-{partition}-{offset}-{last}-{mark}.parquet"
    files.replace(str(Path(folder, name)), content)


def _split(columns: Sequence[str] | None) -> tuple[list[str] | None, dict[str, list[str]]]:
    """Split requested columns into column names, each once, and the requested fields by column.

    An empty list means all fields of the column.
    """
    if columns is None:
        return None, {}
    paths: dict[str, list[str]] = {}
    for name in columns:
        column, _, path = name.partition(".")
        paths.setdefault(column, []).append(path)
    fields = {name: [] if "" in some else some for name, some in paths.items()}
    return list(paths), fields


def decoder_of(
    config: DecodingConfig,
    which: str,
    topic: str | Callable[[], str] | None,
    paths: tuple[str, ...],
) -> ColumnDecoder:
    """A decoder for a topic's keys or values. Raises the same errors as ``DecodedRows``."""
    # imported here because they load kernels
    from lastwrite.rows.column_decoder import ColumnDecoder, ColumnRequest
    from lastwrite.rows.schemas import SchemaSource, read_schema

    format, place = getattr(config, f"{which}_format"), getattr(config, f"{which}_schema")
    source = SchemaSource(config.schema_registry) if format == "confluent" else None
    schema = read_schema(place) if place else None
    if schema is None and source is not None:
        name = (topic() if callable(topic) else topic) or ""
        schema = source.latest(
            f"{name.rpartition('/')[2]}-{which}"
        )  # the local name of a Pulsar topic
    message = getattr(config, f"{which}_message")
    return ColumnDecoder(ColumnRequest(which, format, schema, source, message, paths))
