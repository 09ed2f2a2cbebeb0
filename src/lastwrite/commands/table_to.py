"""``table_to``: creates or updates an Iceberg, Delta or Parquet table of a topic's last writes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import structs

from lastwrite.archive.gaps import gaps_in
from lastwrite.commands.systems import system_to_read
from lastwrite.commands.table import MEMORY, partitions_of_topic, steady
from lastwrite.config.stores import store_settings
from lastwrite.decoding.options import ASIDE, DecodingConfig, DecodingOptions
from lastwrite.errors import InvalidConfig, LogError, NotALog, TableConflict, missing_extra
from lastwrite.model.attempts import Attempts
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.reports.table_round import TableRound
from lastwrite.rows.requirements import require_arrow
from lastwrite.rows.system import rows_of
from lastwrite.spark.memory import parse_bytes
from lastwrite.storage.objects import address
from lastwrite.storage.objects.address import is_address
from lastwrite.tables.layout import format_there, is_table_name

if TYPE_CHECKING:
    from lastwrite.tables.format import TableFormat

# The formats by name: module, class, the packages that are needed, and their extra.
FORMATS = {
    "iceberg": (
        "lastwrite.tables.iceberg",
        "IcebergFormat",
        ("pyarrow", "pyroaring", "pyiceberg"),
        "iceberg",
    ),
    "delta": (
        "lastwrite.tables.delta",
        "DeltaTable",
        ("pyarrow", "pyroaring", "deltalake"),
        "delta",
    ),
    "parquet": ("lastwrite.tables.parquet", "ParquetTable", ("pyarrow",), "frames"),
}

_LIBRARIES_BYTES = 320 << 20  # memory of Arrow, Numba and the format's library, in bytes


def _memory_left(memory_bytes: int) -> int:
    """The part of ``memory_bytes`` that remains for rows."""
    return max(memory_bytes // 3, memory_bytes - _LIBRARIES_BYTES)


def table_to(
    path: str,
    topic: str | None = None,
    *,
    to: str,
    format: str | None = None,
    catalog: str | None = None,
    buckets: int | None = None,
    headers: bool | None = None,
    vectors: bool = False,
    anew: bool = False,
    memory: str | int = MEMORY,
    system: str | None = None,
    metadata: str | None = None,
    config: Mapping[str, object] | None = None,
    now_ms: int | None = None,
    progress: Progress | None = None,
    **decoding: Unpack[DecodingOptions],
) -> TableRound:
    """Create the table of a topic's last writes at ``to``, or update it.

    An update applies the records written since the last run in one commit. The commit stores the
    offsets up to which the table is complete.

    The columns are ``key``, ``value``, ``_log_partition``, ``_offset`` and ``_timestamp``. There is
    a row for each key whose last write is not a delete, as in ``latest``.

    Args:
        path: as for ``table``.
        topic: the name of the topic; not needed if there is only one.
        to: a folder or an address in a bucket; with ``catalog`` also the name of a table in it.
        format: ``iceberg``, ``delta`` or ``parquet``. None means the format of the table at
            ``to``, or ``iceberg`` for a new one.
        catalog: Iceberg: the URI of a catalog, or a name in pyiceberg's settings. None means
            SQLite in the folder.
        buckets: number of buckets of the table, a power of two. None means 128 MiB each.
        headers: whether there is a column ``_headers``. None means: as in the existing table, or
            no.
        vectors: delete rows with deletion vectors from now on (Iceberg format version 3, Delta). A
            table with vectors keeps them, and fewer engines can read it.
        anew: write the whole table again, in any state.
        memory: memory limit, in bytes or as ``512m``. More data is in scratch files.
        system: ``kafka``, ``rocketmq``, ``pulsar`` or ``automq``. None means: detect it from the
            files.
        metadata: AutoMQ: the path of the cluster's metadata log, ``__cluster_metadata-0``.
        config: settings ``storage.*`` of a bucket. Kafka: ``cleanup.policy=compact`` states that
            the topic was compacted earlier, so that offsets between two segments may be missing.
        now_ms: the current time, which decides what is old enough to delete. None means the clock.
        progress: receives stages and bytes done. An exception from it ends the run and leaves the
            table unchanged.
        decoding: formats and schemas of keys and values, see ``DecodingConfig``. Options that are
            not given stay as in the table's last run. With ``on_bad="aside"``, a key whose last
            value is bad has no row.

    Raises:
        NotALog, InvalidConfig, CorruptLog, UnsupportedFormat, OutOfMemoryBudget: as for ``table``;
            or ``to`` contains another table.
        CommitConflict: changes are missing, because the log begins above the table's offsets or
            is another topic of the same name. Use ``anew``.
        TableConflict: other writers changed the table first, ``ATTEMPTS`` times.
        BadValue: a key or value is bad.
        EnvironmentUnfit: a package is missing.
    """
    path = str(path)
    if buckets is not None and (buckets < 1 or buckets & (buckets - 1)):
        raise InvalidConfig(f"the number of buckets is {buckets}", remedy="give a power of two")
    address.use(store_settings(config))
    source = rows_of(system_to_read(path, system, metadata))
    given = {name: value for name, value in decoding.items() if value is not None}
    check_format(str(to), format, catalog, vectors)
    from lastwrite.tables.rows import Rows
    from lastwrite.tables.update import TableRequest, sync_table
    from lastwrite.tables.upkeep import tidy

    def listed() -> list[PartitionLog]:
        logs = partitions_of_topic(source, path, topic, config)
        if not logs:
            raise NotALog(
                f"the path has no topic {topic}",
                path=path,
                remedy="run lastwrite inspect, which lists the topics",
            )
        return logs

    def made(logs: Sequence[PartitionLog]) -> TableRound:
        name = logs[0].name.topic
        table = format_at(str(to), format, name, catalog, vectors)
        head = table.head(anew=anew)
        was = head.state.settings if head is not None and head.state is not None else {}
        wanted, settings = settings_after(was, given, headers)
        rows = Rows(wanted, name, settings["headers"] == "true")
        wish = TableRequest(rows, settings, _memory_left(parse_bytes(memory)), buckets, anew)
        report = sync_table(table, head, source, logs, wish, progress or NoProgress())
        report = structs.replace(report, notes=gaps_in(logs))
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        try:
            tidied = tidy(table, now)
        except LogError as error:  # only the clean-up failed; the next run repeats it
            return structs.replace(report, untidy=str(error))
        return structs.replace(report, tidied=tidied)

    attempts = Attempts()
    report = attempts.run(lambda: steady(source, listed, made, (path, topic)), TableConflict)
    return structs.replace(report, attempts=attempts.count)


def settings_after(
    was: Mapping[str, str], given: Mapping[str, Any], headers: bool | None
) -> tuple[DecodingConfig, dict[str, str]]:
    """The decoding options of a run, and the settings that the run's commit stores.

    An option that is not in ``given`` is taken from ``was``, the settings of the last commit.

    Raises:
        InvalidConfig: as ``DecodingConfig.of``.
    """
    kept = {name: was[name] for name in DecodingOptions.__annotations__ if name in was}
    for which in ("key", "value"):
        name = f"{which}_format"
        if given.get(name) not in (None, kept.get(name)):
            kept.pop(f"{which}_schema", None)
            kept.pop(f"{which}_message", None)
    if given.get("on_bad") not in (None, ASIDE):
        kept.pop("bad_to", None)
    config = DecodingConfig.of({**kept, **given})
    found = {name: str(getattr(config, name)) for name in DecodingOptions.__annotations__}
    for name in ("key_schema", "value_schema", "bad_to", "schema_registry"):
        if found[name] and "://" not in found[name]:
            found[name] = os.path.abspath(found[name])
    usual = DecodingConfig()
    settings = {name: value for name, value in found.items() if value != getattr(usual, name)}
    for name in ("key_format", "value_format"):
        settings[name] = found[name]
    has_headers = was.get("headers", "false") if headers is None else str(headers).lower()
    return config, settings | {"headers": has_headers}


def check_format(to: str, format: str | None, catalog: str | None, vectors: bool = False) -> None:
    """Check a format's name and options without reading the table. None means any format.

    Raises:
        InvalidConfig: there is no such format; or the format does not support catalogs or deletion
            vectors, or needs a catalog.
        EnvironmentUnfit: the package of the format is missing.
    """
    if format is None:
        require_arrow()
        return
    if format not in FORMATS:
        raise InvalidConfig(
            f"unknown table format {format!r}", remedy=f"give one of: {', '.join(FORMATS)}"
        )
    _, _, packages, extra = FORMATS[format]
    for each in packages:
        if find_spec(each) is None:
            raise missing_extra(f"a table of format {format}", each, extra)
    if catalog is not None and format != "iceberg":
        raise InvalidConfig(
            f"--catalog is only for Iceberg tables, but the table's format is {format}",
            remedy="leave out --catalog",
        )
    if catalog is None and format == "iceberg" and is_address(to):
        raise InvalidConfig(
            "an Iceberg table in a bucket needs a catalog",
            path=to,
            remedy="give a catalog with --catalog, for example sqlite:////var/lib/catalog.db",
        )
    if vectors and format == "parquet":
        raise InvalidConfig(
            "tables of format parquet do not support deletion vectors", remedy="leave out --vectors"
        )


def format_at(
    to: str, format: str | None, topic: str, catalog: str | None, vectors: bool = False
) -> TableFormat:
    """The table at ``to``, opened in its format.

    A new table gets ``format``, or Iceberg by default.

    ``vectors`` is as for ``table_to``.

    Raises:
        InvalidConfig: the table has another format; or as ``check_format``.
        EnvironmentUnfit: as ``check_format``.
    """
    if catalog is None or not is_table_name(to):
        format = format_there(to, format)
    format = format or "iceberg"
    check_format(to, format, catalog, vectors)
    module, name, *_ = FORMATS[format]
    of: Callable[..., TableFormat] = getattr(import_module(module), name)
    if format == "iceberg":
        return of(to, topic, catalog, vectors)
    return of(to, vectors) if format == "delta" else of(to)
