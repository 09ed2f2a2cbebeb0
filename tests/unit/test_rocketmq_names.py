"""Tests of names, sizes, hashes and properties, with values of RocketMQ's own classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastwrite.errors import InvalidConfig
from lastwrite.rocketmq.format import java_hash, names, properties


def test_file_names_round_trip() -> None:
    assert names.file_name(0) == "00000000000000000000"
    assert names.file_name(104857460) == "00000000000104857460"
    assert names.parse_file_name(names.file_name(2**63 - 1)) == 2**63 - 1
    for name in (
        "",
        "0",
        "00000000000104857460.delete",
        "99999999999999999999",
        "0000000000010485746x",
        "compacting",
    ):
        assert names.parse_file_name(name) is None
    with pytest.raises(ValueError):
        names.file_name(-1)


def test_queue_and_index_names_are_parsed() -> None:
    assert [
        names.parse_queue_name(name)
        for name in ("0", "17", "-1", "01", "x", "99999999999", "2147483648")
    ] == [
        0,
        17,
        None,
        None,
        None,
        None,
        None,
    ]
    assert names.is_index_name("20261121150405123") and not names.is_index_name("2026112115040512")


@pytest.mark.parametrize(
    ("queue_size", "log_size", "sizes"),
    [  # observed in 5.5.0
        (10_485_760, 104_857_600, (104_857_460, 10_485_746)),
        (1_024, 10_240, (10_120, 1_012)),
        (1_024, 5_060, (6_072, 1_012)),
        (1_024, 5_566, (6_072, 1_012)),
        (1_024, 1_000, (5_060, 1_012)),
    ],
)
def test_log_sizes_are_rounded_as_by_a_broker(
    queue_size: int, log_size: int, sizes: tuple[int, int]
) -> None:
    assert names.log_sizes(log_size, queue_size) == sizes


def test_log_sizes_unusable_by_a_broker_are_refused() -> None:
    for log_size, queue_size in ((1000, 45), (1000, 0), (1000, -46), (2**40, 1024)):
        with pytest.raises(InvalidConfig):
            names.log_sizes(log_size, queue_size)


def test_string_hashes_equal_javas() -> None:
    assert java_hash.string_hash("order-1") == -1207111310
    assert java_hash.string_hash("order-2") == -1207111309
    assert java_hash.string_hash("key1") == 3288498
    assert java_hash.tags_code("TagA") == 2598919
    assert java_hash.tags_code(None) == java_hash.tags_code("") == 0
    assert java_hash.string_hash("polygenelubricants") == -(2**31)  # the usual example
    assert java_hash.string_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_index_hash_is_not_negative() -> None:
    assert java_hash.index_hash("ctopic", "order-1") >= 0
    assert abs(java_hash.string_hash("a#b")) == java_hash.index_hash("a", "b")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xc3\xa9", "é"),
        (b"\xff", "\ufffd"),
        (b"\xc0\x80", "\ufffd\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82A", "\ufffdA"),
        (b"\xe0\x80\x80", "\ufffd\ufffd\ufffd"),
        # a lone surrogate: one replacement character in Java, three in Python
        (b"\xed\xa0\x80", "\ufffd"),
        (b"\xf0\x9f\x98\x80", "\U0001f600"),
        (b"\xf0\x9f\x98", "\ufffd"),
        (b"\xf0\x9f\x98A", "\ufffdA"),
        (b"\xf5\x80\x80\x80", "\ufffd" * 4),
        (b"\xf0\x80\x80\x80", "\ufffd" * 4),
        (b"\xf4\x90\x80\x80", "\ufffd" * 4),
    ],
)
def test_broken_text_is_decoded_as_java_decodes_it(raw: bytes, text: str) -> None:
    assert java_hash.decode(raw) == text
    assert java_hash.decode(b"a" + raw + b"b") == (
        "a" + text + "b" if raw[-1:] != b"\xff" else "a\ufffdb"
    )


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_valid_text_is_decoded_unchanged(text: str) -> None:
    assert java_hash.decode(text.encode()) == text
    assert java_hash._decode_broken(text.encode()) == text


def test_blank_keys_are_recognised() -> None:
    for text in (
        None,
        "",
        " ",
        "\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f",
        "\u1680\u2000\u200a\u2028\u2029\u205f\u3000",
    ):
        assert java_hash.is_blank(text)
    for text in ("a", " a ", "\xa0", "\u2007", "\u202f", "\x85", "\ufeff", "\x00"):
        assert not java_hash.is_blank(text)


@pytest.mark.parametrize(
    ("raw", "parsed"),
    [
        (b"", {}),
        (b"KEYS\x01a\x02", {"KEYS": "a"}),
        (b"KEYS\x01a", {"KEYS": "a"}),
        (b"KEYS\x01a\x02KEYS\x01b", {"KEYS": "b"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),
        (b"\x01b\x02a\x01\x02ab\x02\x02\x02abc\x02k\x01v", {"k": "v"}),
        (b"k\x01\xff\x02", {"k": "\ufffd"}),
    ],
)
def test_properties_are_parsed(raw: bytes, parsed: dict[str, str]) -> None:
    assert properties.parse(raw) == parsed


@given(
    st.dictionaries(st.text(min_size=1, max_size=5), st.text(min_size=1, max_size=5)), st.booleans()
)
def test_built_properties_are_parsed_back(pairs: dict[str, str], closed: bool) -> None:
    try:
        raw = properties.build(pairs, closed=closed)
    except (ValueError, UnicodeEncodeError):
        return
    assert properties.parse(raw) == pairs


def test_properties_that_do_not_round_trip_are_refused() -> None:
    for pair in (("", "a"), ("a", ""), ("a\x01", "b"), ("a", "b\x02"), ("a\x02", "b")):
        with pytest.raises(ValueError):
            properties.build([pair])
