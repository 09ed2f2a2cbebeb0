"""A plain compactor: the files that a round must leave if nothing crashes.

The model decides which records remain. Changed batches are encoded again, all others are copied,
and each group of segments becomes one file with its indexes. Kafka's own cleaner leaves the same
bytes, which ``tests/conformance`` checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lastwrite.engine.rules.ranges import Range, cleanable_range
from lastwrite.kafka.rules.grouping import group_segments
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.model.log import PartitionLog, Segment, TopicPartition
from tests.support.kafka.logs import (
    NAME,
    bases,
    encode_model,
    headers_of,
    read_checkpoint,
    read_files,
    read_segments,
    write_checkpoint,
    write_segment,
)
from tests.support.kafka.model import NOT_HELD, Held, ModelBatch, clean_segments
from tests.support.kafka.producers import active, first_unstable, producers_of


def listed(root: Path) -> PartitionLog:
    """The log under ``root``, from its files and checkpoints."""
    folder = root / NAME
    segments = []
    end = 0
    for base in bases(folder):
        files = read_files(folder, base)
        headers = headers_of(folder / f"{base:020d}.log")
        largest = (
            int.from_bytes(files.time_index[-12:-4], "big", signed=True) if files.time_index else -1
        )
        end = headers[-1][1].next_offset if headers else base
        segments.append(
            Segment(
                base_offset=base,
                path=str(folder / f"{base:020d}.log"),
                size_bytes=len(files.log),
                mtime_ns=files.mtime_ms * 1_000_000,
                largest_timestamp_ms=largest if largest >= 0 else files.mtime_ms,
                first_batch_timestamp_ms=headers[0][1].max_timestamp_ms if headers else None,
                index_bytes=len(files.index),
                time_index_bytes=len(files.time_index),
            )
        )
    high_watermark = min(read_checkpoint(root, "replication-offset-checkpoint").get(NAME, end), end)
    log_start = max(
        read_checkpoint(root, "log-start-offset-checkpoint").get(NAME, 0), segments[0].base_offset
    )
    unstable = first_unstable(read_segments(folder), high_watermark)
    return PartitionLog(
        name=TopicPartition("t", 0),
        folder=str(folder),
        segments=tuple(segments),
        log_start=log_start,
        end_offset=end,
        high_watermark=high_watermark,
        checkpoint=read_checkpoint(root, "cleaner-offset-checkpoint").get(NAME),
        first_unstable_offset=None if unstable is None else max(unstable, log_start),
    )


def compact(
    root: Path,
    config: Mapping[str, object],
    now_ms: int,
    include_active: bool = False,
    drop_expired_deletes: bool = False,
    held: Held = NOT_HELD,
) -> Range:
    """Clean the log under ``root`` in place, whatever its dirty ratio. Returns the round's range.

    With ``drop_expired_deletes``, compares all keys, and also runs if nothing is dirty.
    """
    topic = KafkaTopicConfig.from_names({**config, "min.cleanable.dirty.ratio": "0"})
    log = listed(root)
    folder = root / NAME
    found = cleanable_range(log, topic, now_ms, include_active)
    below = [each for each in log.segments if each.base_offset < found.first_uncleanable]
    rests = found.first_dirty <= found.first_uncleanable and any(each.size_bytes for each in below)
    if not found.eligible and not (drop_expired_deletes and rests):
        return found
    groups = group_segments(
        log.segments, found.first_uncleanable, topic.segment_bytes, topic.segment_index_bytes
    )
    before = read_segments(folder)
    originals: dict[ModelBatch, bytes] = {}
    for segment in before:
        data = (folder / f"{segment.base_offset:020d}.log").read_bytes()
        for (position, header), batch in zip(
            headers_of(folder / f"{segment.base_offset:020d}.log"), segment.batches, strict=True
        ):
            originals[batch] = data[position : position + header.size_bytes]
    after = clean_segments(
        before,
        [[segment.base_offset for segment in group] for group in groups],
        first_dirty=0 if drop_expired_deletes else found.first_dirty,
        end=found.first_uncleanable,
        high_watermark=log.high_watermark,
        now_ms=now_ms,
        retention_ms=topic.delete_retention_ms,
        producers=active(producers_of(folder, before), now_ms),
        old_until_ms=old_until_ms(log, found.first_dirty, topic.delete_retention_ms),
        held=held,
    )
    for group, segment in zip(groups, after, strict=False):
        for source in group:
            for file in folder.glob(f"{source.base_offset:020d}.*"):
                if file.suffix in (".log", ".index", ".timeindex", ".txnindex"):
                    file.unlink()
                elif file.suffix == ".snapshot" and source is not group[0]:
                    file.unlink()
        batches = [originals.get(batch) or encode_model(batch) for batch in segment.batches]
        write_segment(
            folder,
            segment.base_offset,
            batches,
            topic.index_interval_bytes,
            group[-1].mtime_ms,
            segment.aborted,
        )
    write_checkpoint(root, "cleaner-offset-checkpoint", {NAME: found.first_uncleanable})
    return found


def old_until_ms(log: PartitionLog, first_dirty: int, retention_ms: int) -> int:
    """The last modification time at which a tombstone of an old format is expired.

    It is counted from the last clean segment's modification time.
    """
    clean = [segment.mtime_ms for segment in log.segments if segment.base_offset < first_dirty]
    return clean[-1] - retention_ms if clean else 0
