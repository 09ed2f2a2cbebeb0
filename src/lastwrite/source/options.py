"""The options of the source.

Names, defaults and errors are those of Spark's Kafka source. The path is an additional option. A
job moves to this source by changing its format and adding a path.

Names are case-insensitive; Spark passes them in lower case. The valid names are those in the table
below, ``storage.*``, and options of the Kafka client (``kafka.*``). Among the client's options only
``kafka.isolation.level`` has an effect. Any other name is an error.

Source: Spark 4.1 ``KafkaSourceProvider``; docs/guide/spark-source.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lastwrite.commands.rows import is_compacted
from lastwrite.commands.systems import AUTOMQ
from lastwrite.config.stores import STORE_NAMES, is_of_stores
from lastwrite.decoding.options import SPARK_NAMES, DecodingConfig, with_option_names
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.look.read import Isolation, isolation_of
from lastwrite.model.log import TopicPartition
from lastwrite.source.kafka_options import reject_as_kafka_source

EARLIEST, LATEST = -2, -1
_WITHOUT_EFFECT = (
    "kafka.",
    "groupidprefix",
    "kafkaconsumer.",
    "fetchoffset.",
    "kafkaadminclient",
)
_STRATEGIES = ("subscribe", "subscribepattern", "assign")
_SHOWN = {
    "path": "path",
    "paths": "paths",
    "system": "system",
    "metadata": "metadata",
    "subscribe": "subscribe",
    "subscribepattern": "subscribePattern",
    "assign": "assign",
    "startingoffsets": "startingOffsets",
    "endingoffsets": "endingOffsets",
    "startingtimestamp": "startingTimestamp",
    "endingtimestamp": "endingTimestamp",
    "startingoffsetsbytimestamp": "startingOffsetsByTimestamp",
    "endingoffsetsbytimestamp": "endingOffsetsByTimestamp",
    "startingoffsetsbytimestampstrategy": "startingOffsetsByTimestampStrategy",
    "failondataloss": "failOnDataLoss",
    "minpartitions": "minPartitions",
    "maxrecordsperpartition": "maxRecordsPerPartition",
    "maxoffsetspertrigger": "maxOffsetsPerTrigger",
    "minoffsetspertrigger": "minOffsetsPerTrigger",
    "maxtriggerdelay": "maxTriggerDelay",
    "includeheaders": "includeHeaders",
    "columns": "columns",
    "view": "view",
    "pushdown": "pushdown",
    "cleanup.policy": "cleanup.policy",
    **{shown.lower(): shown for shown in SPARK_NAMES.values()},
}

_SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}

Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or the end of a range: an offset or time for all partitions, or one for each."""

    everywhere: int | None = None
    each: Offsets = field(default_factory=dict)
    is_time: bool = False  # whether the numbers are times in ms instead of offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The checked options of a read query."""

    paths: tuple[str, ...]
    metadata: str | None = None  # path of AutoMQ's metadata log; None for other systems
    topics: tuple[str, ...] = ()  # names of the topics to read
    pattern: re.Pattern[str] | None = None
    assigned: frozenset[TopicPartition] = frozenset()
    start: Bound = Bound(EARLIEST)
    end: Bound = Bound(LATEST)
    is_latest_without_match: bool = False
    fails_on_data_loss: bool = True
    min_partitions: int = 0
    max_records: int = 0  # maximum number of records of a task; 0 means no limit
    max_offsets: int = 0  # maximum number of offsets of a micro-batch; 0: no limit
    min_offsets: int = 0  # number of unread offsets at which a micro-batch starts
    max_delay_s: float = 900.0  # a micro-batch with fewer offsets starts after this time
    has_headers: bool = False
    columns: tuple[str, ...] | None = None
    isolation: Isolation = Isolation.UNCOMMITTED
    is_compacted: bool = False
    takes_filters: bool = False
    stores: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)  # settings of the topics
    decoding: DecodingConfig = DecodingConfig()

    def wants(self, name: TopicPartition) -> bool:
        """Whether the query reads this partition."""
        if self.assigned:
            return name in self.assigned
        if self.pattern is not None:
            return self.pattern.search(name.topic) is not None
        return not self.topics or name.topic in self.topics


