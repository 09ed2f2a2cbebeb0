"""``latest``: the last writes that a consumer finds if it reads a topic from offset 0.

For ``a=1@0 b=2@1 a=3@2`` and a tombstone of ``b`` at 3, the table is ``{a: 3}``. Earlier
compactions make no difference. Last writes are found as in ``table``. Records without a key are not
in the table.

The table is complete up to an offset in each partition. ``end_offsets`` contains the first offset
that is not in the table. Records at this offset and above were not written, not replicated or not
decided when the files were listed.

A dictionary contains the values, up to a size limit. A DataFrame contains only positions: its tasks
read the last writes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from lastwrite.archive.gaps import gaps_in, warn_of
from lastwrite.commands.systems import KAFKA, PULSAR, ROCKETMQ, system_to_read
from lastwrite.commands.table import MEMORY, KeyedTable, partitions_of_topic, steady
from lastwrite.config.stores import store_settings
from lastwrite.decoding.options import ASIDE, DecodingConfig, DecodingOptions
from lastwrite.errors import InvalidConfig, OutOfMemoryBudget
from lastwrite.model.log import PartitionLog, Problem
from lastwrite.pulsar.format.position import Position
from lastwrite.rocketmq.format.java_hash import decode
from lastwrite.rows.requirements import require_arrow
from lastwrite.rows.system import rows_of
from lastwrite.spark.memory import parse_bytes
from lastwrite.storage.objects import address

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT_BYTES = 256 << 20
_ENTRY_BYTES = 200  # memory of a dictionary entry in Python, in addition to its key and value

End = int | str


class Table(dict[Any, Any]):
    """The last writes of a topic, as a dictionary.

    A key can be looked up as text or as bytes. In Pulsar, a key that was sent as Base64 is also
    found by its bytes.

    Attributes:
        end_offsets: the first offset that is not in the table, by partition. RocketMQ: by queue.
            Pulsar: by partition, -1 for a topic without partitions; the offset is a message id,
            ``LEDGER:ENTRY``, a valid ``start`` for ``read``.
        notes: gaps in the topic's archive that were accepted as lost.
    """

    def __init__(self, writes: Mapping[Any, Any], end_offsets: Mapping[int, End]) -> None:
        super().__init__(writes)
        self.end_offsets = dict(end_offsets)
        self.notes: list[Problem] = []
        self._system: str | None = None

    @classmethod
    def of(cls, system: str, writes: Mapping[Any, Any], end_offsets: Mapping[int, End]) -> Table:
        """The table of a topic of ``system``."""
        made = cls(writes, end_offsets)
        made._system = system
        return made

    def __missing__(self, key: object) -> Any:
        if isinstance(key, str | bytes) and self._system is not None:
            for form in _FORMS[self._system](key):
                if super().__contains__(form):
                    return super().__getitem__(form)
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        try:
            self[key]
        except KeyError:
            return False
        return True

    def get(self, key: Any, default: Any = None) -> Any:
        """The last write of ``key``, or ``default`` if the table does not contain the key."""
        try:
            return self[key]
        except KeyError:
            return default


@overload
def latest(
    path: str,
    topic: str | None = None,
    *,
    limit_bytes: int = LIMIT_BYTES,
    system: str | None = None,
    metadata: str | None = None,
    spark: None = None,
    config: Mapping[str, object] | None = None,
    **decoding: Unpack[DecodingOptions],
) -> Table: ...
@overload
def latest(
    path: str,
    topic: str | None = None,
    *,
    limit_bytes: int = LIMIT_BYTES,
    system: str | None = None,
    metadata: str | None = None,
    spark: SparkSession,
    config: Mapping[str, object] | None = None,
    **decoding: Unpack[DecodingOptions],
) -> DataFrame: ...
def latest(
    path: str,
    topic: str | None = None,
    *,
    limit_bytes: int = LIMIT_BYTES,
    system: str | None = None,
    metadata: str | None = None,
    spark: SparkSession | None = None,
    config: Mapping[str, object] | None = None,
    **decoding: Unpack[DecodingOptions],
) -> Table | DataFrame:
    """The last write of every key of a topic, in all its partitions, without deleted keys.

    Args:
        path: a RocketMQ store, or a topic's folder in it; a Kafka log root; or an archive, for
            Kafka and RocketMQ also in a bucket. Records of the topic on other brokers or in other
            roots are not in the table.
        topic: the name of the topic; not needed if ``path`` determines it.
        limit_bytes: size limit of the dictionary: keys, values and about 200 bytes per entry.
        system: ``kafka``, ``rocketmq``, ``pulsar`` or ``automq``. None means: detect it from the
            files.
        metadata: AutoMQ: the path of the cluster's metadata log, ``__cluster_metadata-0``.
        spark: with a session, the result is a DataFrame of any size, like ``read`` with
            ``view="compacted"``. It reads the files when it is evaluated, so they must not have
            changed by then. Needs pyarrow and pandas.
        config: settings ``storage.*`` of a bucket. Kafka: ``cleanup.policy=compact`` states that
            the topic was compacted earlier, so that offsets between two segments may be missing.
        decoding: formats and schemas of values, and of keys of a DataFrame; see
            ``DecodingConfig``.

    Returns:
        ``{key: body}``, or a DataFrame. Keys are text in RocketMQ (all of ``KEYS``) and in Pulsar,
        and bytes in Kafka. Both have the attribute ``end_offsets`` (see ``Table``). A DataFrame
        that is derived from the result does not have it.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was read.
        CorruptLog: a record cannot be read, and it may have been the last one of its key.
        OutOfMemoryBudget: the table is larger than ``limit_bytes``.
        EnvironmentUnfit: pyarrow or pandas is missing.
        BadValue: a value does not match its schema.
        RemoteFailed: the schema registry does not answer.
    """
    path = str(path)
    wanted = DecodingConfig.of(decoding)
    if spark is None:
        _reject_for_dictionaries(wanted)
    address.use(store_settings(config))
    system = system_to_read(path, system, metadata)
    rows = rows_of(system)
    budget = parse_bytes(MEMORY)

    def ends_of(found: KeyedTable) -> dict[int, End]:
        ends = found.end_offsets
        if system != PULSAR:
            return dict(ends)
        return {partition: str(Position.of(end)) for partition, end in ends.items()}

    # Read the headers too, because they may contain the schema id of a Kafka record.
    has_headers = system == KAFKA and wanted.value_format == "confluent"

    def held(logs: Sequence[PartitionLog]) -> tuple[Table, str, Any]:
        with KeyedTable(rows, logs, budget, raw_keys=True) as found:
            writes = _load_within_limit(found.items(), _KEYS[system], limit_bytes)
            table = Table.of(system, writes, ends_of(found))
            table.notes = gaps_in(logs)
            headers = found.to_arrow(["headers"])["headers"] if has_headers else None
            return table, logs[0].name.topic if logs else "", headers

    named: set[str] = set()

    def listed() -> list[PartitionLog]:
        logs = partitions_of_topic(rows, path, topic, config)
        warn_of(logs, named)
        return logs

    if spark is None:
        table, name, headers = steady(rows, listed, held, (path, topic))
        if wanted.is_raw:
            return table
        require_arrow()
        from lastwrite.rows.messages import decoded_values  # imported only if needed

        decoded = decoded_values(table, wanted, name, headers)
        made = Table.of(system, decoded, table.end_offsets)
        made.notes = table.notes
        return made
    session = spark
    from lastwrite.commands.rows import frame_of, reject_without_arrow

    reject_without_arrow()
    from lastwrite.rows.decoded import DecodedRows

    def framed(logs: Sequence[PartitionLog]) -> DataFrame:
        made = DecodedRows(wanted, None, logs[0].name.topic if logs else "")
        with KeyedTable(rows, logs, budget) as found:
            frame = frame_of(session, list(found.units(made.raw_columns)), made)
            # The type DataFrame does not declare this attribute, so mypy ignores the line.
            frame.end_offsets = ends_of(found)  # type: ignore[attr-defined]
            return frame

    return steady(rows, listed, framed, (path, topic))


def _reject_for_dictionaries(wanted: DecodingConfig) -> None:
    if wanted.key_format != "raw":
        raise InvalidConfig(
            "keys of a dictionary cannot be decoded", remedy="give only value_format"
        )
    if wanted.on_bad == ASIDE:
        raise InvalidConfig(
            "on_bad=aside is only for table() and DataFrames",
            remedy="use table() or a DataFrame, or another on_bad",
        )


def _key_of_pulsar(key: bytes) -> str:
    """A key as text, as in Pulsar's Java client: invalid UTF-8 is replaced by U+FFFD."""
    return key.decode("utf-8", "replace")


