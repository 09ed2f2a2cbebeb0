"""Encodes one request or answer of RocketMQ's remoting protocol.

    bytes 0 to 3   i32  length of the rest of the frame
    byte  4        encoding of the header: 0 JSON, 1 RocketMQ's binary encoding
    bytes 5 to 7   u24  length of the header
    then           the header, and the body up to the frame's end

The header in JSON has these members:

- ``code``: the request code; in an answer 0 or an error code.
- ``opaque``: a number that is copied from the request to its answer.
- ``flag``: bit 0 marks an answer, bit 1 a request that expects no answer.
- ``remark``: the error message.
- ``extFields``: the fields of the request or answer; names and values are text.
- ``language``, ``version`` and ``serializeTypeCurrentRPC``: properties of the sender.

A broker answers in the encoding of the request, so only JSON is supported.

Source: RocketMQ 5.5.0 and 4.9.3 ``RemotingCommand``, ``LanguageCode``, ``SerializeType``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from lastwrite.encoding.layout import Buffer
from lastwrite.errors import CorruptLog, TruncatedLog, UnsupportedFormat

PREFIX = struct.Struct(">i")  # length of the rest of the frame
IS_ANSWER = 1

_JSON = 0
_HEAD = struct.Struct(">I")  # encoding and length of the header


@dataclass(frozen=True, slots=True)
class Command:
    """A request, or the answer to a request."""

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    flag: int = 0
    remark: str | None = None

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & IS_ANSWER)


def encode_command(command: Command) -> bytes:
    """Encode a request or an answer as a frame, including the length prefix."""
    header: dict[str, object] = {
        "code": command.code,
        "language": "PYTHON",
        "version": 0,
        "opaque": command.opaque,
        "flag": command.flag,
        "extFields": dict(command.fields),
        "serializeTypeCurrentRPC": "JSON",
    }
    if command.remark is not None:
        header["remark"] = command.remark
    packed = json.dumps(header, separators=(",", ":")).encode()
    head = _HEAD.pack(_JSON << 24 | len(packed))
    return b"".join(
        (PREFIX.pack(len(head) + len(packed) + len(command.body)), head, packed, command.body)
    )


def decode_command(frame: Buffer) -> Command:
    """Decode the command in ``frame``, without the length prefix.

    Raises:
        TruncatedLog: the frame ends inside its header.
        UnsupportedFormat: the header is not JSON.
        CorruptLog: the header is not valid JSON, or a member has the wrong type.
    """
    view = memoryview(frame)
    if len(view) < _HEAD.size:
        raise TruncatedLog("the answer is shorter than a remoting header", 0)
    (head,) = _HEAD.unpack_from(view)
    kind, length = head >> 24, head & 0xFF_FFFF
    if kind != _JSON:
        raise UnsupportedFormat(
            f"the remoting header has serialization type {kind}, which is not JSON", 0
        )
    if length > len(view) - _HEAD.size:
        raise TruncatedLog(
            f"the remoting header needs {length} bytes, but {len(view) - _HEAD.size} are left", 0
        )
    end = _HEAD.size + length
    try:
        header = json.loads(bytes(view[_HEAD.size : end]))
    except (ValueError, RecursionError) as error:
        raise CorruptLog(f"the remoting header is not JSON: {error}", _HEAD.size) from error
    if not isinstance(header, dict):
        raise CorruptLog("the remoting header is not a JSON object", _HEAD.size)
    fields = header.get("extFields") or {}
    if not isinstance(fields, dict):
        raise CorruptLog("extFields of the remoting header is not a JSON object", _HEAD.size)
    remark = header.get("remark")
    return Command(
        code=_integer(header, "code"),
        fields={name: str(value) for name, value in fields.items() if value is not None},
        body=bytes(view[end:]),
        opaque=_integer(header, "opaque"),
        flag=_integer(header, "flag"),
        remark=None if remark is None else str(remark),
    )


def _integer(header: Mapping[str, object], name: str) -> int:
    value = header.get(name, 0)
    if not isinstance(value, int):
        raise CorruptLog(f"{name} of the remoting header is {value!r}, not an integer", _HEAD.size)
    return value
