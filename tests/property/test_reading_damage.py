"""Properties of reading damaged logs: inspect and dump end, and dump invents no record."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastwrite
from lastwrite.encoding.compression import Codec
from lastwrite.errors import CorruptLog, UnsupportedFormat
from lastwrite.kafka.look.inspection import InspectReport
from tests.unit.test_dump import write

UNPROVEN = (
    "offset",
    "leader_epoch",
    "segment",
    "position",
)  # fields that the batch's CRC does not cover


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    for codec in Codec:
        write(root / codec.label, 60, codec=codec)
    return root


def content(row: dict[str, Any]) -> str:
    return repr({name: value for name, value in row.items() if name not in UNPROVEN})


@st.composite
def damages(draw: st.DrawFn, data: bytes) -> bytes:
    """``data`` with some bytes flipped, removed, inserted, or overwritten by a wrong number."""
    hurt = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(hurt)))
        match draw(st.sampled_from(["flip", "cut", "insert", "number", "end"])):
            case "flip" if at < len(hurt):
                hurt[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del hurt[at : at + draw(st.integers(1, 100))]
            case "insert":
                hurt[at:at] = draw(st.binary(min_size=1, max_size=100))
            case "number":
                hurt[at : at + 4] = draw(
                    st.sampled_from([b"\x7f\xff\xff\xff", b"\xff" * 4, b"\0" * 4, b"\0\0\0\x31"])
                )
            case _:
                del hurt[at:]
    return bytes(hurt)


@given(data=st.data(), codec=st.sampled_from(list(Codec)))
def test_dump_of_a_damaged_log_invents_no_record(
    data: st.DataObject, codec: Codec, whole: Path
) -> None:
    source = whole / codec.label
    known = {content(row) for row in lastwrite.dump(str(source))}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(shutil.copytree(source, Path(folder) / "log"))
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for _ in range(data.draw(st.integers(1, 2))):
            path = data.draw(st.sampled_from(files))
            path.write_bytes(data.draw(damages(path.read_bytes())))
        report: InspectReport = lastwrite.inspect(str(root))
        assert report.to_dict()["totals"]["records"] <= 60
        for options in ({}, {"batches": True}, {"index": True}, {"offset": 30}):
            rows = []
            try:
                for row in lastwrite.dump(str(root), **options):  # type: ignore[arg-type]
                    rows.append(row)
            except (CorruptLog, UnsupportedFormat):
                pass
            if not options:
                assert {content(row) for row in rows} <= known