_KEYS: Mapping[str, Callable[[bytes], Any]] = {
    KAFKA: bytes,
    ROCKETMQ: decode,
    PULSAR: _key_of_pulsar,
}


def _bytes(key: str | bytes) -> bytes:
    return key.encode("utf-8", "surrogateescape") if isinstance(key, str) else key


def _forms_of_pulsar(key: str | bytes) -> Iterable[str | bytes]:
    return _key_of_pulsar(_bytes(key)), base64.b64encode(_bytes(key)).decode()


_FORMS: Mapping[str, Callable[[str | bytes], Iterable[str | bytes]]] = {
    KAFKA: lambda key: (_bytes(key),),
    ROCKETMQ: lambda key: (decode(_bytes(key)),),
    PULSAR: _forms_of_pulsar,
}


def _load_within_limit(
    items: Iterable[tuple[bytes, bytes]], key_of: Callable[[bytes], Any], limit_bytes: int
) -> dict[Any, bytes]:
    """A dictionary of the items, if it does not exceed the size limit.

    Raises:
        OutOfMemoryBudget: the dictionary needs more than ``limit_bytes``.
    """
    held, last = 0, {}
    for key, value in items:
        held += len(key) + len(value) + _ENTRY_BYTES
        if held > limit_bytes:
            raise OutOfMemoryBudget(
                f"the latest values need more than {limit_bytes} bytes",
                remedy="raise limit_bytes, or use table(), which keeps only an index in memory",
            )
        last[key_of(key)] = value
    return last
