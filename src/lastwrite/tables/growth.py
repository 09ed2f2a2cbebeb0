"""Change a table's schema between runs: add, widen or rename columns.

A change that would mix two kinds of values in one column is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lastwrite.errors import InvalidConfig
from lastwrite.tables.format import ANEW
from lastwrite.tables.rows import Rows

_WIDER = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}


def grown(has: pa.Schema, expected: pa.Schema) -> pa.Schema:
    """A table's schema, extended by the columns of a later schema. Columns match by name.

    Raises:
        InvalidConfig: a column has an incompatible type.
    """
    return pa.schema(_grown_fields(list(has), list(expected), ""))


def _grown_fields(
    has: Sequence[pa.Field], wanted: Sequence[pa.Field], where: str
) -> list[pa.Field]:
    later = {each.name: each for each in wanted}
    found = []
    for each in has:
        other = later.pop(each.name, None)
        kind = each.type if other is None else _grown_type(each.type, other.type, where + each.name)
        found.append(pa.field(each.name, kind))
    return found + [pa.field(each.name, each.type) for each in later.values()]


def _grown_type(has: pa.DataType, expected: pa.DataType, where: str) -> pa.DataType:
    if has == expected or (expected, has) in _WIDER:
        return has
    if (has, expected) in _WIDER:
        return expected
    if pa.types.is_struct(has) and pa.types.is_struct(expected):
        return pa.struct(_grown_fields(list(has), list(expected), f"{where}."))
    if pa.types.is_list(has) and pa.types.is_list(expected):
        kind = _grown_type(has.value_type, expected.value_type, f"{where}.element")
        return pa.list_(pa.field("element", kind))
    if pa.types.is_map(has) and pa.types.is_map(expected):
        return pa.map_(
            _grown_type(has.key_type, expected.key_type, f"{where}.key"),
            _grown_type(has.item_type, expected.item_type, f"{where}.value"),
        )
    raise InvalidConfig(f"{where} had the type {has}, and now has the type {expected}", remedy=ANEW)


# ---------------------------------------------------------------------- aliases


def renames(
    has: pa.Schema, expected: pa.Schema, aliases: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The old names of renamed columns, by new path.

    ``aliases`` has the earlier names of each column of ``wanted``, by the column's path.
    """
    return {} if not aliases else _renames(list(has), list(expected), aliases, "")


def _renames(
    has: Sequence[pa.Field],
    wanted: Sequence[pa.Field],
    aliases: Mapping[str, Sequence[str]],
    where: str,
) -> dict[str, str]:
    found: dict[str, str] = {}
    known = {each.name: each for each in has}
    there = {each.name for each in wanted}
    for each in wanted:
        path = f"{where}{each.name}"
        old = known.get(each.name)
        if old is None:
            names = [name for name in aliases.get(path, ()) if name in known.keys() - there]
            if not names:
                continue
            old = known[names[0]]
            found[path] = old.name
        found |= _inner_renames(old.type, each.type, aliases, path)
    return found


def _inner_renames(
    has: pa.DataType, expected: pa.DataType, aliases: Mapping[str, Sequence[str]], path: str
) -> dict[str, str]:
    if pa.types.is_struct(has) and pa.types.is_struct(expected):
        return _renames(list(has), list(expected), aliases, f"{path}.")
    if pa.types.is_list(has) and pa.types.is_list(expected):
        return _inner_renames(has.value_type, expected.value_type, aliases, f"{path}.element")
    if pa.types.is_map(has) and pa.types.is_map(expected):
        return _inner_renames(has.item_type, expected.item_type, aliases, f"{path}.value")
    return {}


# ---------------------------------------------------------------------- unions


def check_unions(
    was: Mapping[str, Sequence[str]] | None,
    has: pa.Schema,
    rows: Rows,
    renamed: Mapping[str, str],
    where: str,
) -> None:
    """Check that each branch of an Avro union keeps its column (``member0`` and so on).

    Args:
        was: the names of each union's branches at the last commit. None means unknown.
        has: the table's schema.
        renamed: as returned by ``renames``.

    Raises:
        InvalidConfig: a column would get values of two branches, or of a union and another type.
    """
    for path, branches in rows.unions.items():
        old_path = _old_path(path, renamed)
        column = _type_at(has, old_path)
        if column is None:
            continue
        before = None if was is None else was.get(old_path)
        if before is None:
            # ``was`` is None: an earlier version of lastwrite stored no branch names
            is_union = was is None and pa.types.is_struct(column) and "member0" in _names(column)
            if not is_union:
                raise _mixed(
                    path, f"{path} was not a union of several types, and now is one", where
                )
            continue
        for n, (name, names) in enumerate(zip(before, branches, strict=False)):
            if name not in names:
                raise _mixed(
                    path,
                    f"{path}: branch member{n} of the union was {name}, and now is {names[0]}",
                    where,
                )
    new_paths = {_old_path(path, renamed) for path in rows.unions}
    for path in (was or {}).keys() - new_paths:
        if _type_at(rows.schema, path) is not None:
            raise _mixed(path, f"{path} was a union of several types, and now is not", where)


def unions_after(was: Mapping[str, Sequence[str]] | None, rows: Rows) -> dict[str, list[str]]:
    """The branch names of each Avro union, for the table's state after the next commit."""
    found = {path: list(names) for path, names in (was or {}).items()}
    for path, branches in rows.unions.items():
        now = [names[0] for names in branches]
        found[path] = now + found.get(path, [])[len(now) :]
    return found


def _mixed(path: str, problem: str, where: str) -> InvalidConfig:
    return InvalidConfig(
        f"{problem}. The column would contain values of both; nothing was changed",
        path=where,
        remedy=f"add new branches at the end of the union in the reader's schema, or {ANEW}",
    )


def _old_path(path: str, renamed: Mapping[str, str]) -> str:
    """The path of a column before its rename."""
    parts = path.split(".")
    return ".".join(renamed.get(".".join(parts[: n + 1]), part) for n, part in enumerate(parts))


def _type_at(schema: pa.Schema, path: str) -> pa.DataType | None:
    """The type of the column at a path. None if there is no such column."""
    kind: pa.DataType = pa.struct(list(schema))
    for name in path.split("."):
        if pa.types.is_list(kind):
            kind = kind.value_type
        elif pa.types.is_map(kind):
            kind = kind.item_type
        elif pa.types.is_struct(kind) and name in _names(kind):
            kind = kind.field(name).type
        else:
            return None
    return kind


def _names(kind: pa.StructType) -> list[str]:
    return [each.name for each in kind]
