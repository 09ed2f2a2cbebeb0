"""RocketMQ records for tests: random ones, worked examples, and a slow decoder of logs."""

from __future__ import annotations

import struct
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from lastwrite.errors import CorruptLog, TruncatedLog
from lastwrite.rocketmq.format import kernels, properties
from lastwrite.rocketmq.format.java_hash import is_blank, tags_code
from lastwrite.rocketmq.format.record import (
    COMPRESSED,
    MAGIC_V1,
    MAGIC_V2,
    Host,
    RocketmqMessage,
    decode_blank,
    decode_message,
    encode_message,
    make_message,
)

START = 1_700_000_000_000
V4 = Host(bytes([127, 0, 0, 1]), 54321)
V6 = Host(bytes.fromhex("20010db8000000000000000000000007"), 10911)

# Worked examples, each checked with the real 5.x decoder.
EXAMPLE_V1 = bytes.fromhex(
    "0000007d daa320a7 3610a686 00000000 00000000 0000000000000007 0000000000000000 00000000"
    "0000018bcfe56800 7f000001 0000d431 0000018bcfe5687b 7f000001 00002a9f 00000000"
    "0000000000000000 00000005 68656c6c6f 06 63746f706963"
    "0017 4b455953 01 6f726465722d31 02 54414753 01 54616741 02"
)
EXAMPLE_V1_OLD = (
    bytes.fromhex("0000007c") + EXAMPLE_V1[4:-25] + bytes.fromhex("0016") + EXAMPLE_V1[-23:-1]
)
EXAMPLE_V2 = bytes.fromhex(
    "00000092 daa320a7 7156e945 00000003 00000000 0000000000000008 000000000000007d 00000331"
    "0000018bcfe56800 00000000000000000000000000000001 0000d431 0000018bcfe5687c"
    "20010db8000000000000000000000007 00002a9f 00000000 0000000000000000"
    "0000000c 785e4b4ca40c0000148d1841 06 63746f706963 000d 4b455953 01 6f726465722d32 02"
)
EXAMPLE_V3 = bytes.fromhex(
    "0000006f daa320ab 00000000 00000000 00000000 0000000000000009 000000000000010f 00000000"
    "0000018bcfe56800 7f000001 0000d431 0000018bcfe5687d 7f000001 00002a9f 00000000"
    "0000000000000000 00000000 0006 63746f706963 000d 4b455953 01 6f726465722d31 02"
)
# Records that the real store classes wrote.
EXAMPLE_RECORD_CRC = bytes.fromhex(
    "000000c0daa320a71f98bd29000000000000000000000000000000000000000000000000000000000000018bcfe56800"
    "7f0000010000d431000001a1fb7709fc7f00000100002a9f0000000000000000000000000000003c"
    "616161616161616161616161616161616161616161616161616161616161616161616161616161616161616161616161"
    "6161616161616161616161610663746f70696300234b455953016b3002544147530154025f5f43524333322301373337"
    "3230303633353102"
)
EXAMPLE_INNER = bytes.fromhex(
    "0000011adaa320a70707e464000000000000000000000000000000000000000000000000000000c00000018bcfe56800"
    "7f0000010000d431000001a1fb7775e97f00000100002a9f000000000000000000000000000000930000003100000000"
    "000000000000000000000002623000194b455953016b3002574149540174727565025441475301540200000031000000"
    "00000000000000000000000002623100194b455953016b31025741495401747275650254414753015402000000310000"
    "000000000000000000000000 0002623200194b455953016b320257414954017472756502544147530154020662746f70"
    "69630026494e4e45525f42415345013002554e49515f4b45590141424302494e4e45525f4e554d013302"
)

