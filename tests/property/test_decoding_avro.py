"""Properties of decoding Avro to columns: values written by fastavro, read with other schemas."""

from __future__ import annotations

import datetime
import io
import itertools
import json
from collections.abc import Iterator
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastwrite.decoding.avro import AvroProgram
from lastwrite.decoding.avro_schema import parse_avro, shape_of

fastavro = pytest.importorskip("fastavro")

Drawn = tuple[Any, st.SearchStrategy[Any]]  # a type, and its values for fastavro
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(-(2**63), 2**63 - 1)
WIDE = Context(prec=60)  # the default context rounds 38 digits to 28
PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": INTS,
    "long": LONGS,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=20),
    "string": st.text(max_size=20),
}
TIMES = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31))
MILLIS = TIMES.map(
    lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000, tzinfo=datetime.UTC)
)
LOGICAL: list[Drawn] = [
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "long", "logicalType": "timestamp-millis"}, MILLIS),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        TIMES.map(lambda t: t.replace(tzinfo=datetime.UTC)),
    ),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, TIMES),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 3},
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(n).scaleb(-3, WIDE)),
    ),
    (
        {"type": "fixed", "name": "D", "size": 5, "logicalType": "decimal", "precision": 9},
        st.integers(-(10**9) + 1, 10**9 - 1).map(Decimal),
    ),
]


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> Drawn:
    kinds = [*PLAIN, "enum", "fixed", "logical", "nullable"]
    kind = draw(st.sampled_from(kinds + ["array", "map", "record", "union"] * (depth > 0)))
    name = f"N{draw(st.integers(0, 10**9))}"
    if kind in PLAIN:
        return kind, PLAIN[kind]
    if kind == "enum":
        symbols = draw(
            st.lists(st.from_regex("[A-Z]{1,9}", fullmatch=True), min_size=1, unique=True)
        )
        return {"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols)
    if kind == "fixed":
        size = draw(st.integers(1, 20))
        return {"type": "fixed", "name": name, "size": size}, st.binary(
            min_size=size, max_size=size
        )
    if kind == "logical":
        schema, values = draw(st.sampled_from(LOGICAL))
        return schema | {"name": name}, values
    if kind == "nullable":
        schema, values = draw(types(depth - 1) if depth > 0 else st.just(("long", LONGS)))
        if isinstance(schema, list):
            return schema, values
        return draw(st.permutations(["null", schema])), values | st.none()
    if kind == "union":  # of different Python types
        chosen = draw(st.permutations(["null", "boolean", "long", "string", "bytes"]))[:3]
        return list(chosen), st.one_of([PLAIN.get(each, st.none()) for each in chosen])
    inner, values = draw(types(depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        keys = st.text(max_size=5)
        return {"type": "map", "values": inner}, st.dictionaries(keys, values, max_size=3)
    return draw(records(depth))


@st.composite
def records(draw: st.DrawFn, depth: int = 2) -> Drawn:
    name = f"R{draw(st.integers(0, 10**9))}"
    drawn = draw(st.lists(types(depth - 1), min_size=1, max_size=4))
    fields = {f"f{n}": values for n, (_, values) in enumerate(drawn)}
    listed = [{"name": f"f{n}", "type": schema} for n, (schema, _) in enumerate(drawn)]
    return {"type": "record", "name": name, "fields": listed}, st.fixed_dictionaries(fields)


def renamed(schema: Any, numbers: Iterator[int]) -> Any:
    """The schema with unique names, which Avro requires."""
    if isinstance(schema, list):
        return [renamed(each, numbers) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: renamed(each, numbers) for name, each in schema.items() if name != "fields"}
    if "fields" in schema:
        found["fields"] = [
            each | {"type": renamed(each["type"], numbers)} for each in schema["fields"]
        ]
    return found | ({"name": f"N{next(numbers)}"} if "name" in schema else {})


def expected(schema: Any, value: Any) -> Any:
    """The column's value for a written value."""
    if value is None:
        return None
    if isinstance(schema, list):
        branches = [each for each in schema if each != "null"]
        if len(branches) == 1:
            return expected(branches[0], value)
        kinds = {"boolean": bool, "long": int, "string": str, "bytes": bytes}
        return {
            f"member{n}": value if type(value) is kinds[each] else None
            for n, each in enumerate(branches)
        }
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return {
            each["name"]: expected(each["type"], value[each["name"]]) for each in schema["fields"]
        }
    if kind == "array":
        return [expected(schema["items"], each) for each in value]
    if kind == "map":
        return [(name, expected(schema["values"], each)) for name, each in value.items()]
    return value


def written(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def decoded(
    writer: Any, reader: Any, values: list[bytes | None]
) -> tuple[list[Any], dict[int, str]]:
    types = parse_avro(json.dumps(writer)), parse_avro(json.dumps(reader))
    column, bad = AvroProgram(*types, shape_of(types[1])).decode(pa.array(values, pa.binary()))
    column.validate(full=True)
    return column.to_pylist(), bad


@settings(max_examples=60)
@given(st.data())
def test_values_written_by_fastavro_are_read(data: st.DataObject) -> None:
    drawn, values = data.draw(records() | types())
    schema = renamed(drawn, itertools.count())
    some = data.draw(st.lists(values, max_size=5))
    if schema == "null":
        return
    found, bad = decoded(schema, schema, [written(schema, each) for each in some])
    assert not bad
    assert found == [expected(schema, each) for each in some]


@settings(max_examples=60)
@given(st.data())
def test_damaged_value_is_named_and_the_others_are_read(data: st.DataObject) -> None:
    drawn, values = data.draw(records())
    schema = renamed(drawn, itertools.count())
    whole = [written(schema, each) for each in data.draw(st.lists(values, min_size=2, max_size=4))]
    n = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.integers(0, max(len(whole[n]) - 1, 0)))
    harmed = [*whole]
    harmed[n] = whole[n][:cut] if whole[n] else b"\0"
    (first, _), (found, bad) = decoded(schema, schema, whole), decoded(schema, schema, harmed)
    assert list(bad) == [n] and found[n] is None
    assert found[:n] + found[n + 1 :] == first[:n] + first[n + 1 :]


PROMOTED = {"int": ["int", "long", "double"], "long": ["long", "double"], "string": ["bytes"]}


@settings(max_examples=60)
@given(st.data())
def test_reader_schema_is_resolved_as_fastavro_does(data: st.DataObject) -> None:
    names = [f"f{n}" for n in range(data.draw(st.integers(1, 4)))]
    kinds = {
        name: data.draw(st.sampled_from(["int", "long", "string", "boolean"])) for name in names
    }
    fields = [
        {"name": name, "type": ["null", kind] if data.draw(st.booleans()) else kind}
        for name, kind in kinds.items()
    ]
    writer = {"type": "record", "name": "R", "fields": fields}
    kept = []
    for each in fields:
        if not data.draw(st.booleans()):
            continue
        kind = data.draw(st.sampled_from(PROMOTED.get(kinds[each["name"]], [kinds[each["name"]]])))
        own = {"name": each["name"], "type": ["null", kind]}
        if data.draw(st.booleans()):
            own |= {"name": "other_" + each["name"], "aliases": [each["name"]]}
        kept.append(own)
    kept.append({"name": "added", "type": ["null", "long"], "default": data.draw(st.none())})
    kept.append({"name": "told", "type": "string", "default": "x"})
    kept.append({"name": "inner", "type": {"type": "array", "items": "int"}, "default": [1, 2]})
    reader = {"type": "record", "name": "R", "fields": data.draw(st.permutations(kept))}
    values = [
        written(writer, {name: data.draw(PLAIN[kind]) for name, kind in kinds.items()})
        for _ in range(3)
    ]
    parsed = fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    theirs = [fastavro.schemaless_reader(io.BytesIO(each), *parsed) for each in values]
    assert decoded(writer, reader, values) == (theirs, {})
