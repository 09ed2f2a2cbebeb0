"""JSON to msgspec structs, safe in any thread.

msgspec analyses a class when it first decodes one. A second thread that decodes the same class at
that moment uses the unfinished result and crashes the process (a segmentation fault in 0.22.0). So
one thread at a time makes decoders; all threads use finished ones.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_learning = Lock()
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decode_struct(text: bytes | bytearray | memoryview | str, kind: type[T]) -> T:
    """The struct ``kind`` that the JSON text contains.

    Raises:
        msgspec.MsgspecError: the text is not JSON, or has another form.
    """
    decoded: T = _decoder_of(kind).decode(text)
    return decoded


def convert_struct(fields: object, kind: type[T]) -> T:
    """The struct ``kind`` from parsed JSON: dicts, lists, strings and numbers."""
    _decoder_of(kind)
    return msgspec.convert(fields, kind)  # noqa: TID251


def _decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder that any thread may use; ``kind`` and the classes of its fields are analysed then."""
    known = _decoders.get(kind)
    if known is None:
        with _learning:
            known = _decoders.get(kind) or _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return known
