"""Tests that kernels give the same results with and without Numba."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lastwrite.encoding import machine_code
from lastwrite.encoding.kernel import Kernel, njit
from lastwrite.encoding.kernel_cache import load_code, may_keep_code, store_code
from lastwrite.encoding.machine_code import CodeOf
from lastwrite.model.columns import BATCH

CORPUS = Path(__file__).parents[1] / "corpus/kafka-4.4.0/stopped"
pytestmark = pytest.mark.skipif(not may_keep_code(), reason="Numba is told where to keep things")


@njit(cache=False, nogil=True)
def inner(data, at):  # type: ignore[no-untyped-def]
    return data[at] + 1


@njit(cache=False, nogil=True)
def summed(data, matrix, table, pair, factor, share, turned):  # type: ignore[no-untyped-def]
    """A kernel with every kind of argument and result."""
    total = np.int64(0)
    for i in range(len(data)):
        total += inner(data, i)
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            total += np.int64(matrix[i, j]) * (i + 10 * j)
    for row in range(len(table)):
        total += table[row]["position"] - table[row]["plain_end"]
        table[row]["size"] = total
    if turned:
        total = -total
    return total * factor, np.uint64(pair[0]) + pair[1][0], share / 2


@njit(cache=False, nogil=True)
def mixed(data, step, turned=False):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for i in range(0, len(data), step):
        total += data[i]
    return -total if turned else total


@njit(cache=False, nogil=True)
def answered(which):  # type: ignore[no-untyped-def]
    return which > 3


@njit(cache=False, nogil=True)
def allocated(count):  # type: ignore[no-untyped-def]
    return np.zeros(count, np.int64).sum()


@njit(cache=False, nogil=True)
def divided(by):  # type: ignore[no-untyped-def]
    return 10 // by


def arguments() -> tuple[Any, ...]:
    table = np.zeros(3, BATCH)
    table["position"], table["plain_end"] = [5, 6, 7], [1, -2, 1 << 40]
    matrix = np.arange(12, dtype=np.uint64).reshape(3, 4)
    data = np.arange(100, dtype=np.uint8)
    return data, matrix, table, (np.uint32(7), np.array([5, 6], np.uint64)), 3, 0.5, True


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Stored machine code in memory, by file name."""
    files: dict[str, bytes] = {}
    monkeypatch.setattr(machine_code, "load_code", lambda _, name: files.get(name, b""))
    monkeypatch.setattr(
        machine_code, "store_code", lambda _, name, code: files.update({name: code})
    )
    return files


def without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(*_: object) -> None:
        raise AssertionError("compiled once more")

    monkeypatch.setattr(machine_code, "_compiled", compiled)
    monkeypatch.setattr(Kernel, "for_numba", property(compiled))


def test_kernel_code_accepts_arguments_and_results_of_every_kind(
    kept: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_numba, by_code = arguments(), arguments()
    expected = summed.for_numba(*by_numba)
    assert CodeOf(summed)(*by_code) == expected
    assert np.array_equal(by_code[2], by_numba[2])
    assert [type(each) for each in CodeOf(summed)(*arguments())] == [int, int, float]
    assert [CodeOf(answered)(np.int64(n)) for n in (3, 4)] == [False, True]
    assert len(kept) == 2 and all(map(len, kept.values()))
    without_compiling(monkeypatch)
    assert CodeOf(summed)(*arguments()) == expected  # as in another process
    assert CodeOf(answered)(np.int64(4)) is True


def test_stale_or_damaged_code_is_compiled_again(
    kept: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert CodeOf(answered)(4) is True
    (name,) = kept
    whole = kept[name]
    for spoiled in (whole[:-100], bytes(len(whole)), b"\xff" + whole[1:], b"x\n"):
        kept[name] = spoiled
        assert CodeOf(answered)(4) is True and len(kept[name]) == len(whole)
    monkeypatch.setattr(machine_code, "_maker", lambda: b"another processor ")
    CodeOf(answered)(4)
    assert kept[name][:32] != whole[:32]


def test_unsupported_kernel_is_detected_once(
    kept: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt takes ten milliseconds, so it must not be repeated at every call."""
    asked: list[str] = []
    compiled = machine_code._compiled
    monkeypatch.setattr(
        machine_code, "_compiled", lambda *given: asked.append(given[-1]) or compiled(*given)
    )
    code = CodeOf(allocated)
    assert [code(5), code(6), code(7)] == [0, 0, 0]
    assert len(asked) == 1


def test_unsupported_call_falls_back_to_numba(kept: dict[str, bytes]) -> None:
    assert CodeOf(allocated)(5) == 0
    every_other = np.arange(100, dtype=np.uint8)[::2]
    expected = summed.for_numba(every_other, *arguments()[1:])
    assert CodeOf(summed)(every_other, *arguments()[1:]) == expected
    assert CodeOf(answered)(which=4) is True
    assert not kept
    with pytest.raises(ZeroDivisionError):
        CodeOf(divided)(0)


def test_code_is_stored_beside_the_source(tmp_path: Path) -> None:
    store_code("lastwrite.encoding.checksum", "a-test", b"machine code")
    file = Path(machine_code.__file__).parent / "__pycache__/checksum.a-test.code"
    try:
        assert file.read_bytes() == load_code("lastwrite.encoding.checksum", "a-test")
    finally:
        file.unlink()
    assert load_code("lastwrite.encoding.checksum", "a-test") == b""
    store_code("lastwrite.not_there.at_all", "a-test", b"nowhere to keep it")


def test_calls_with_usual_and_other_arguments_agree(
    kept: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual kinds of arguments have a fast path. Other kinds and other numbers of arguments
    must work, too.
    """
    code = CodeOf(mixed)
    data, wide = np.arange(9, dtype=np.uint8), np.arange(9, dtype=np.int64)
    read_only = data.copy()
    read_only.flags.writeable = False
    given = [(data, 2, True), (wide, 2, True), (read_only, 2, False), (data[:4], 2)]
    given += [(data[::2], 1, True), (wide, np.int64(2), np.bool_(True)), (data.reshape(3, 3)[1], 1)]
    assert code(data, 2, True) == code(data, 2, True)
    for each in given:
        assert code(*each) == mixed.for_numba(*each)
    assert code(data, 2, turned=True) == mixed.for_numba(data, 2, True)
    with pytest.raises(TypeError):
        code(data)
    with pytest.raises(TypeError):
        code(data, 2, True, 4)
    with pytest.raises(OverflowError):
        code(data, 1 << 80, True)


def test_numba_is_not_imported_after_kernels_are_stored(tmp_path: Path) -> None:
    """Neither a read-only command nor a round imports it."""
    code = (
        "import sys, lastwrite.cli\n"
        "try:\n"
        "    lastwrite.cli.main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "heavy = {'numba', 'pydantic', 'pyspark', 'pyarrow', 'psutil'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    round_here = (
        "import sys, lastwrite\n"
        "from lastwrite.spark.inline import INLINE\n"
        "config = {'cleanup.policy': 'compact'}\n"
        "lastwrite.compact(sys.argv[1], to=sys.argv[2], config=config, spark=INLINE)\n"
        "sys.exit('numba' in sys.modules)"
    )
    looks = [[code, *look, str(CORPUS)] for look in (["inspect"], ["dump", "--limit", "1"])]
    for words in (*looks, [round_here, str(CORPUS)]):
        for run in ("first", "second"):
            to = [] if words[0] is code else [str(tmp_path / run)]
            command = [sys.executable, "-c", *words, *to]
            done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
