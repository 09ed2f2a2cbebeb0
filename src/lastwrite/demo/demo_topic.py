"""The interface of the demo's topics, whose last writes are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import Progress


@dataclass(frozen=True, slots=True)
class WrittenTopic:
    """The figures of a topic that was written to a log root.

    ``keys`` counts each key that ever existed.
    """

    folder: str
    records: int
    deletes: int
    keys: int
    bytes: int
    segments: int
    segment_bytes: int  # value of segment.bytes with which the segments were rolled


class DemoTopic(Protocol):
    """A topic whose last writes are known independently of compaction."""

    name: TopicPartition
    write_stage: str  # name of the stage ``write`` in the report's times
    compare_stage: str  # name of the stage that compares with ``live_keys``
    sql: str  # query of the view ``topic``; its column ``of`` is the number of live keys
    # settings for compaction and verification, set by ``write``
    settings: Mapping[str, object]

    def write(self, root: str, progress: Progress) -> WrittenTopic:
        """Write the topic below the log root ``root``."""

    def live_keys(self) -> Mapping[bytes, bytes]:
        """The last value of each key whose last write is not a delete."""
