"""Which offsets of which partitions a query reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lastwrite.errors import CommitConflict, InvalidConfig, NotALog
from lastwrite.kafka.look.read import Isolation, KafkaReading
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.source.options import EARLIEST, LATEST, Bound, SourceOptions


def chosen_logs(logs: Iterable[PartitionLog], options: SourceOptions) -> list[PartitionLog]:
    """The partitions that the query is about.

    Raises:
        NotALog: a topic or partition that was named is not there.
        InvalidConfig: none was named, and there are several topics; or one lies in two places.
    """
    found: dict[TopicPartition, PartitionLog] = {}
    for log in logs:
        if not options.wants(log.name):
            continue
        if log.name in found:
            raise InvalidConfig(
                f"{log.name} lies in {found[log.name].folder} and in {log.folder}",
                remedy="name one of the paths",
            )
        found[log.name] = log
    there = {name.topic for name in found}
    missing = [topic for topic in options.topics if topic not in there]
    missing += [str(name) for name in sorted(options.assigned) if name not in found]
    if missing:
        raise NotALog(
            f"{', '.join(missing)}: not there",
            path=options.paths[0],
            remedy="look at it by lastwrite inspect",
        )
    is_named = options.topics or options.assigned or options.pattern is not None
    if not is_named and len(there) > 1:
        raise InvalidConfig(
            f"{len(there)} topics are there",
            path=options.paths[0],
            remedy=f"give subscribe: {', '.join(sorted(there)[:20])}",
        )
    return [found[name] for name in sorted(found)]


def span_of(log: PartitionLog, options: SourceOptions) -> tuple[int, int]:
    """The offsets of ``log`` that are read, the second exclusive.

    Raises:
        InvalidConfig: the options name offsets of some partitions, and not of this one.
        CommitConflict: what is asked for is not all there any more, or not yet.
    """
    end = log.high_watermark
    if options.isolation is Isolation.COMMITTED:
        end = log.last_stable_offset
    first = _offset(log, options.start, options, log.log_start, end)
    last = _offset(log, options.end, options, log.log_start, end)
    if options.fails_on_data_loss and (first < log.log_start or last > end or first > end):
        raise CommitConflict(
            f"offsets {first} to {last} were asked for, and the log has {log.log_start} to {end}",
            path=log.folder,
            remedy="ask for what is there, or set failOnDataLoss=false",
        )
    return max(first, log.log_start), min(last, end)


def _offset(log: PartitionLog, bound: Bound, options: SourceOptions, begin: int, end: int) -> int:
    asked = bound.everywhere if bound.everywhere is not None else bound.each.get(log.name)
    if asked is None:
        raise InvalidConfig(
            f"no offset is given for {log.name}",
            remedy="where offsets or times are given by partition, give them for all",
        )
    if not bound.is_time:
        return {EARLIEST: begin, LATEST: end}.get(asked, asked)
    reading = KafkaReading(log, options.isolation, None, asked, None)
    if reading.offset >= end and bound is options.start and not options.is_latest_without_match:
        raise InvalidConfig(
            f"no record of {log.name} is of {asked} ms or later",
            remedy="set startingOffsetsByTimestampStrategy=latest to begin at the end then",
        )
    return reading.offset


def piece_bytes(spans: Sequence[PartitionLog], options: SourceOptions, usual: int) -> int:
    """Of how many bytes a task reads, so that there are as many as asked for."""
    if not options.min_partitions:
        return usual
    total = sum(log.size_bytes for log in spans)
    return max(1, min(usual, total // options.min_partitions))
