"""Decode JSON to msgspec structs in a thread-safe way.

msgspec analyses a class when it first decodes it. A second thread that decodes the same class
meanwhile uses the unfinished analysis, and the process crashes (segmentation fault in 0.22.0).
Decoders are therefore created by one thread at a time, and used by all threads.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_learning = Lock()
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {}


def decode_struct(text: bytes | bytearray | memoryview | str, kind: type[T]) -> T:
    """Decode JSON text to the struct ``kind``.

    Raises:
        msgspec.MsgspecError: the text is not JSON, or has another form.
    """
    decoded: T = _decoder_of(kind).decode(text)
    return decoded


def convert_struct(fields: object, kind: type[T]) -> T:
    """Convert parsed JSON (dicts, lists, strings and numbers) to the struct ``kind``."""
    _decoder_of(kind)
    return msgspec.convert(fields, kind)  # noqa: TID251


def _decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The shared decoder for ``kind``. Only one thread at a time creates decoders."""
    known = _decoders.get(kind)
    if known is None:
        with _learning:
            known = _decoders.get(kind) or _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return known
