"""``table_to``: a topic's last writes as a table of Iceberg, Delta or Parquet, made or brought
up to date.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import structs

from lastwrite.archive.gaps import gaps_in
from lastwrite.commands.systems import system_of
from lastwrite.commands.table import MEMORY, steady, whole_topic
from lastwrite.config.stores import store_settings
from lastwrite.decoding.options import ASIDE, DecodingConfig, DecodingOptions
from lastwrite.errors import EnvironmentUnfit, InvalidConfig, LogError, NotALog, TableConflict
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
    format: str | None = None,
    catalog: str | None = None,
    buckets: int | None = None,
    headers: bool | None = None,
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
        format: ``iceberg``, ``delta`` or ``parquet``; None: that of the table at ``to``, else
            ``iceberg``.
        catalog: of Iceberg: the URI of a catalog, or a name of pyiceberg's settings; None: SQLite
            in the folder.
        buckets: in how many parts the table lies, a power of two; None: 128 MiB each.
        headers: a column ``_headers``, too; None: as the table was made, else no.
        vectors: delete rows by deletion vectors from now on, which Iceberg has in version 3 of its
            format, and Delta. A table that has them keeps them, and fewer engines read it.
        anew: write all of it again, whatever the table says.
        memory: what it may take, with scratch files beyond: bytes, or as ``512m``.
        system: ``kafka``, ``rocketmq`` or ``pulsar``; None: what lies there.
        config: how a bucket is reached, ``storage.*``.
        now_ms: the clock, for what is old enough to go; None: now.
        progress: is told of stages and bytes done; None: nobody is. What it raises ends the run, and
            the table is as it was.
        decoding: what keys and values are decoded from: see ``DecodingConfig``. An option that is
            not given is as in the table's last run. With ``on_bad="aside"`` the row of a key whose
            last value is bad goes.

    Raises:
        NotALog, InvalidConfig, CorruptLog, UnsupportedFormat, OutOfMemoryBudget: as ``table``; and
            where there is another table than this one.
        CommitConflict: changes are missing: the log begins above the table's offsets, or it is
            another topic of that name. ``anew`` is the way.
        TableConflict: other writers changed the table first, ``ATTEMPTS`` times.
        BadValue: a key or value is bad.
        EnvironmentUnfit: a package is missing.
    """
    path = str(path)
    if buckets is not None and (buckets < 1 or buckets & (buckets - 1)):
        raise InvalidConfig(f"buckets is {buckets}", remedy="a power of two")
    address.use(store_settings(config))
    source = rows_of(system_of(path, system))
    given = {name: value for name, value in decoding.items() if value is not None}
    check_format(str(to), format, catalog, vectors)
    from lastwrite.tables.rows import Rows
    from lastwrite.tables.update import TableRequest, sync_table
    from lastwrite.tables.upkeep import tidy

    def listed() -> list[PartitionLog]:
        logs = whole_topic(source, path, topic)
        if not logs:
            raise NotALog(f"there is no topic {topic}", path=path, remedy="see lastwrite inspect")
        return logs

    def made(logs: Sequence[PartitionLog]) -> TableRound:
        name = logs[0].name.topic
        table = format_at(str(to), format, name, catalog, vectors)
        head = table.head(anew=anew)
        was = head.state.settings if head is not None and head.state is not None else {}
        wanted, settings = settings_after(was, given, headers)
        rows = Rows(wanted, name, settings["headers"] == "true")
        wish = TableRequest(rows, settings, _left(parse_bytes(memory)), buckets, anew)
        report = sync_table(table, head, source, logs, wish, progress or NoProgress())
        report = structs.replace(report, notes=gaps_in(logs))
        now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        try:
            tidied = tidy(table, now)
        except LogError as error:  # the table is current; the next round tidies
            return structs.replace(report, untidy=str(error))
        return structs.replace(report, tidied=tidied)

    attempts = Attempts()
    report = attempts.run(lambda: steady(source, listed, made), TableConflict)
    return structs.replace(report, attempts=attempts.count)


def settings_after(
    was: Mapping[str, str], given: Mapping[str, Any], headers: bool | None
) -> tuple[DecodingConfig, dict[str, str]]:
    """What a run decodes, and the settings that its commit stores: the options that are ``given``,
    else those that the table's last commit has.

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
    """Check a format's name and options, without a look at the place. None: any format.

    Raises:
        InvalidConfig: there is none, or it has no catalogs, or no vectors, or needs a catalog.
        EnvironmentUnfit: its package is missing.
    """
    if format is None:
        require_arrow()
        return
    if format not in FORMATS:
        raise InvalidConfig(f"format is {format!r}", remedy=f"one of: {', '.join(FORMATS)}")
    for each in ("pyarrow", FORMATS[format][2]):
        if find_spec(each) is None:
            raise EnvironmentUnfit(
                f"a table of {format} needs {each}", remedy="pip install 'lastwrite[tables]'"
            )
    if catalog is not None and format != "iceberg":
        raise InvalidConfig(
            f"catalogs are of Iceberg, and the table is of {format}", remedy="leave --catalog out"
        )
    if catalog is None and format == "iceberg" and is_address(to):
        raise InvalidConfig(
            "an Iceberg table in a bucket needs a catalog",
            path=to,
            remedy="give --catalog, such as sqlite:////var/lib/catalog.db",
        )
    if vectors and format == "parquet":
        raise InvalidConfig("Parquet has no deletion vectors", remedy="leave --vectors out")


def format_at(
    to: str, format: str | None, topic: str, catalog: str | None, vectors: bool = False
) -> TableFormat:
    """The table at a place, in the format that is there; if none is, in ``format`` or Iceberg's.
    With ``vectors``, as ``table_to`` has it.

    Raises:
        InvalidConfig: a table of another format is there; or as ``check_format``.
        EnvironmentUnfit: as ``check_format``.
    """
    if catalog is None or not is_table_name(to):
        format = format_there(to, format)
    format = format or "iceberg"
    check_format(to, format, catalog, vectors)
    module, name, _ = FORMATS[format]
    of: Callable[..., TableFormat] = getattr(import_module(module), name)
    if format == "iceberg":
        return of(to, topic, catalog, vectors)
    return of(to, vectors) if format == "delta" else of(to)