# Names and values of properties: all characters except 1 and 2. ``spaces`` has all kinds of blanks.
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=12
)
spaces = st.text(
    st.sampled_from(" \t\n\x1c\u1680\u2003\u2007\u2028\u3000\xa0"), min_size=1, max_size=4
)
names = st.sampled_from(
    [
        "KEYS",
        "TAGS",
        "UNIQ_KEY",
        "DELAY",
        "INNER_NUM",
        "INNER_BASE",
        "INNER_MULTI_DISPATCH",
        "WAIT",
        "KEY",
        "KEYSX",
    ]
    + ["UNIQ_KEYS", "INNER_NUMB", "INNER_BASIS", "INNER_MULTI_QUEUE_OFFSET", "keys", "K"]
)
numbers = st.sampled_from(
    [
        "0",
        "3",
        "32767",
        "32768",
        "-1",
        "+7",
        "-32768",
        "-32769",
        "9223372036854775807",
        "9223372036854775808",
        "x",
        "-",
    ]
)
raw_properties = st.one_of(
    st.lists(st.tuples(names | texts, texts | spaces | numbers), max_size=6).map(
        lambda pairs: b"\x02".join(f"{name}\x01{value}".encode() for name, value in pairs)
    ),
    st.lists(
        st.sampled_from([b"KEYS", b"TAGS", b"\x01", b"\x02", b"a", b"\xff", b"UNIQ_KEY", b" "]),
        max_size=20,
    ).map(b"".join),
    st.binary(max_size=60),
).flatmap(lambda raw: st.sampled_from([raw, raw + b"\x02"]))

i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def messages(draw: st.DrawFn) -> RocketmqMessage:
    """Any message that can be encoded, with a correct checksum."""
    magic = draw(st.sampled_from([MAGIC_V1, MAGIC_V2]))
    topic = draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
    raw = draw(raw_properties)
    return replace(
        make_message(
            topic,
            draw(st.binary(max_size=40) | st.binary(min_size=100, max_size=300)),
            magic=magic,
            queue_id=draw(i32),
            flag=draw(i32),
            queue_offset=draw(i64),
            physical_offset=draw(i64),
            sys_flag=draw(st.sampled_from([0, 2, 4, 8, 12, COMPRESSED, 0x301, 0xC0, -1])),
            born_time_ms=draw(i64),
            born_host=draw(st.sampled_from([V4, V6])),
            store_time_ms=draw(i64),
            store_host=draw(st.sampled_from([V4, V6])),
            reconsume_times=draw(i32),
            prepared_offset=draw(i64),
        ),
        properties_bytes=raw,
        properties=properties.parse(raw),
    )


logs = st.lists(messages(), max_size=6)


def array(data: bytes) -> np.ndarray:
    """The bytes as an array of their own, so that a kernel's reads beyond the end show."""
    return np.frombuffer(data, np.uint8).copy()


def split(
    data: bytes, check_crc: bool = True, rows: int = 100
) -> tuple[np.ndarray, int, int, int, int]:
    """Run the kernel over ``data``.

    Returns the table, the end position, code, position and wanted size.
    """
    table = np.zeros(rows, kernels.MESSAGE)
    count, consumed, code, at, wanted = kernels.split(array(data), 0, len(data), table, check_crc)
    return table[:count], consumed, code, at, wanted


