"""Generates docs/reference/documents.md, below its mark, from the document classes.

The meaning of a field is the comment beside or above it. The meaning of a document is its docstring.
"""

from __future__ import annotations

import enum
import inspect
import io
import re
import textwrap
import tokenize
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from lastwrite.cli.documents import documents
from lastwrite.reports.document import printed_lines, schema_type

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "documents.md"
MARK = "<!-- From here on made by python -m tests.reference --write -->\n"
_PLAIN = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    dict: "object",
    Any: "any",
    object: "any",
}


def current_page() -> str:
    """The page with its present head and with newly generated tables."""
    head, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    lines = ["| Command | Document |", "|---|---|"]
    for command, found in documents().items():
        lines += [f"| `{command}` | {_link(each.__name__)} |" for each in found]
    every = {each: None for found in documents().values() for each in found}
    for document in (known := list(every)):
        known += [part for part in _parts(document) if part not in known]
    for document in sorted(known, key=lambda each: each.__name__):
        lines += ["", *_section(document)]
    return head + MARK + "\n" + "\n".join(lines) + "\n"


def _section(document: Any) -> list[str]:
    meanings = _meanings(document)
    lines = [
        f"## {document.__name__}",
        "",
        *textwrap.wrap(" ".join((document.__doc__ or "").split()), 100),
        "",
    ]
    lines += ["| Field | Type | Meaning |", "|---|---|---|"]
    for known in msgspec.structs.fields(schema_type(document)):
        kind = _words(known.type) + ("" if known.required else "; may be left out")
        lines.append(f"| `{known.encode_name}` | {kind} | {meanings.get(known.encode_name, '')} |")
    return lines


def _parts(document: Any) -> list[Any]:
    """The documents inside of a document."""
    found = []
    for line in printed_lines(document):
        for part in _documents_in(line.type):
            found += [part] if line.spread is None else _parts(part)
    return found


def _documents_in(kind: Any) -> list[Any]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [part for each in get_args(kind) for part in _documents_in(each)]


def _words(kind: Any) -> str:
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return ", ".join(f"`{each.value}`" for each in kind)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _link(kind.__name__)
    origin, inside = get_origin(kind), get_args(kind)
    if origin is dict:
        return f"by name: {_words(inside[1])}"
    if origin is tuple and inside[-1] is not ...:
        return "[" + ", ".join(map(_words, inside)) + "]"
    if origin in (list, tuple):
        return f"list: {_words(inside[0])}"
    return " or ".join(_words(each) for each in inside if each is not msgspec.UnsetType)


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _meanings(document: Any) -> dict[str, str]:
    """The comments by printed field name, including fields of documents that are spread there."""
    found: dict[str, str] = {}
    said = comments_of(document)
    for line in printed_lines(document):
        if line.spread is None:
            found[line.name] = said.get(line.attribute, "")
        else:
            for part in _documents_in(line.type):
                found |= _meanings(part)
    return {name: text.replace("|", "\\|") for name, text in found.items()}


def escaped(text: str) -> str:
    """``text`` as Markdown for a table, with code only where the text marks it."""
    parts = text.split("`")
    for n in range(0, len(parts), 2):
        for sign in ("\\", "*", "_", "[", "]", "|"):
            parts[n] = parts[n].replace(sign, f"\\{sign}")
        parts[n] = parts[n].replace("<", "&lt;")
    return "`".join(parts)


def comments_of(document: Any) -> dict[str, str]:
    """By attribute, the comment at its declaration, or else the comment lines right above it."""
    said: dict[str, str] = {}
    above: list[str] = []
    name: str | None = None
    depth = 0
    tokens = tokenize.generate_tokens(io.StringIO(inspect.getsource(document)).readline)
    for token in tokens:
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ")
            if text.startswith("fmt: "):
                continue
            if name is None:
                above.append(text)
            else:
                said[name] = text
        elif token.type == tokenize.NEWLINE:
            name = None
        elif token.type in (tokenize.INDENT, tokenize.DEDENT):
            depth += 1 if token.type == tokenize.INDENT else -1
        elif token.type == tokenize.NAME and name is None:
            declared = re.match(r"    (\w+): ", token.line)
            if declared is not None and depth == 1:
                name = declared[1]
                if above:
                    said[name] = " ".join(above)
            above = []
            name = name or ""
    return said
