"""Reads the buckets of a real AutoMQ, and the records that a consumer of its broker got.

``tests/corpus/automq/README.md`` describes the stages.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
FIXTURES = Path(os.environ.get("LASTWRITE_FIXTURES", REPOSITORY.parent / "shared" / "fixtures"))
IN_CORPUS = REPOSITORY / "tests" / "corpus" / "automq" / "stage-v1.tar.xz"
SHARED = FIXTURES / "automq" / "stages.tar.xz"
STAGES = ("stage1", "stage3-live", "stage4", "stage-v1")
LEVELS = ("read_uncommitted", "read_committed")


class Stage:
    """An unpacked stage: its bucket, its metadata log, and the expected records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bucket = folder / "bucket"
        self.metadata = folder / "__cluster_metadata-0"
        summary = json.loads((folder / "expected" / "summary.json").read_text())
        self.partitions: Mapping[str, Mapping[str, int]] = summary["partitions"]

    @property
    def source(self) -> dict[str, str]:
        """The keyword arguments with which a command reads the bucket, apart from the path."""
        return {"system": "automq", "metadata": str(self.metadata)}

    def names(self) -> Iterator[tuple[str, int]]:
        """The topic and number of each partition with expected records."""
        for name in sorted(self.partitions):
            topic, _, number = name.rpartition("-")
            yield topic, int(number)

    def expected(self, topic: str, number: int, level: str) -> list[dict[str, Any]]:
        """The records that a consumer got."""
        path = self.folder / "expected" / f"{topic}-{number}.{level}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]


def unpack_stage(name: str, folder: Path) -> Stage:
    """Unpack a stage below ``folder``. Skips the test if the stage's file is missing."""
    archived = IN_CORPUS if IN_CORPUS.name.startswith(f"{name}.") else SHARED
    if not archived.exists():
        pytest.skip(f"the AutoMQ fixture is not at {archived}: LASTWRITE_FIXTURES names its folder")
    with tarfile.open(archived) as archive:
        members = [each for each in archive.getmembers() if each.name.split("/")[0] == name]
        archive.extractall(folder, members, filter="data")
    return Stage(folder / name)
