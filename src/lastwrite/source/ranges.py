"""The partitions and offsets that a query reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from lastwrite.commands.systems import AUTOMQ, KAFKA, system_of, system_of_all
from lastwrite.config.stores import store_settings
from lastwrite.engine.system import system_named
from lastwrite.errors import CommitConflict, InvalidConfig, NotALog
from lastwrite.kafka.look.read import Isolation, KafkaReading
from lastwrite.kafka.store import tiered
from lastwrite.model.log import PartitionLog, TopicPartition
from lastwrite.rows.reading import PIECE_BYTES, RowUnit, row_units
from lastwrite.rows.system import RowSystem, rows_of
from lastwrite.source.options import EARLIEST, LATEST, Bound, SourceOptions
from lastwrite.storage.objects import address


def listed(options: SourceOptions) -> list[PartitionLog]:
    """List the partitions that the query reads.

    First applies the options for object stores in this process.

    Raises:
        as ``logs_of`` and ``chosen_logs``.
    """
    use_stores(options)
    system = system_at(options.paths)
    # With several paths, a topic may be at only some of them.
    topics = list(options.topics) if options.topics and len(options.paths) == 1 else None
    logs = (
        log
        for path in options.paths
        for log in system.logs_of(
            path,
            topics,
            wants=lambda name: _is_requested(system, name, options),
            is_compacted=options.is_compacted,
            config=options.config,
        )
    )
    return chosen_logs(system, logs, options)


def use_stores(options: SourceOptions) -> None:
    """Apply the query's options for object stores in this process, and locate AutoMQ's partitions.

    With AutoMQ, the partitions of the query's buckets are located again at each call.
    """
    address.use(store_settings(options.stores))
    for path in options.paths if options.metadata is not None else ():
        system_of(path, AUTOMQ, options.metadata)


def system_at(paths: tuple[str, ...]) -> RowSystem:
    """The system (Kafka, RocketMQ or Pulsar) of the logs at all these paths.

    Raises:
        InvalidConfig: the logs are of several systems.
    """
    is_located = all(tiered.is_located(address.real_path(path)) for path in paths)
    return rows_of(KAFKA) if is_located else _detected(paths)


@lru_cache(maxsize=16)
def _detected(paths: tuple[str, ...]) -> RowSystem:
    return rows_of(system_of_all(None, paths).name)


def _called(system: RowSystem, name: TopicPartition) -> list[TopicPartition]:
    """The names of a partition, one for each name of its topic."""
    return [
        TopicPartition(each, name.partition) for each in system_named(system.name).topic_names(name)
    ]


def _is_requested(system: RowSystem, name: TopicPartition, options: SourceOptions) -> bool:
    return any(options.wants(each) for each in _called(system, name))


def chosen_logs(
    system: RowSystem, logs: Iterable[PartitionLog], options: SourceOptions
) -> list[PartitionLog]:
    """The partitions that the query reads.

    Raises:
        NotALog: a named topic or partition is missing.
        InvalidConfig: no topic is named and there are several, or a partition is at two paths.
    """
    found: dict[TopicPartition, PartitionLog] = {}
    for log in logs:
        if not _is_requested(system, log.name, options):
            continue
        if log.name in found:
            raise InvalidConfig(
                f"partition {log.name} is in {found[log.name].folder} and in {log.folder}",
                remedy="give only one of the two paths",
            )
        found[log.name] = log
    there = {name.topic for name in found}
    named = {each for name in found for each in _called(system, name)}
    missing = [topic for topic in options.topics if topic not in {each.topic for each in named}]
    missing += [str(name) for name in sorted(options.assigned) if name not in named]
    if missing:
        raise NotALog(
            f"the path does not contain {', '.join(missing)}",
            path=options.paths[0],
            remedy="list the topics with lastwrite inspect, and correct the option",
        )
    is_named = options.topics or options.assigned or options.pattern is not None
    if not is_named and len(there) > 1:
        raise InvalidConfig(
            f"the path contains {len(there)} topics",
            path=options.paths[0],
            remedy=f"select topics with the option subscribe: {', '.join(sorted(there)[:20])}",
        )
    return [found[name] for name in sorted(found)]


def span_of(log: PartitionLog, options: SourceOptions) -> tuple[int, int]:
    """The offsets of ``log`` to read; the end is exclusive.

    Raises:
        InvalidConfig: the options give offsets for some partitions, but not for this one.
        CommitConflict: some of the requested offsets are not in the log any more, or not yet.
    """
    end = end_of(log, options)
    first = _offset(log, options.start, options, log.log_start, end)
    last = _offset(log, options.end, options, log.log_start, end)
    if options.fails_on_data_loss and (first < log.log_start or last > end or first > end):
        raise CommitConflict(
            f"offsets {first} to {last} were requested, but the log contains offsets "
            f"{log.log_start} to {end}",
            path=log.folder,
            remedy="request offsets that the log contains, or set failOnDataLoss=false to read "
            "the remaining records",
        )
    return max(first, log.log_start), min(last, end)


def end_of(log: PartitionLog, options: SourceOptions) -> int:
    """The offset after the last record that a consumer of the query's isolation level receives."""
    system = system_at(options.paths)
    return system.end_of(log, _is_committed(system, options))


def _is_committed(system: RowSystem, options: SourceOptions) -> bool:
    return options.isolation is Isolation.COMMITTED or system.name != KAFKA


def start_of(log: PartitionLog, options: SourceOptions) -> int:
    """The offset at which the query begins. It may be outside the log.

    Raises:
        InvalidConfig: the options give offsets for some partitions, but not for this one.
    """
    return _offset(log, options.start, options, log.log_start, end_of(log, options))


def _offset(log: PartitionLog, bound: Bound, options: SourceOptions, begin: int, end: int) -> int:
    asked = bound.everywhere if bound.everywhere is not None else bound.each.get(log.name)
    if asked is None:
        raise InvalidConfig(
            f"no offset is given for {log.name}",
            remedy="if you give offsets or times by partition, give them for all partitions",
        )
    if not bound.is_time:
        return {EARLIEST: begin, LATEST: end}.get(asked, asked)
    if system_at(options.paths).name != KAFKA:
        raise InvalidConfig(
            "ranges by time are only supported for Kafka",
            remedy="give offsets, or filter by timestamp",
        )
    reading = KafkaReading(log, options.isolation, None, asked, None)
    if reading.offset >= end and bound is options.start and not options.is_latest_without_match:
        raise InvalidConfig(
            f"no record of {log.name} has timestamp {asked} or later",
            remedy="set startingOffsetsByTimestampStrategy=latest to start at the log's end in "
            "this case",
        )
    return reading.offset


def units_of(
    spans: Sequence[tuple[PartitionLog, int, int]], columns: Sequence[str], options: SourceOptions
) -> list[RowUnit]:
    """Divide ranges of offsets into units of work.

    ``options.min_partitions`` is the approximate minimum number of units. The ends of the ranges
    are exclusive.
    """
    size = PIECE_BYTES
    if options.min_partitions:
        total = sum(
            log.size_bytes * (end - first) // max(log.end_offset - log.log_start, 1)
            for log, first, end in spans
        )
        size = max(1, min(size, total // options.min_partitions))
    units: list[RowUnit] = []
    system = system_at(options.paths)
    for log, first, end in spans:
        most = options.max_records if system.is_offset_unique else 0
        step = most or max(end - first, 1)
        for begin in range(first, end, step):
            units += row_units(
                system,
                log,
                columns,
                is_committed=_is_committed(system, options),
                first=begin,
                end=min(begin + step, end),
                piece_bytes=size,
            )
    return units