def slow_split(data: bytes, check_crc: bool = True) -> tuple[list[dict[str, int]], int, int]:
    """What the kernel must return: rows, the position after the last one, and the code."""
    found: list[dict[str, int]] = []
    at = 0
    while at < len(data):
        left = len(data) - at
        if left < 8:
            return found, at, kernels.NEED_MORE
        if decode_blank(data, at, len(data)) is not None:
            return found, at, kernels.BLANK
        size, magic = struct.unpack_from(">ii", data, at)
        if size == -1 and magic >= 8:  # DLedger's blank record
            return found, at, kernels.BLANK
        if size == 1 and magic not in (MAGIC_V1, MAGIC_V2):  # the header of a DLedger entry
            if left < kernels.DLEDGER_HEADER_BYTES:
                return found, at, kernels.NEED_MORE
            (body_size,) = struct.unpack_from(">i", data, at + 44)
            if body_size < 0 or magic != kernels.DLEDGER_HEADER_BYTES + body_size:
                return found, at, kernels.BAD_MAGIC
            at += kernels.DLEDGER_HEADER_BYTES
            continue
        try:
            message = decode_message(data, at, len(data))
        except TruncatedLog:
            return found, at, kernels.NEED_MORE
        except CorruptLog as error:
            if "size is 0" in error.problem:
                return found, at, kernels.END
            if "magic is" in error.problem:
                return found, at, kernels.BAD_MAGIC
            return (
                found,
                at,
                kernels.BAD_SIZE
                if error.problem.startswith("the record's size is")
                else kernels.BAD_LENGTHS,
            )
        if check_crc and not message.body_crc_holds:
            return found, at, kernels.BAD_CRC
        found.append(slow_row(data, at, message))
        at += message.size
    return found, at, kernels.OK


def slow_row(data: bytes, at: int, message: RocketmqMessage) -> dict[str, int]:
    """The kernel's row for a message at ``at``."""
    body_at = at + message.body_at
    topic_at = body_at + len(message.body) + (2 if message.magic == MAGIC_V2 else 1)
    properties_at = topic_at + len(message.topic_bytes) + 2
    row = {
        "position": at,
        "size": message.size,
        "magic": message.magic,
        "body_crc": message.body_crc,
        "queue_id": message.queue_id,
        "flag": message.flag,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "sys_flag": message.sys_flag,
        "born_time": message.born_time_ms,
        "store_time": message.store_time_ms,
        "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_offset,
        "born_host_at": at + 48,
        "store_host_at": at + 48 + len(message.born_host.encode()) + 8,
        "body_at": body_at,
        "body_length": len(message.body),
        "topic_at": topic_at,
        "topic_length": len(message.topic_bytes),
        "properties_at": properties_at,
        "properties_length": len(message.properties_bytes),
    }
    spans: dict[str, tuple[int, int]] = {}
    place = properties_at
    for piece in message.properties_bytes.split(b"\x02"):
        name, separator, value = piece.partition(b"\x01")
        if name and separator and value:
            spans[name.decode("utf-8", "replace")] = (place + len(name) + 1, len(value))
        place += len(piece) + 1
    marks = 0
    row["key_at"], row["key_length"] = spans.get("KEYS", (-1, -1))
    if is_blank(message.properties.get("KEYS")) and row["key_at"] >= 0:
        marks |= kernels.BLANK_KEY | row["key_length"] << kernels.KEY_LENGTH_SHIFT
        row["key_length"] = -1
    row["tags_at"], row["tags_length"] = spans.get("TAGS", (-1, -1))
    row["tags_code"] = tags_code(message.properties.get("TAGS"))
    row["uniq_at"], row["uniq_length"] = spans.get("UNIQ_KEY", (-1, -1))
    row["inner_num"] = row["inner_base"] = -1
    if "INNER_NUM" in spans and "INNER_BASE" in spans:
        marks |= kernels.HAS_INNER
        number = java_number(message.properties["INNER_NUM"], 15)
        base = java_number(message.properties["INNER_BASE"], 63)
        if number is None or base is None:
            marks |= kernels.BAD_NUMBER
        else:
            row["inner_num"], row["inner_base"] = number, base
    if "DELAY" in spans:
        marks |= kernels.HAS_DELAY
    if "INNER_MULTI_DISPATCH" in spans:
        marks |= kernels.HAS_MULTI_DISPATCH
    row["marks"] = marks
    return row


def java_number(text: str, bits: int) -> int | None:
    """``Short.parseShort`` or ``Long.parseLong``. None if Java would throw an exception."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or any(digit not in "0123456789" for digit in digits):
        return None
    number = int(text)
    return number if -(1 << bits) <= number < 1 << bits else None


def log_of(found: list[RocketmqMessage]) -> bytes:
    return b"".join(encode_message(message) for message in found)
