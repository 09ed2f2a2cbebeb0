"""Properties of damaged topic folders: a reader reports a wrong byte, or is not affected by it."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.errors import LogError
from lastwrite.pulsar.format.position import Position
from tests.support.pulsar.folders import batch, single, write_compacted, write_ledger
from tests.support.pulsar.topics import topic_folder

RAW = [single(f"k{n % 3}", f"value {n}", n) for n in range(6)] + [
    batch([("a", "1"), ("b", "2"), ("c", None)], 7)
]


def make(archive: Path) -> Path:
    folder = topic_folder(archive, "persistent://public/default/orders")
    write_ledger(folder, 10, RAW, block_bytes=400)
    write_ledger(folder, 11, RAW[:2])
    write_compacted(
        folder, 12, [(Position(10, n), RAW[n]) for n in (1, 4, 5)], Position(10, 5), block_bytes=300
    )
    return folder


def told(look: Callable[[], Any]) -> Any:
    """The rows of a reader, and the name of its error. None if there was no error."""
    found: list[Any] = []
    try:
        for row in look():
            found.append((row["message_id"], row["key"], row["value"]))
    except LogError as error:
        assert error.path
        return found, type(error).__name__
    return found, None


LOOKS: dict[str, Callable[[str], Any]] = {
    "read": lambda path: lastwrite.read(path, system="pulsar"),
    "read compacted": lambda path: lastwrite.read(path, system="pulsar", read_compacted=True),
    "dump": lambda path: lastwrite.dump(path, system="pulsar"),
    "dump compacted": lambda path: lastwrite.dump(path, system="pulsar", compacted=True),
}


@settings(max_examples=80)
@given(st.integers(0, 10**9))
def test_any_wrong_byte_is_named_or_has_no_effect(seed: int) -> None:
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as archive:
        folder = make(Path(archive))
        whole = {name: told(lambda look=look: look(str(folder))) for name, look in LOOKS.items()}  # type: ignore[misc]
        assert all(problem is None for _, problem in whole.values())
        files = [each for each in folder.iterdir() if each.is_file()]
        path = draw.choice(sorted(files, key=lambda each: each.name.rpartition("-ledger-")[2]))
        data = bytearray(path.read_bytes())
        for _ in range(draw.choice((1, 1, 3))):
            at = draw.randrange(len(data))
            if draw.random() < 0.2:
                data = data[:at] or data[:1]
            else:
                data[at % len(data)] ^= draw.choice((1, 0x80, 0xFF))
        path.write_bytes(data)
        for name, look in LOOKS.items():
            rows, problem = told(lambda look=look: look(str(folder)))  # type: ignore[misc]
            if problem is None and path.name.endswith(
                "-ledger-12"
            ):  # nothing protects the ids in a compacted ledger
                assert [row[1:] for row in rows] == [row[1:] for row in whole[name][0]]
            else:
                assert problem is not None or rows == whole[name][0]
        report = lastwrite.inspect(str(folder), system="pulsar")
        assert report.exit_status in (0, 3)
        report.to_dict()
