"""A column of keys or values, decoded by one of the formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from lastwrite.decoding.avro import AvroProgram
from lastwrite.decoding.avro_schema import AvroType, parse_avro, shape_of
from lastwrite.decoding.columns import Decoded, Program
from lastwrite.decoding.json_schema import parse_json_schema
from lastwrite.decoding.json_values import JsonProgram
from lastwrite.decoding.shape import Kind, Shape, arrow_type, narrowed, spark_type
from lastwrite.encoding.slices import gathered
from lastwrite.errors import InvalidConfig
from lastwrite.rows.schemas import AVRO, Schema, SchemaSource

_FRAME = 5  # bytes: 0, and the schema's id, big-endian


class ColumnDecoder:
    """Decodes one column. Safe to pickle: programs are made where they are needed.

    Args:
        which: ``key`` or ``value``, for errors.
        format: one of ``decoding.options.FORMATS``, but ``raw``.
        schema: to read by; None of ``utf8``.
        source: of ``confluent``, where the schemas of values are.
        paths: the fields that are decoded; none: all of them.

    Raises:
        InvalidConfig: the schema has what no column can hold, or lacks a field.
    """

    def __init__(
        self,
        which: str,
        format: str,
        schema: Schema | None,
        source: SchemaSource | None,
        paths: tuple[str, ...],
    ) -> None:
        self._format = format
        self._schema = schema
        self._source = source
        self._programs: dict[int, Program] = {}
        if schema is None:
            shape = Shape(Kind.STRING)
        elif schema.kind == AVRO:
            shape = shape_of(_parsed(schema), which)
        else:
            shape = parse_json_schema(schema.text)
        self.shape = narrowed(shape, paths, which) if paths else shape
        if schema is not None and format in ("avro", "json") and format != schema.kind:
            raise InvalidConfig(f"{which}_format is {format}, and its schema of {schema.kind}")

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_programs": {}}

    @property
    def type(self) -> pa.DataType:
        return arrow_type(self.shape)

    @property
    def spark_type(self) -> str:
        return spark_type(self.shape)

    def decode(self, values: pa.Array) -> Decoded:
        """The values, and which are bad.

        Raises:
            InvalidConfig, RemoteFailed: a schema that values name is not to be had, or cannot be
                read by ours.
        """
        if self._format == "utf8":
            return _texts(values)
        if self._format == "confluent":
            return self._framed(values)
        return self._program(-1).decode(values)

    def _program(self, number: int) -> Program:
        """Of the writer's schema with this id; -1: of the one that is given."""
        found = self._programs.get(number)
        if found is not None:
            return found
        assert self._schema is not None
        writer = self._schema
        if number >= 0:
            assert self._source is not None
            writer = self._source.by_id(number)
        if writer.kind != self._schema.kind:
            raise InvalidConfig(
                f"schema {number} is of {writer.kind}, the one to read by of {self._schema.kind}"
            )
        if writer.kind == AVRO:
            found = AvroProgram(_parsed(writer), _parsed(self._schema), self.shape)
        else:
            found = JsonProgram(self.shape)
        self._programs[number] = found
        return found

    def _framed(self, values: pa.Array) -> Decoded:
        """Values that begin with the number of their schema: schema by schema."""
        _, ends, buffer = values.cast(pa.binary()).buffers()
        starts = np.frombuffer(ends, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
        data = np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
        lengths = np.diff(starts)
        present = np.asarray(values.is_valid())
        framed = present & (lengths >= _FRAME)
        framed[framed] = data[starts[:-1][framed]] == 0
        bad = {int(row): "no magic byte and schema id" for row in np.flatnonzero(present & ~framed)}
        rows = np.flatnonzero(framed)
        heads = data[starts[:-1][rows, None] + np.arange(1, _FRAME)].astype(np.int64)
        ids = (heads << np.array([24, 16, 8, 0])).sum(axis=1)
        columns, places = [pa.nulls(1, self.type)], np.zeros(len(values), np.int64)
        filled = 1
        for number in np.unique(ids).tolist():
            own = rows[ids == number]
            joined, cuts = gathered(data, starts[own] + _FRAME, lengths[own] - _FRAME)
            pieces = [None, pa.py_buffer(cuts), pa.py_buffer(joined)]
            part = pa.Array.from_buffers(pa.binary(), len(own), pieces)
            column, faults = self._program(number).decode(part)
            bad |= {int(own[n]): f"{why} (schema {number})" for n, why in faults.items()}
            columns.append(column)
            places[own] = filled + np.arange(len(own))
            filled += len(own)
        return Decoded(pa.concat_arrays(columns).take(pa.array(places)), dict(sorted(bad.items())))


def _parsed(schema: Schema) -> AvroType:
    return parse_avro(schema.text, schema.references)


def _texts(values: pa.Array) -> Decoded:
    try:
        return Decoded(values.cast(pa.string()), {})
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        bad: dict[int, str] = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode("utf-8"))
            except UnicodeDecodeError as error:
                texts.append(None)
                bad[row] = f"text that is not UTF-8, at its byte {error.start}"
        return Decoded(pa.array(texts, pa.string()), bad)
