"""Decode Java's properties format, used by ``server.properties`` and ``--config-file``."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lastwrite.errors import InvalidConfig

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def decode_properties(text: str) -> dict[str, str]:
    r"""Decode a properties text to names and values. The last value of a name applies.

    ``#`` and ``!`` start comment lines. ``=``, ``:`` or blanks separate name and value. A backslash
    at a line's end joins the next line. ``\t \n \r \f \uXXXX`` are escapes; any other escaped
    character stands for itself.

    Raises:
        InvalidConfig: a ``\u`` is not followed by four hexadecimal digits.

    Source: java.util.Properties.load, Java 17.
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end, separated = 0, 0
        while end < len(line) and line[end] not in _BLANK + "=:":
            end += 2 if line[end] == "\\" else 1
        separated = end
        while separated < len(line) and line[separated] in _BLANK:
            separated += 1
        if separated < len(line) and line[separated] in "=:":
            separated += 1
        while separated < len(line) and line[separated] in _BLANK:
            separated += 1
        found[_unescape(line[:end], number)] = _unescape(line[separated:], number)
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line with a setting. Continuation lines are joined."""
    joined: str | None = None
    first = 0
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_BLANK)
        if joined is None:
            if not line or line[0] in "#!":
                continue
            joined, first = "", number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            joined += line[:-1]
            continue
        yield first, joined + line
        joined = None
    if joined is not None:
        yield first, joined


def _unescape(text: str, number: int) -> str:
    out: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            out.append(text[at])
            at += 1
        elif text[at + 1 : at + 2] == "u":
            digits = text[at + 2 : at + 6]
            if not re.fullmatch("[0-9A-Fa-f]{4}", digits):
                raise InvalidConfig(
                    f"line {number} of the properties: \\u{digits} is not a Unicode escape"
                )
            out.append(chr(int(digits, 16)))
            at += 6
        else:
            escaped = text[at + 1 : at + 2]
            out.append(_ESCAPES.get(escaped, escaped))
            at += 2
    return "".join(out)