def parse(given: Mapping[str, str], *, is_stream: bool | None = False) -> SourceOptions:
    """Parse and check the options of a query. ``is_stream`` is None if that is not known yet.

    Raises:
        InvalidConfig: an option is unknown or malformed, or excludes another one.
    """
    options = {name.lower(): value for name, value in given.items()}
    stores = {name: value for name, value in given.items() if is_of_stores(name.lower())}
    for name in options:
        if name not in _SHOWN and not name.startswith(_WITHOUT_EFFECT) and not is_of_stores(name):
            raise InvalidConfig(
                f"unknown option {name}",
                remedy=f"give one of: {', '.join(_SHOWN.values())}, kafka.*",
            )
    reject_as_kafka_source(options, is_stream=is_stream is True)
    if "path" in options and "paths" in options or not {"path", "paths"} & options.keys():
        raise InvalidConfig(
            "exactly one of path and paths must be given",
            remedy='set the path, as in .load("/data/kafka")',
        )
    chosen = [name for name in _STRATEGIES if name in options]
    if len(chosen) > 1:
        raise InvalidConfig(
            f"{' and '.join(_SHOWN[name] for name in chosen)} exclude each other",
            remedy="give one of them",
        )
    compacted = _is_compacted(options, is_stream is True)
    start = _bound(options, "starting", LATEST if is_stream else EARLIEST, is_stream is False)
    end = _bound(options, "ending", LATEST, True)
    _check_order(start, end)
    return SourceOptions(
        paths=_paths(options),
        metadata=_metadata(options),
        topics=tuple(
            topic for each in options.get("subscribe", "").split(",") if (topic := each.strip())
        ),
        pattern=_pattern(options.get("subscribepattern")),
        assigned=frozenset(
            TopicPartition(topic, number)
            for topic, numbers in _json(options, "assign", list).items()
            for number in numbers
        ),
        start=start,
        end=end,
        is_latest_without_match=_strategy(options),
        fails_on_data_loss=_flag(options, "failondataloss", True),
        min_partitions=_count(options, "minpartitions"),
        max_records=_count(options, "maxrecordsperpartition"),
        max_offsets=_count(options, "maxoffsetspertrigger"),
        min_offsets=_count(options, "minoffsetspertrigger"),
        max_delay_s=_seconds(options, "maxtriggerdelay", 900.0),
        has_headers=_flag(options, "includeheaders", False),
        columns=tuple(each.strip() for each in options["columns"].split(","))
        if "columns" in options
        else None,
        isolation=isolation_of(options.get("kafka.isolation.level")),
        is_compacted=compacted,
        takes_filters=_takes_filters(options, is_stream is True),
        stores=as_declared(stores),
        config={name: options[name] for name in ("cleanup.policy",) if name in options},
        decoding=_decoding(options),
    )


def _check_order(start: Bound, end: Bound) -> None:
    """Check that a range does not begin above its end, as Spark's Kafka source does."""
    if start.is_time != end.is_time:
        return
    what = "timestamp" if start.is_time else "offset"
    names = {*start.each, *end.each}
    pairs: list[tuple[TopicPartition | None, int | None, int | None]] = [
        (name, start.each.get(name, start.everywhere), end.each.get(name, end.everywhere))
        for name in sorted(names)
    ]
    pairs.append((None, start.everywhere, end.everywhere))
    for name, first, last in pairs:
        if first is not None and last is not None and first > last >= 0:
            where = "" if name is None else f" for topic {name.topic} partition {name.partition}"
            raise InvalidConfig(
                f"Specified start {what} {first} is greater than end {what} {last}{where}",
                remedy=f"set the end {what} to {first} or more",
            )


def _decoding(options: Mapping[str, str]) -> DecodingConfig:
    names = {name: shown.lower() for name, shown in SPARK_NAMES.items()}
    try:
        return DecodingConfig.of(
            {name: options[shown] for name, shown in names.items() if shown in options}
        )
    except InvalidConfig as error:
        raise with_option_names(error, SPARK_NAMES) from None


def _is_compacted(options: Mapping[str, str], is_stream: bool) -> bool:
    found = is_compacted(options.get("view", "log"))
    if found and is_stream:
        raise InvalidConfig(
            "the view compacted cannot be read as a stream", remedy="read it with a batch query"
        )
    if found and any(name.startswith(("starting", "ending")) for name in options):
        raise InvalidConfig(
            "the view compacted reads entire topics, so a start or an end cannot be given",
            remedy="leave out the options startingOffsets, endingOffsets and their variants",
        )
    return found


def _takes_filters(options: Mapping[str, str], is_stream: bool) -> bool:
    found = _flag(options, "pushdown", False)
    if found and is_stream:
        raise InvalidConfig(
            "Spark pushes no filters into streams", remedy="leave out the option pushdown"
        )
    return found


def _paths(options: Mapping[str, str]) -> tuple[str, ...]:
    if "path" in options:
        return (options["path"],)
    try:
        paths = json.loads(options["paths"])
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) for p in paths):
        raise InvalidConfig(
            "paths is not a JSON list", remedy='give JSON such as ["/data/one", "/data/two"]'
        )
    return tuple(paths)


