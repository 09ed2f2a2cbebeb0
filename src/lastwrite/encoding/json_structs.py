"""JSON to msgspec's structs, in any thread.

msgspec learns a class when it first decodes one, and a second thread that comes at that moment uses
what is half learned and ends the process (seen of 0.22.0: a segmentation fault). So a class is
learned by one thread; what is known is decoded by all.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_learning = Lock()
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decode_struct(text: bytes | bytearray | memoryview | str, kind: type[T]) -> T:
    """
    Raises:
        msgspec.MsgspecError: it is no JSON, or of another form.
    """
    decoded: T = _decoder_of(kind).decode(text)
    return decoded


def convert_struct(fields: object, kind: type[T]) -> T:
    """The same of what JSON has become already: dicts, lists, strings and numbers."""
    _decoder_of(kind)
    return msgspec.convert(fields, kind)  # noqa: TID251


def _decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """A decoder that any thread may use; ``kind`` and the classes of its fields are known then."""
    known = _decoders.get(kind)
    if known is None:
        with _learning:
            known = _decoders.get(kind) or _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return known
