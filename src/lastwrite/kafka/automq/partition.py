"""A partition in an AutoMQ bucket: its segments, and the bytes of objects that contain them."""

from __future__ import annotations

from dataclasses import dataclass

from lastwrite.kafka.format.text import LeaderEpoch
from lastwrite.model.log import AbortedTransaction, Problem, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """Consecutive stream records of one stream, stored without gaps in one object.

    A *stream* offset counts in the stream, a Kafka offset in the partition. Only the records
    between ``first`` and ``stop`` belong to the segment.
    """

    key: str  # the object's key in the bucket; empty for the file of write-ahead objects
    # where the first data block begins; in a write-ahead object, where the first stream record does
    position: int
    size_bytes: int  # with all headers
    stream_id: int
    stream_offset: int  # stream offset of the first record
    stream_end: int  # end of the last record's stream offsets, exclusive
    first: int  # stream offset; records that end here or before are skipped
    stop: int  # stream offset; records that begin here or later are skipped
    start_offset: int  # Kafka offset
    end_offset: int  # Kafka offset; exclusive. A cleaned batch may reach beyond it.
    records: int  # stream records
    is_one_block: bool  # whether it is certain that there is only one block header

    @property
    def is_whole(self) -> bool:
        """Whether all records belong to the segment."""
        return self.first <= self.stream_offset and self.stream_end <= self.stop

    @property
    def is_in_wal(self) -> bool:
        """Whether the run is in a write-ahead object."""
        return not self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomqSegment:
    """A segment of the partition's log. The payloads of the runs, in order, are the segment's file.

    ``end_offset`` is the end of the segment's slice. The next segment may begin after that offset.
    """

    base_offset: int
    end_offset: int
    stream_id: int
    runs: tuple[StoredRun, ...]
    is_cleaned: bool
    is_open: bool  # whether this is the active segment
    first_batch_timestamp_ms: int | None
    largest_timestamp_ms: int  # -1 if unknown
    modified_ms: int

    @property
    def stored_bytes(self) -> int:
        """The size of the stored stream records in bytes.

        The segment's file is a little smaller.
        """
        return sum(run.size_bytes for run in self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutomqPartition:
    """A partition's log as its META stream describes it.

    ``problems`` has the damage that was found without reading the log's data.
    """

    name: TopicPartition
    topic_id: str
    log_start: int
    end_offset: int
    committed_end: int  # end of the log in data objects, without write-ahead objects
    segments: tuple[AutomqSegment, ...]
    leader_epochs: tuple[LeaderEpoch, ...] = ()
    # offset and content of each of Kafka's ``.snapshot`` files
    producer_snapshots: tuple[tuple[int, bytes], ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    cleaner_checkpoint: int | None = None
    wal_records: int = 0  # Kafka's records that only write-ahead objects contain
    wal_end: int | None = None  # position in the write-ahead log of the last record that was used
    last_object: int | None = None  # id of the last object of the log's streams
    problems: tuple[Problem, ...] = ()
