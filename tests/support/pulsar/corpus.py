"""Reads ``tests/corpus/pulsar`` for tests: data and answers of real clusters."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).parents[2] / "corpus" / "pulsar"
TOPICS = {
    "shapes": "persistent://public/default/shapes",
    "odd": "persistent://public/default/odd",
    "parts-partition-1": "persistent://public/default/parts-partition-1",
    "files": "persistent://public/fs/files",
    "events": "persistent://public/default/events",
}


@cache
def rows(path: str) -> list[dict[str, Any]]:
    """The rows of a file of JSON lines in the corpus, packed or not. Do not change them."""
    content = (CORPUS / path).read_bytes()
    lines = (gzip.decompress(content) if path.endswith(".gz") else content).splitlines()
    return [json.loads(line) for line in lines]


def raw_entries(name: str) -> dict[tuple[int, int], bytes]:
    """All raw entries of a topic, as the bookies returned them."""
    return {
        (row["ledger"], row["entry"]): base64.b64decode(row["bytes"])
        for row in rows(f"topics/{name}/raw.jsonl.gz")
    }


def compacted_entries(name: str, number: int) -> list[bytes]:
    """The entries of the broker's compacted ledger after that round."""
    found = rows(f"topics/{name}/{number}/compacted.jsonl.gz")
    assert [row["entry"] for row in found] == list(range(len(found)))
    return [base64.b64decode(row["bytes"]) for row in found]


def horizon(name: str, number: int) -> dict[str, Any]:
    """The broker's state after that round: ``horizon``, ``ledger``, ``entries``, ``removed``."""
    [found] = rows(f"topics/{name}/{number}/horizon.json")
    return found


def unpack(part: str, target: Path) -> Path:
    """Copy a folder of the corpus to ``target``, and unpack its packed files.

    Returns ``target``.
    """
    for source in sorted((CORPUS / part).rglob("*")):
        place = target / source.relative_to(CORPUS / part)
        if source.is_dir():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix == ".gz":
            place.with_suffix("").write_bytes(gzip.decompress(source.read_bytes()))
        else:
            shutil.copy(source, place)
    return target
