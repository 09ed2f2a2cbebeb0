"""Decode a column of keys or values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastwrite.decoding.avro import AvroProgram
from lastwrite.decoding.avro_schema import AvroType, aliases_of, parse_avro, unions_of
from lastwrite.decoding.avro_schema import shape_of as avro_shape
from lastwrite.decoding.columns import DecodedColumn, Program
from lastwrite.decoding.frames import HEADERS, Frame, frames_of
from lastwrite.decoding.json_schema import parse_json_schema
from lastwrite.decoding.json_values import JsonProgram
from lastwrite.decoding.protobuf_schema import ProtobufFile
from lastwrite.decoding.protobuf_schema import shape_of as protobuf_shape
from lastwrite.decoding.shape import (
    Shape,
    ShapeKind,
    arrow_type,
    narrowed,
    spark_type,
)
from lastwrite.encoding.slices import gathered
from lastwrite.errors import InvalidConfig
from lastwrite.rows.schemas import AVRO, PROTOBUF, Schema, SchemaSource


class ColumnRequest(NamedTuple):
    """The format of a column, and the schema to read the column by.

    Attributes:
        which: ``key`` or ``value``.
        format: one of ``decoding.options.FORMATS`` except ``raw``.
        schema: the schema to read values by. None for ``utf8``.
        source: for ``confluent``: the source of the schemas with which values were written.
        message: for Protobuf: the message's name. ``""`` means the only message.
        paths: the fields to decode. Empty means all of them.
    """

    which: str
    format: str
    schema: Schema | None
    source: SchemaSource | None
    message: str
    paths: tuple[str, ...]


class ColumnDecoder:
    """Decodes one column of keys or values.

    Safe to pickle: programs are compiled in the process that uses them.

    Attributes:
        aliases, unions: aliases and unions of the schema to read by; see ``aliases_of`` and
            ``unions_of`` in ``decoding.avro_schema``.

    Raises:
        InvalidConfig: the schema has a type that no column can represent, or lacks a
            requested field.
    """

    def __init__(self, request: ColumnRequest) -> None:
        self._columns = request
        self._programs: dict[Frame | None, Program | str] = {}
        self._message: Any = None
        self.aliases: dict[str, tuple[str, ...]] = {}
        self.unions: dict[str, list[tuple[str, ...]]] = {}
        which, schema = request.which, request.schema
        if schema is None:
            shape = Shape(ShapeKind.STRING)
        elif schema.kind == AVRO:
            read_by = _parsed(schema)
            shape = avro_shape(read_by, which)
            self.aliases = aliases_of(read_by, which)
            self.unions = unions_of(read_by, which)
        elif schema.kind == PROTOBUF:
            shape = protobuf_shape(self._read_by())
        else:
            shape = parse_json_schema(schema.text)
        self.shape = narrowed(shape, request.paths, which) if request.paths else shape
        if schema is not None and request.format not in ("confluent", schema.kind):
            raise InvalidConfig(
                f"{which}_format is {request.format}, but the schema is of the format {schema.kind}"
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_programs": {}, "_message": None}

    @property
    def header(self) -> str | None:
        """The name of the header that may contain a record's schema id, or None."""
        return HEADERS[self._columns.which] if self._columns.format == "confluent" else None

    @property
    def type(self) -> pa.DataType:
        return arrow_type(self.shape)

    @property
    def spark_type(self) -> str:
        return spark_type(self.shape)

    def decode(self, values: pa.Array, headers: pa.Array | None = None) -> DecodedColumn:
        """The decoded values of a column, and its bad values with reasons.

        ``headers``, the records' column of headers, is needed if ``header`` is not None. A value is
        bad if its schema is unknown or incompatible with the schema to read by.

        Raises:
            RemoteFailed: the registry does not answer, or refuses the request.
        """
        if self._columns.format == "utf8":
            return _texts(values)
        if self._columns.format == "confluent":
            return self._framed(values, headers)
        program = self._program(None)
        assert isinstance(program, Program)
        return program.decode(values)

    def _read_by(self) -> Any:
        """The Protobuf message type by which values are read."""
        if self._message is None:
            assert self._columns.schema is not None
            file, name = ProtobufFile(self._columns.schema.descriptors), self._columns.message
            first = (
                file.message_at([0]) if self._columns.format == "confluent" and not name else None
            )
            self._message = file.message(name) if first is None else first
        return self._message

    def _program(self, frame: Frame | None) -> Program | str:
        """The program that decodes values with this frame, or the reason why there is none.

        ``frame`` None means values without a frame.
        """
        found = self._programs.get(frame)
        if found is None:
            try:
                found = self._compile(frame)
            except InvalidConfig as error:
                if frame is None:
                    raise
                # The error is not cached, because the schema may be registered later.
                return error.problem + (f" in {error.path}" if error.path else "")
            self._programs[frame] = found
        return found

    def _compile(self, frame: Frame | None) -> Program | str:
        writer = schema = self._columns.schema
        assert writer is not None and schema is not None
        if frame is not None:
            assert self._columns.source is not None
            writer = self._columns.source.by_id(frame.schema)
        if writer.kind != schema.kind:
            assert frame is not None
            raise InvalidConfig(
                f"schema {frame.schema} is of the format {writer.kind}, but the reader's schema "
                f"is {schema.kind}"
            )
        if writer.kind == AVRO:
            return AvroProgram(_parsed(writer), _parsed(schema), self.shape)
        if writer.kind != PROTOBUF:
            return JsonProgram(self.shape)
        # imported here because it loads kernels
        from lastwrite.decoding.protobuf import ProtobufProgram

        message = self._read_by()
        if frame is not None:
            written = ProtobufFile(writer.descriptors).message_at(list(frame.indexes))
            if written is None:
                return f"the schema has no message with index {list(frame.indexes)}"
            if written.full_name != message.full_name:
                return f"the message type is {written.full_name}, not {message.full_name}"
        return ProtobufProgram(message, self.shape)

    def _framed(self, values: pa.Array, headers: pa.Array | None) -> DecodedColumn:
        """Decode values in Confluent's format, one writer's schema at a time."""
        _, ends, buffer = values.cast(pa.binary()).buffers()
        cuts = np.frombuffer(ends, np.int32)[values.offset :][: len(values) + 1].astype(np.int64)
        data = np.empty(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
        starts, stops = cuts[:-1], cuts[1:]
        heads, head_starts, head_stops = data, starts, stops
        by_header = np.zeros(len(values), bool)
        if headers is not None:
            rows, found = _first_named(headers, HEADERS[self._columns.which])
            if len(rows):
                _, ends, buffer = found.buffers()
                places = np.frombuffer(ends, np.int32)[: len(rows) + 1].astype(np.int64) + len(data)
                by_header[rows] = True
                heads = np.concatenate([data, np.frombuffer(buffer, np.uint8)])
                head_starts, head_stops = starts.copy(), stops.copy()
                head_starts[rows], head_stops[rows] = places[:-1], places[1:]
        present = np.asarray(values.is_valid())
        head_stops = np.where(present, head_stops, head_starts)
        assert self._columns.schema is not None
        has_indexes = self._columns.schema.kind == PROTOBUF
        lengths, which, frames = frames_of(heads, head_starts, head_stops, has_indexes)
        framed = np.flatnonzero(lengths)
        bad = {
            int(row): "the value does not begin with a magic byte and schema id"
            for row in np.flatnonzero(present & (lengths == 0))
        }
        begins = np.where(by_header, starts, starts + lengths)
        columns, places = [pa.nulls(1, self.type)], np.zeros(len(values), np.int64)
        filled = 1
        for n, frame in enumerate(frames):
            own = framed[which == n]
            program = self._program(frame)
            if isinstance(program, str):
                named = f"schema {frame.schema}"
                why = program if named in program else f"{program} ({named})"
                bad |= dict.fromkeys(own.tolist(), why)
                continue
            joined, ends_of_own = gathered(data, begins[own], stops[own] - begins[own])
            pieces = [None, pa.py_buffer(ends_of_own), pa.py_buffer(joined)]
            part = pa.Array.from_buffers(pa.binary(), len(own), pieces)
            column, faults = program.decode(part)
            bad |= {int(own[n]): f"{why} (schema {frame.schema})" for n, why in faults.items()}
            columns.append(column)
            places[own] = filled + np.arange(len(own))
            filled += len(own)
        return DecodedColumn(
            pa.concat_arrays(columns).take(pa.array(places)), dict(sorted(bad.items()))
        )


def _first_named(headers: pa.Array, name: str) -> tuple[Any, pa.Array]:
    """The rows with a header of this name, and the value of the first such header of each row."""
    flat = headers.flatten()
    places = np.flatnonzero(np.asarray(pc.equal(flat.field("key"), name).fill_null(False)))
    if not len(places):
        return places, None
    parents = np.asarray(pc.list_parent_indices(headers))[places]
    rows, first = np.unique(parents, return_index=True)
    return rows, flat.field("value").take(pa.array(places[first])).fill_null(b"")


def _parsed(schema: Schema) -> AvroType:
    return parse_avro(schema.text, schema.references)


def _texts(values: pa.Array) -> DecodedColumn:
    try:
        return DecodedColumn(values.cast(pa.string()), {})
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        bad: dict[int, str] = {}
        for row, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode("utf-8"))
            except UnicodeDecodeError as error:
                texts.append(None)
                bad[row] = f"not UTF-8, at byte {error.start} of the text"
        return DecodedColumn(pa.array(texts, pa.string()), bad)
