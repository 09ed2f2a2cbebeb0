"""Properties of decoding JSON to columns, compared with Python's ``json``."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lastwrite.decoding.json_schema import parse_json_schema
from lastwrite.decoding.json_values import JsonProgram

NAMES = ["id", "name", "long name of a field", 'a "quoted\\" one', "é", "x\ny"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.sampled_from(NAMES), inner, max_size=3)
    ),
    max_leaves=6,
)
OTHERS = (
    st.none() | st.text(max_size=9) | st.lists(st.floats(allow_nan=False, allow_infinity=False))
)
PLAIN: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ({"type": "string"}, st.text(max_size=20)),
    ({"type": "integer"}, st.integers(-(2**63), 2**63 - 1)),
    ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False)),
    ({"type": ["null", "boolean"]}, st.booleans() | st.none()),
]


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    kind = draw(st.sampled_from(["plain", "array", "map", "object"][: 4 if depth else 1]))
    if kind == "plain":
        return draw(st.sampled_from(PLAIN))
    if kind == "object":
        names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
        drawn = {name: draw(schemas(depth - 1)) for name in names}
        properties = {name: schema for name, (schema, _) in drawn.items()}
        values = st.fixed_dictionaries(
            {}, optional={name: each for name, (_, each) in drawn.items()}
        )
        return {"type": "object", "properties": properties}, values
    inner, values = draw(schemas(depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    keys = st.text(max_size=5)
    return {"type": "object", "additionalProperties": inner}, st.dictionaries(
        keys, values, max_size=3
    )


def expected(schema: Any, value: Any) -> Any:
    """The column's value for a parsed value."""
    if isinstance(value, list):
        return [expected(schema["items"], each) for each in value]
    if isinstance(value, dict) and "properties" in schema:
        return {
            name: None if value.get(name) is None else expected(inner, value[name])
            for name, inner in schema["properties"].items()
        }
    if isinstance(value, dict):
        inner = schema["additionalProperties"]
        return [(name, expected(inner, each)) for name, each in value.items()]
    return value


def decoded(schema: Any, texts: list[bytes | None]) -> tuple[list[Any], dict[int, str]]:
    program = JsonProgram(parse_json_schema(json.dumps(schema)))
    column, bad = program.decode(pa.array(texts, pa.binary()))
    column.validate(full=True)
    return column.to_pylist(), bad


@settings(max_examples=60)
@given(st.data())
def test_values_written_by_json_are_read(data: st.DataObject) -> None:
    schema, values = data.draw(schemas())
    some = data.draw(st.lists(values, max_size=4))
    indent, is_ascii = data.draw(st.sampled_from([None, 2])), data.draw(st.booleans())
    texts = []
    for each in some:
        if isinstance(each, dict) and "properties" in schema:  # with fields that are not read
            each = {"other": data.draw(OTHERS), **each, "another": data.draw(OTHERS)}
        texts.append(
            json.dumps(each, indent=indent, ensure_ascii=is_ascii).encode("utf-8", "replace")
        )
    found, bad = decoded(schema, texts)
    read = [
        None if n in bad else expected(schema, json.loads(text)) for n, text in enumerate(texts)
    ]
    assert found == read
    assert not bad


def is_json(text: bytes) -> bool:
    try:
        json.loads(text.decode(), parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError, RecursionError):
        return False
    return not text.startswith(b"\xef\xbb\xbf")


@settings(max_examples=60)
@given(ANYTHING.map(lambda each: json.dumps(each).encode()), st.data())
@example(b'{"a":01}', None)
@example(b'["\\ud83d\\ude00", "\\/", 1e5, -0.0, 1E+2]', None)
@example(b'{"a":[1,],"b":2}', None)
@example(b"[1 2]", None)
@example(b'{"a" 1}', None)
@example(b'"tab\there"', None)
def test_skipped_fields_must_follow_the_grammar(text: bytes, data: st.DataObject | None) -> None:
    whole = b'{"other":' + text + b', "id":7}'
    if data is not None and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(whole) - 1))
        some = data.draw(st.sampled_from([b"", b'"', b"{", b"]", b",", b"1", b"\\", b"\xc3", b" "]))
        whole = whole[:at] + some + whole[at + 1 :]
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "f": {"type": "string"}}}
    found, bad = decoded(schema, [b'{"id":1}', whole, None, b'{"id":3}'])
    assert found[0]["id"] == 1 and found[3]["id"] == 3 and found[2] is None
    assert list(bad) in ([], [1])
    lone = b"\\ud" in whole.lower() or b"\\ud" in whole
    if not bad:
        read = json.loads(whole)
        assert is_json(whole) and found[1]["id"] == read.get("id") or isinstance(read["id"], float)
    else:
        read = json.loads(whole) if is_json(whole) else None
        typed = isinstance(read, dict) and (
            not isinstance(read.get("id"), int | None | float)
            or abs(read.get("id") or 0) >= 2**63
            or isinstance(read.get("id"), bool | float)
            or not isinstance(read.get("f"), str | None)
        )
        assert read is None or not isinstance(read, dict) or lone or typed, (whole, bad)


def test_numbers_are_the_nearest_double_and_integers_may_have_a_point() -> None:
    texts = [
        "0.1",
        "1e23",
        "-0.0",
        "5e-324",
        "1.7976931348623157e308",
        "123456789012345678901234567890",
    ]
    found, bad = decoded(
        {"type": "array", "items": {"type": "number"}}, [f"[{','.join(texts)}]".encode()]
    )
    assert not bad and [repr(each) for each in found[0]] == [repr(float(each)) for each in texts]
    found, bad = decoded(
        {"type": "integer"}, [b"1.0", b"1e3", b"1.5", b"9223372036854775808", b"-0"]
    )
    assert found == [1, 1000, None, None, 0] and list(bad) == [2, 3]


def test_nesting_depth_is_limited() -> None:
    deep = b'{"other":' + b"[" * 600 + b"]" * 600 + b"}"
    _, bad = decoded({"type": "object", "properties": {"id": {"type": "integer"}}}, [deep])
    assert "too deep" in bad[0]
