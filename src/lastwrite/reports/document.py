"""What a command prints as JSON: structs whose fields are the document's, in their order.

Three things a field may say beside its type, and one that is no field:

    path: Annotated[str, As(or_none)] = field(name="object")  # printed as another value, or name
    contents: Annotated[Contents, SPREAD]                     # its own fields stand here
    seconds: Annotated[float, UNPRINTED]                      # not printed; a total may tell it
    status: ClassVar[str] = figure(lambda self: …)            # computed, and printed here

The names of printed fields are a contract; they only grow. ``schema_type`` says the same as a type
that msgspec makes a JSON Schema of.
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


class Spread(NamedTuple):
    """The fields of a field's value are printed in its place, but for some."""

    but: tuple[str, ...] = ()


SPREAD = Spread()


class As(NamedTuple):
    """A field is printed as what ``of`` makes of it; the return type of ``of`` is what is printed."""

    of: Callable[[Any], Any]


class Figure:
    """A value that is computed from the others when it is asked for."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self.of = of

    def __get__(self, document: object, owner: type) -> Any:
        return self if document is None else self.of(document)


def figure(of: Callable[[Any], T]) -> T:
    """Declare a ``Figure``; to a type checker it is its value."""
    return Figure(of)  # type: ignore[return-value]


def or_none(text: str) -> str | None:
    """For ``As``: an empty string is printed as null."""
    return text or None


class Printed:
    """What documents have in common."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """What is printed: dicts, lists, strings, numbers and None."""
        return self._printed(_plain)

    def one_by_one(self) -> dict[str, Any]:
        """The same to whoever goes through it once: each element of the document's own lists is
        made when its turn comes, and never all of them are there.
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
    """A value that prints as a JSON object; see the module for what its fields may say."""


class FrozenDocument(Printed, msgspec.Struct, frozen=True):
    """A document that does not change, and can be hashed."""


class PrintedLine(NamedTuple):
    """One field of a document as it is printed; ``attribute`` is where its class says so."""

    name: str
    attribute: str
    type: Any
    spread: Spread | None
    of: Callable[[Any], Any] | None

    def value_of(self, document: Printed) -> Any:
        value = getattr(document, self.attribute)
        return value if self.of is None else self.of(value)


@cache
def printed_lines(document: type[Any]) -> tuple[PrintedLine, ...]:
    """What a document prints, in order; a name that stands twice is printed where it stands first."""
    names = dict(zip(document.__struct_fields__, document.__struct_encode_fields__, strict=True))
    found = []
    for attribute, hint in get_type_hints(document, include_extras=True).items():
        is_figure = get_origin(hint) is ClassVar
        if is_figure and not isinstance(document.__dict__.get(attribute), Figure):
            continue
        [hint] = get_args(hint) if is_figure else [hint]
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        if UNPRINTED in marks:
            continue
        of = next((mark.of for mark in marks if isinstance(mark, As)), None)
        shown = hint if of is None else get_type_hints(of)["return"]
        name = names.get(attribute, attribute)
        spread = next((mark for mark in marks if isinstance(mark, Spread)), None)
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
    """What ``_plain`` makes of a list, in the same time and less room."""

    def __iter__(self) -> Iterator[Any]:
        return map(_plain, super().__iter__())


@cache
def schema_type(document: Any) -> type[msgspec.Struct]:
    """A struct with exactly the fields that ``document`` prints, for msgspec to describe or to
    check a printed document by.

    A field that may be left out has the default ``UNSET``.
    """
    fields: dict[str, tuple[Any, bool]] = {}
    is_open = False  # other fields may be there, whatever they are
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
    """The types of a union; of any other type itself."""
    if get_origin(kind) is Annotated:
        return _members(get_args(kind)[0])
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _shown(kind: Any) -> Any:
    """The type of a field with printed types in the place of documents."""
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
