"""``verify_table``: whether a table on disk is its topic, up to the offsets that it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from lastwrite.archive.gaps import gaps_in
from lastwrite.commands.systems import system_of
from lastwrite.commands.table import MEMORY, steady, whole_topic
from lastwrite.commands.table_to import check_format, format_at
from lastwrite.config.stores import store_settings
from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.model.log import PartitionLog
from lastwrite.model.progress import Progress
from lastwrite.reports.table_proof import TableProof
from lastwrite.rows.system import rows_of
from lastwrite.spark.memory import parse_bytes
from lastwrite.storage.objects import address


def verify_table(
    path: str,
    to: str,
    *,
    topic: str | None = None,
    format: str | None = None,
    catalog: str | None = None,
    limit: int = 20,
    memory: str | int = MEMORY,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> TableProof:
    """Prove that the table at ``to`` is the topic at ``path`` up to the offsets that it says, or
    name keys that differ.

    Args:
        path, memory, config: as of ``table_to``.
        to, catalog: as they were given there.
        topic: its name, where a catalog needs it; else the table says it.
        format: ``iceberg``, ``delta`` or ``parquet``; None: what lies there.
        limit: of how many keys that differ the names are told.
        progress: as of ``table_to``.

    Raises:
        NotALog: there is no such table.
        InvalidConfig: it is not one of lastwrite's.
        CommitConflict: the log has not all that the table is of.
        CorruptLog, UnsupportedFormat, RemoteFailed: log or table cannot be read.
    """
    path, to = str(path), str(to)
    check_format(to, format, catalog)
    from lastwrite.tables.verify import verify

    address.use(store_settings(config))
    table = format_at(to, format, topic or "", catalog)
    head = table.head()
    if head is None:
        raise NotALog("there is no table", path=to, remedy="make it with lastwrite table --to")
    if head.state is None:
        raise InvalidConfig(
            "lastwrite did not make the table that is there, and it has no rows",
            path=to,
            remedy="make it with lastwrite table --to",
        )
    state, found = head.state, head
    source = rows_of(system_of(path, state.system))

    def listed() -> list[PartitionLog]:
        return whole_topic(source, path, state.topic)

    def made(logs: Sequence[PartitionLog]) -> TableProof:
        proof = verify(
            table,
            found,
            source,
            logs,
            memory_bytes=parse_bytes(memory),
            limit=limit,
            progress=progress,
        )
        return structs.replace(proof, notes=gaps_in(logs))

    return steady(source, listed, made)
