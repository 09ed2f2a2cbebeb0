"""``table_to``: a topic's last writes as a table of Iceberg, Delta or Parquet, made or brought
up to date.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Unpack

from msgspec import structs

from lastwrite.commands.systems import system_of
from lastwrite.commands.table import MEMORY, steady, whole_topic
from lastwrite.config.stores import store_settings
from lastwrite.decoding.options import DecodingConfig, DecodingOptions
from lastwrite.errors import EnvironmentUnfit, InvalidConfig, LogError, NotALog
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.reports.table_round import TableRound
from lastwrite.rows.system import rows_of
from lastwrite.spark.memory import parse_bytes
from lastwrite.storage.objects import address

if TYPE_CHECKING:
    from lastwrite.tables.format import TableFormat

# of each format: its module, its class, and the package that it needs
FORMATS = {
    "iceberg": ("lastwrite.tables.iceberg", "IcebergFormat", "pyiceberg"),
    "delta": ("lastwrite.tables.delta", "DeltaTable", "deltalake"),
    "parquet": ("lastwrite.tables.parquet", "ParquetTable", "pyarrow"),
}

_LIBRARIES_BYTES = 320 << 20  # Arrow, Numba, a format's library, and what they keep


def _left(memory_bytes: int) -> int:
    """What rows may take of it."""
    return max(memory_bytes // 3, memory_bytes - _LIBRARIES_BYTES)


def table_to(
    path: str,
    topic: str | None = None,
    *,
    to: str,
    format: str = "iceberg",
    catalog: str | None = None,
    buckets: int | None = None,
    headers: bool = False,
    vectors: bool = False,
    anew: bool = False,
    memory: str | int = MEMORY,
    system: str | None = None,
    config: Mapping[str, object] | None = None,
    now_ms: int | None = None,
    progress: Progress | None = None,
    **decoding: Unpack[DecodingOptions],
) -> TableRound:
    """Make the table of a topic's last writes at ``to``, or bring it up to date: by what was
    written since, in one commit, which says up to which offsets the table is true.

    Its columns: ``key``, ``value``, ``_log_partition``, ``_offset``, ``_timestamp``. A row is there
    for each key whose last write is no delete, as ``latest`` has them.

    Args:
        path: as of ``table``.
        topic: its name; not needed where one topic lies there.
        to: a folder or an address in a bucket; with ``catalog`` also a table's name in it.
        format: ``iceberg``, ``delta`` or ``parquet``.
        catalog: of Iceberg: the URI of a catalog, or a name of pyiceberg's settings; None: SQLite
            in the folder.
        buckets: in how many parts the table lies, a power of two; None: 128 MiB each.
        headers: a column ``_headers``, too.
        vectors: delete rows by deletion vectors from now on, which Iceberg has in version 3 of its
            format, and Delta. A table that has them keeps them, and fewer engines read it.
        anew: write all of it again, whatever the table says.
        memory: what it may take, with scratch files beyond: bytes, or as ``512m``.
        system: ``kafka``, ``rocketmq`` or ``pulsar``; None: what lies there.
        config: how a bucket is reached, ``storage.*``.
        now_ms: the clock, for what is old enough to go; None: now.
        progress: is told of stages and bytes done; None: nobody is. What it raises ends the run, and
            the table is as it was.
        decoding: what keys and values are decoded from: see ``DecodingConfig``. With
            ``on_bad="aside"`` the row of a key whose last value is bad goes.

    Raises:
        NotALog, InvalidConfig, CorruptLog, UnsupportedFormat, OutOfMemoryBudget: as ``table``; and
            where there is another table than this one.
        CommitConflict: changes are missing: the log begins above the table's offsets, or it is
            another topic of that name. ``anew`` is the way.
        LogHeld: another run changed the table meanwhile.
        BadValue: a key or value is bad.
        EnvironmentUnfit: a package is missing.
    """
    from lastwrite.tables.rows import Rows
    from lastwrite.tables.update import Wish, bring_up
    from lastwrite.tables.upkeep import tidy

    path = str(path)
    if buckets is not None and (buckets < 1 or buckets & (buckets - 1)):
        raise InvalidConfig(f"buckets is {buckets}", remedy="a power of two")
    address.use(store_settings(config))
    source = rows_of(system_of(path, system))
    wanted = DecodingConfig.of(decoding)
    settings = {
        "key_format": wanted.key_format,
        "value_format": wanted.value_format,
        "headers": str(headers).lower(),
    }

    def listed() -> list[PartitionLog]:
        logs = whole_topic(source, path, topic)
        if not logs:
            raise NotALog(f"there is no topic {topic}", path=path, remedy="see lastwrite inspect")
        return logs

    def made(logs: Sequence[PartitionLog]) -> TableRound:
        name = logs[0].name.topic
        rows = Rows(wanted, name, headers)
        wish = Wish(rows, settings, _left(parse_bytes(memory)), buckets, anew)
        table = format_at(str(to), format, name, catalog, vectors)
        report = bring_up(table, source, logs, wish, progress or NoProgress())
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        try:
            tidied = tidy(table, now)
        except LogError as error:  # the table is current; the next round tidies
            return structs.replace(report, untidy=str(error))
        return structs.replace(report, tidied=tidied)

    return steady(source, listed, made)


def format_at(
    to: str, format: str, topic: str, catalog: str | None, vectors: bool = False
) -> TableFormat:
    """The format of that name, at a place; with ``vectors``, as ``table_to`` has it.

    Raises:
        InvalidConfig: there is none, or it has no catalogs, or no vectors.
        EnvironmentUnfit: its package is missing.
    """
    if format not in FORMATS:
        raise InvalidConfig(f"format is {format!r}", remedy=f"one of: {', '.join(FORMATS)}")
    module, name, package = FORMATS[format]
    for each in ("pyarrow", package):
        if find_spec(each) is None:
            raise EnvironmentUnfit(
                f"a table of {format} needs {each}", remedy="pip install 'lastwrite[tables]'"
            )
    of: Callable[..., TableFormat] = getattr(import_module(module), name)
    if catalog is not None and format != "iceberg":
        raise InvalidConfig("catalogs are of Iceberg", remedy="leave catalog out")
    if vectors and format == "parquet":
        raise InvalidConfig("Parquet has no deletion vectors", remedy="leave vectors out")
    if format == "iceberg":
        return of(to, topic, catalog, vectors)
    return of(to, vectors) if format == "delta" else of(to)
