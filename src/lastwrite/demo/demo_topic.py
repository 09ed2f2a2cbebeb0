"""The interface of the demo's topics: each can be written, and has a known table of last writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import Progress


@dataclass(frozen=True, slots=True)
class WrittenTopic:
    """A topic in a log root, in figures. ``keys`` counts each key that ever existed."""

    folder: str
    records: int
    deletes: int
    keys: int
    bytes: int
    segments: int
    segment_bytes: int  # segment.bytes by which the segments were rolled


class DemoTopic(Protocol):
    """A topic whose last writes are known independently of compaction."""

    name: TopicPartition
    write_stage: str  # the name of ``write`` in the report's times
    compare_stage: str  # the name of the comparison with ``live_keys``
    sql: str  # a query of view ``topic`` whose column ``of`` counts the live keys
    settings: Mapping[str, object]  # for compaction and verification; set by ``write``

    def write(self, root: str, progress: Progress) -> WrittenTopic:
        """Write the topic below the log root ``root``."""

    def live_keys(self) -> Mapping[bytes, bytes]:
        """The last value of each key that is not deleted."""
