"""``verify_table``: checks that a table equals its topic, up to the offsets of the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import structs

from lastwrite.archive.gaps import gaps_in
from lastwrite.commands.systems import AUTOMQ, system_of
from lastwrite.commands.table import MEMORY, partitions_of_topic, steady
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
    metadata: str | None = None,
    config: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> TableProof:
    """Check that the table at ``to`` equals the topic at ``path`` up to the table's offsets.

    Args:
        path, memory, config, progress: as for ``table_to``.
        to, catalog: as they were given to ``table_to``.
        topic: the name of the topic, if a catalog needs it. None means: take it from the table.
        format: ``iceberg``, ``delta`` or ``parquet``. None means the format of the table at ``to``.
        metadata: AutoMQ: as for ``table_to``. It implies ``automq``.
        limit: the maximum number of differing keys in the report.

    Raises:
        NotALog: there is no such table.
        InvalidConfig: Lastwrite did not write the table.
        CommitConflict: the log lacks records that the table is based on.
        CorruptLog, UnsupportedFormat, RemoteFailed: the log or the table cannot be read.
    """
    path, to = str(path), str(to)
    check_format(to, format, catalog)
    from lastwrite.tables.verify import verify

    address.use(store_settings(config))
    table = format_at(to, format, topic or "", catalog)
    head = table.head()
    if head is None:
        raise NotALog(
            "the address has no table", path=to, remedy="create the table with lastwrite table --to"
        )
    if head.state is None:
        raise InvalidConfig(
            "the table was not created by Lastwrite, and has no rows",
            path=to,
            remedy="create the table with lastwrite table --to",
        )
    state, found = head.state, head
    system = state.system if metadata is None else AUTOMQ
    source = rows_of(system_of(path, system, metadata))

    def listed() -> list[PartitionLog]:
        return partitions_of_topic(source, path, state.topic, config)

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
