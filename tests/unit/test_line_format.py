"""Tests of ``dump -f``: the bytes that each format letter prints, and rejected formats."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastwrite.cli import run
from lastwrite.cli.line_format import LETTERS, line_format
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from tests.support.kafka.single import encode_control_record

VALUE = bytes(range(256))
RECORDS = [
    Record(0, 1000, b"k-0", VALUE, ((b"trace", b"\xff\0"), (b"none", None))),
    Record(1, 1001, b"k-1", None),
    Record(2, 1002, None, b""),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A topic with two messages and a tombstone, and the marker of an aborted transaction."""
    folder = tmp_path / "orders-7"
    folder.mkdir()
    for ending in (".index", ".timeindex"):
        (folder / f"{0:020}{ending}").write_bytes(b"")
    marker = encode_batch(
        [encode_control_record(3, 1003, ControlType.ABORT)],
        base_offset=3,
        control=True,
        transactional=True,
        producer_id=1,
        producer_epoch=0,
    )
    (folder / f"{0:020}.log").write_bytes(encode_batch(RECORDS, base_offset=0) + marker)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (r"%t [%p] %o %T\n", [b"orders [7] %d %d\n" % (n, 1000 + n) for n in range(3)]),
        (r"%k:%K\0", [b"k-0:3\0", b"k-1:3\0", b":-1\0"]),
        (r"%s%S\t", [VALUE + b"256\t", b"-1\t", b"0\t"]),
        (r"%R\r\x0a", [b"\0\0\1\0\r\n", b"\xff\xff\xff\xff\r\n", b"\0\0\0\0\r\n"]),
        (r"{%h}", [b"{trace=\xff\0,none=NULL}", b"{}", b"{}"]),
        (r"100%%\\ größe", ["100%\\ größe".encode()] * 3),
    ],
)
def test_each_letter_prints_its_field(
    root: Path, words: str, expected: list[bytes], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["dump", str(root), "-f", words]) == 0
    assert capfdbinary.readouterr().out == b"".join(expected), "and nothing of the marker"


def test_null_marker_is_printed_on_request(
    root: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["dump", str(root), "-Z", "--offset", "1", "-f", r"%k=%s\n"]) == 0
    assert capfdbinary.readouterr().out == b"k-1=NULL\nNULL=\n"


@pytest.mark.parametrize("wrong", ["%q", "%", r"\q", "\\", r"\x4", "%ö"])
def test_unknown_letter_lists_all_letters(
    root: Path, wrong: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["dump", str(root), "-f", f"a{wrong}"]) == 2
    said = capfd.readouterr()
    kind = "field" if wrong[0] == "%" else "escape"
    assert said.out == "" and f"-f contains the unknown {kind} {wrong[:2]} " in said.err
    known = [f"%{letter} " for letter in LETTERS] if wrong[0] == "%" else [r"\n \t \r \\ \0 \xHH"]
    assert all(each in said.err for each in known)


@pytest.mark.parametrize("other", ["--json", "--batches", "--index", "--decode"])
def test_format_excludes_other_output_options(root: Path, other: str) -> None:
    assert run(["dump", str(root), "-f", "%k", other]) == 2
    assert run(["dump", str(root), "-Z"]) == 2


def test_row_that_is_not_a_record_is_refused(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (root / "meta.properties").write_text("version=1\n")
    assert run(["dump", str(root / "meta.properties"), "-f", "%k"]) == 2
    assert capfd.readouterr().out == ""
    with pytest.raises(InvalidConfig):
        line_format("%k", b"")({"topic": "orders"})