def _metadata(options: Mapping[str, str]) -> str | None:
    """The path of the metadata log of AutoMQ's cluster. None for any other system."""
    system, metadata = options.get("system"), options.get("metadata")
    if (system is None) != (metadata is None) or system not in (None, AUTOMQ):
        raise InvalidConfig(
            f"system is {system!r} and metadata is {metadata!r}",
            remedy=f"for a bucket of AutoMQ give both: system={AUTOMQ}, and as metadata the path "
            "of the controllers' folder __cluster_metadata-0; otherwise leave out both",
        )
    return metadata


def _pattern(text: str | None) -> re.Pattern[str] | None:
    try:
        return None if text is None else re.compile(text)
    except re.error as error:
        raise InvalidConfig(f"subscribePattern is not a regular expression: {error}") from error


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidConfig(f"{_SHOWN[name]} is {options[name]!r}", remedy="give true or false")
    return text == "true"


def _count(options: Mapping[str, str], name: str) -> int:
    text = options.get(name, "0")
    if not text.isdigit() or (name in options and int(text) < 1):
        raise InvalidConfig(f"{_SHOWN[name]} is {text!r}", remedy="give a number above 0")
    return int(text)


def _seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A time in Spark's notation: ``15m``, ``500ms``. A number without a unit is milliseconds."""
    if name not in options:
        return default
    found = re.fullmatch(r"\s*(\d+)\s*([a-z]*)\s*", options[name].lower())
    unit = None if found is None else _SECONDS.get(found[2] or "ms")
    if found is None or unit is None:
        raise InvalidConfig(
            f"{_SHOWN[name]} is {options[name]!r}",
            remedy="give a duration such as 15m, 30s or 500ms",
        )
    return int(found[1]) * unit


def _strategy(options: Mapping[str, str]) -> bool:
    text = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if text not in ("error", "latest"):
        raise InvalidConfig(
            f"startingOffsetsByTimestampStrategy is {text!r}", remedy="give error or latest"
        )
    return text == "latest"


def _json(options: Mapping[str, str], name: str, inner: type) -> dict[str, Any]:
    """The decoded value of a JSON option, ``{"topic": …}``. Empty if the option is not given."""
    if name not in options:
        return {}
    try:
        found = json.loads(options[name])
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, inner) for each in found.values()):
        shown = '{"topic":[0,1]}' if inner is list else '{"topic":{"0":23,"1":-2}}'
        raise InvalidConfig(
            f"{_SHOWN[name]} is {options[name]!r}", remedy=f"give JSON such as {shown}"
        )
    return found


def _bound(options: Mapping[str, str], side: str, default: int, is_batch: bool) -> Bound:
    """The start or end of the range, from the options that can set it.

    As in Spark's Kafka source, one timestamp for all partitions takes precedence over timestamps by
    partition, and these take precedence over offsets.
    """
    of_time = f"{side}timestamp"
    if of_time in options:
        return Bound(_count({of_time: options[of_time]}, of_time), is_time=True)
    of_times = f"{side}offsetsbytimestamp"
    if of_times in options:
        return Bound(each=_by_partition(options, of_times), is_time=True)
    of_offsets = f"{side}offsets"
    refused = None
    if is_batch:
        refused = LATEST if side == "starting" else EARLIEST
    text = options.get(of_offsets, "").strip()
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words or not text:
        found = words.get(text.lower(), default)
        _check(found != refused, of_offsets, text)
        return Bound(found)
    each = _by_partition(options, of_offsets)
    _check(
        all(offset >= EARLIEST and offset != refused for offset in each.values()), of_offsets, text
    )
    return Bound(each=each)


def _check(is_right: bool, name: str, text: str) -> None:
    if not is_right:
        raise InvalidConfig(
            f"{_SHOWN[name]} is {text!r} in a batch query",
            remedy="give other offsets: startingOffsets cannot be latest (-1), and endingOffsets "
            "cannot be earliest (-2)",
        )


def _by_partition(options: Mapping[str, str], name: str) -> dict[TopicPartition, int]:
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, numbers in _json(options, name, dict).items()
            for number, offset in numbers.items()
        }
    except (TypeError, ValueError) as error:
        raise InvalidConfig(f"{_SHOWN[name]} is {options[name]!r}: {error}") from error


def as_declared(stores: Mapping[str, str]) -> dict[str, str]:
    """Restore the declared case of ``storage.*`` names, which Spark passes in lower case."""
    declared = {name.lower(): name for name in STORE_NAMES}
    return {declared.get(name.lower(), name): value for name, value in stores.items()}
