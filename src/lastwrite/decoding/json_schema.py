"""Convert a JSON Schema to the shape of a column.

Only keywords about types are used: ``type``, ``properties``, ``items``, ``additionalProperties``,
``$ref`` within the document, ``oneOf`` and ``anyOf`` of null and one other type, ``enum`` and
``const`` of text. Keywords that are not about types, such as ``required``, ``minimum`` and
``pattern``, have no effect.

Source: JSON Schema, draft 4 to 2020-12.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lastwrite.decoding.shape import MOST_DEPTH, Shape, ShapeKind, list_of, map_of, record_of
from lastwrite.errors import InvalidConfig

_PLAIN = {
    "string": ShapeKind.STRING,
    "integer": ShapeKind.LONG,
    "number": ShapeKind.DOUBLE,
    "boolean": ShapeKind.BOOLEAN,
}


def parse_json_schema(text: str) -> Shape:
    """The shape of a column of values of this schema.

    Raises:
        InvalidConfig: the text is no JSON Schema, or has a type that no column can represent. The
            message contains the field's path.
    """
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(
            f"the schema is not JSON: {error}", remedy="give a JSON Schema"
        ) from None
    return _shape(whole, whole, "schema", 0)


def _shape(given: Any, whole: Any, where: str, depth: int) -> Shape:
    if depth > MOST_DEPTH:
        raise InvalidConfig(
            f"{where[:80]}: the schema contains itself or is nested too deep, so no column can "
            "represent it",
            remedy="remove that field from the schema: fields that it does not name are skipped",
        )
    if not isinstance(given, Mapping):
        raise InvalidConfig(f"{where}: {json.dumps(given)[:80]} has no type")
    if "$ref" in given:
        return _shape(_referenced(given["$ref"], whole, where), whole, where, depth + 1)
    for word in ("oneOf", "anyOf"):
        choices = given.get(word)
        others = (
            [each for each in choices or () if each != {"type": "null"}]
            if isinstance(choices, list)
            else []
        )
        if len(others) == 1:
            return _shape(others[0], whole, where, depth + 1)
    kinds = given.get("type")
    if isinstance(kinds, list):
        kinds = [each for each in kinds if each != "null"]
        if kinds in (["integer", "number"], ["number", "integer"]):
            kinds = ["number"]
        kinds = kinds[0] if len(kinds) == 1 else kinds
    if kinds is None and "properties" in given:
        kinds = "object"
    values = given.get("enum", [given["const"]] if "const" in given else None)
    if (
        kinds is None
        and isinstance(values, list)
        and values
        and all(isinstance(each, str | None) for each in values)
    ):
        kinds = "string"
    if kinds == "object":
        return _object(given, whole, where, depth)
    if kinds == "array":
        items = given.get("items")
        if items is None:
            raise InvalidConfig(f"{where}: an array's items have no type")
        return list_of(_shape(items, whole, f"{where}[]", depth + 1))
    if not isinstance(kinds, str) or kinds not in _PLAIN:
        raise InvalidConfig(
            f"{where}: {json.dumps(given)[:80]} does not have exactly one type",
            remedy="give the field one type, or remove the field from the schema: then it is "
            "skipped",
        )
    return Shape(_PLAIN[kinds])


def _object(given: Mapping[str, Any], whole: Any, where: str, depth: int) -> Shape:
    fields = given.get("properties")
    more = given.get("additionalProperties")
    if isinstance(fields, Mapping) and fields:
        return record_of(
            [
                _shape(inner, whole, f"{where}.{name}", depth + 1).named(name)
                for name, inner in fields.items()
            ]
        )
    if isinstance(more, Mapping) and more:
        return map_of(_shape(more, whole, f"{where}[]", depth + 1))
    raise InvalidConfig(f"{where}: an object has no properties")


def _referenced(name: Any, whole: Any, where: str) -> Any:
    found = whole
    if not isinstance(name, str) or not name.startswith("#"):
        raise InvalidConfig(f"{where}: $ref {name!r} refers to another document")
    for part in name[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or part not in found:
            raise InvalidConfig(f"{where}: {name} is not defined")
        found = found[part]
    return found
