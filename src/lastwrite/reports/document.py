"""The JSON output of commands: structs whose fields are the document's fields, in order.

An annotation changes how a field is printed. A *figure* is computed when it is printed:

    path: Annotated[str, JsonName(or_none)] = field(name="object")  # another value, another name
    contents: Annotated[Contents, SPREAD]                # the fields of the value, in its place
    seconds: Annotated[float, UNPRINTED]                 # not printed
    status: ClassVar[str] = figure(lambda self: …)       # computed from other fields

The names of printed fields are a contract: names may be added, never changed. ``schema_type``
returns a type with exactly the printed fields, from which msgspec derives a JSON Schema.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

T = TypeVar("T")

UNPRINTED = "unprinted"


class Flatten(NamedTuple):
    """An annotation of a field: print the fields of its value instead, except those in ``but``."""

    but: tuple[str, ...] = ()


SPREAD = Flatten()


class JsonName(NamedTuple):
    """An annotation of a field: JSON gets ``of(value)`` instead of the value.

    The documented type of the field is the return type of ``of``.
    """

    of: Callable[[Any], Any]


class Computed:
    """A descriptor that computes its value from the other fields when it is read."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self.of = of

    def __get__(self, document: object, owner: type) -> Any:
        return self if document is None else self.of(document)


def figure(of: Callable[[Any], T]) -> T:
    """Declare a ``Computed`` value, typed as the result of ``of``."""
    return Computed(of)  # type: ignore[return-value]


def or_none(text: str) -> str | None:
    """Return None for an empty string, so that it is printed as null."""
    return text or None


class Printed:
    """The base class of all documents, with the methods that print them."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The document as dicts, lists, strings, numbers and None."""
        return self._printed(_plain)

    def iterate_once(self) -> dict[str, Any]:
        """The document like ``to_dict``, but with lists whose items are converted during iteration.

        Not all items are then in memory at once. The lists can be iterated only once.
        """
        return self._printed(lambda value: _Lazy(value) if type(value) is list else _plain(value))

    def _printed(self, plain: Callable[[Any], Any]) -> dict[str, Any]:
        out: dict[str, Any] = {}
        document: Any = type(self)
        for line in printed_lines(document):
            value = plain(line.value_of(self))
            if line.spread is None:
                out[line.name] = value
            elif value is not None:
                out |= {name: value[name] for name in value if name not in line.spread.but}
        return out


class Document(Printed, msgspec.Struct):
    """A value that prints as a JSON object. The module describes the annotations of fields."""


class FrozenDocument(Printed, msgspec.Struct, frozen=True):
    """An immutable, hashable document."""


class PrintedLine(NamedTuple):
    """One printed field of a document class. ``attribute`` is the field's name in the class."""

    name: str
    attribute: str
    type: Any
    spread: Flatten | None
    of: Callable[[Any], Any] | None

    def value_of(self, document: Printed) -> Any:
        value = getattr(document, self.attribute)
        return value if self.of is None else self.of(value)


@cache
def printed_lines(document: type[Any]) -> tuple[PrintedLine, ...]:
    """The printed fields of a document, in order."""
    names = dict(zip(document.__struct_fields__, document.__struct_encode_fields__, strict=True))
    found = []
    for attribute, hint in get_type_hints(document, include_extras=True).items():
        is_figure = get_origin(hint) is ClassVar
        if is_figure and not isinstance(document.__dict__.get(attribute), Computed):
            continue
        [hint] = get_args(hint) if is_figure else [hint]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if UNPRINTED in marks:
            continue
        of = next((mark.of for mark in marks if isinstance(mark, JsonName)), None)
        shown = hint if of is None else get_type_hints(of)["return"]
        name = names.get(attribute, attribute)
        spread = next((mark for mark in marks if isinstance(mark, Flatten)), None)
        found.append(PrintedLine(name, attribute, shown, spread, of))
    return tuple(found)


def _plain(value: Any) -> Any:
    match value:
        case Printed():
            return value.to_dict()
        case dict():
            return {_plain(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return msgspec.to_builtins(value)


class _Lazy(list[Any]):
    """A list whose items are converted by ``_plain`` when they are iterated."""

    def __iter__(self) -> Iterator[Any]:
        return map(_plain, super().__iter__())


@cache
def schema_type(document: Any) -> type[msgspec.Struct]:
    """A struct type with exactly the fields that ``document`` prints.

    msgspec uses it to describe documents, and to check printed ones. A field that may be absent has
    the default ``UNSET``.
    """
    fields: dict[str, tuple[Any, bool]] = {}
    is_open = False  # whether fields of any other name may be present
    for line in printed_lines(document):
        if line.spread is None:
            is_always = msgspec.UnsetType not in _members(line.type)
            fields[line.name] = (_shown(line.type), is_always)
            continue
        kinds = [kind for kind in _members(line.type) if kind is not type(None)]
        for kind in kinds:
            if not _is_document(kind):
                is_open = True
                continue
            part: Any = schema_type(kind)
            for known in msgspec.structs.fields(part):
                if known.encode_name in line.spread.but:
                    continue
                is_always = known.required and len(_members(line.type)) == 1
                fields[known.encode_name] = (known.type, is_always)
    attributes = {f"field_{number}": name for number, name in enumerate(fields)}
    return msgspec.defstruct(
        document.__name__,
        [
            (attribute, kind) if is_always else (attribute, kind | msgspec.UnsetType, msgspec.UNSET)
            for attribute, (kind, is_always) in zip(attributes, fields.values(), strict=True)
        ],
        rename=attributes,
        kw_only=True,
        forbid_unknown_fields=not is_open,
        namespace={"__doc__": document.__doc__},
    )


def _is_document(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _members(kind: Any) -> tuple[Any, ...]:
    """The member types of a union. For any other type, ``kind`` alone."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _shown(kind: Any) -> Any:
    """The type of a field, with document classes replaced by their printed types."""
    if _is_document(kind):
        return schema_type(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is None:
        return kind
    if origin is Annotated:
        return _shown(arguments[0])
    if origin is Counter:
        return dict[str, int]
    shown = [each if each is ... else _shown(each) for each in arguments]
    if origin in (Union, UnionType):
        return reduce(or_, shown)
    if origin is Sequence:
        return list[shown[0]]  # type: ignore[valid-type]
    return origin[tuple(shown)]


def schema(documents: Sequence[Any]) -> dict[str, Any]:
    """The JSON Schema of a document that is one of ``documents``."""
    shown, components = msgspec.json.schema_components(
        [schema_type(each) for each in documents], ref_template="#/$defs/{name}"
    )
    head = shown[0] if len(shown) == 1 else {"anyOf": list(shown)}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **head,
        "$defs": components,
    }
