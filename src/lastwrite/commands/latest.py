"""``latest``: the table that a topic's last writes make, as a consumer would have it who read all
of it from offset 0.

``a=1@0 b=2@1 a=3@2``, and a delete of ``b`` at 3: the table is ``{a: 3}``. Whether the topic was
compacted before, and how often, makes no difference. The rule is that of ``table``, which finds
them; records without a key are in no table.

The table is true up to an offset in each partition, which ``end_offsets`` names: the first one that
is not in it. What lies there or beyond was not written, not replicated or not decided when the
files were listed.

A dictionary holds the table in this process, up to a limit. A DataFrame holds nothing: its tasks
read the records that were found to be the last.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack, overload

from lastwrite.archive.gaps import gaps_in, warn_of
from lastwrite.commands.systems import KAFKA, PULSAR, ROCKETMQ, system_of
from lastwrite.commands.table import MEMORY, KeyedTable, steady, whole_topic
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
_ENTRY_BYTES = 200  # what Python takes for a key and a value beside their bytes

End = int | str


class Table(dict[Any, Any]):
    """The last writes, and up to where they are: ``end_offsets``, partition (RocketMQ: queue, Pulsar:
    -1 where the topic has none) to the first offset that is not in the table; in Pulsar a message
    id, ``LEDGER:ENTRY``, as ``read`` takes it for ``start``. ``notes``: gaps of the topic's archive
    that were accepted as lost.

    A key may be looked up as text or as bytes, whichever the table has. Of Pulsar the bytes of a
    key that was sent as Base64 find it, too.
    """

    def __init__(self, writes: Mapping[Any, Any], end_offsets: Mapping[int, End]) -> None:
        super().__init__(writes)
        self.end_offsets = dict(end_offsets)
        self.notes: list[Problem] = []
        self._system: str | None = None

    @classmethod
    def of(cls, system: str, writes: Mapping[Any, Any], end_offsets: Mapping[int, End]) -> Table:
        """The table of a topic of that system."""
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
        """The key's last write, or the default."""
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
    spark: SparkSession | None = None,
    config: Mapping[str, object] | None = None,
    **decoding: Unpack[DecodingOptions],
) -> Table | DataFrame:
    """The last write of every key of a topic, over all its queues from their first message on,
    without deleted keys.

    Args:
        path: a RocketMQ store, or a topic's folder in it; or Kafka's log root; or an archive, of
            Kafka and RocketMQ in a bucket too. What other brokers or other roots have of the topic
            is not in the table.
        topic: its name; not needed where ``path`` says it.
        limit_bytes: what the dictionary may take, keys, values and some 200 bytes an entry.
        system: ``kafka``, ``rocketmq`` or ``pulsar``; None: what lies there.
        spark: a session: the table is a DataFrame of it then, of any size, as ``read`` with
            ``view="compacted"`` gives it. It reads the files when it is evaluated, and they must
            still be the same then. Needs pyarrow and pandas.
        config: how a bucket is reached, ``storage.*``.
        decoding: what values, and keys of a DataFrame, are decoded from, see ``DecodingConfig``.

    Returns:
        ``{key: body}``; keys are text in RocketMQ (all of ``KEYS``) and in Pulsar, and bytes in
        Kafka. Or a DataFrame. Both have an attribute ``end_offsets`` (see ``Table``): up to where
        the table is true in each partition. What is derived from a DataFrame does not have it.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was read.
        CorruptLog: a record cannot be read, and it may have been a key's last.
        OutOfMemoryBudget: the table is larger than ``limit_bytes``.
        EnvironmentUnfit: pyarrow or pandas is missing.
        BadValue: a value is not what its schema says.
        RemoteFailed: the registry of schemas does not answer.
    """
    path = str(path)
    wanted = DecodingConfig.of(decoding)
    if spark is None:
        _reject_for_dictionaries(wanted)
    address.use(store_settings(config))
    system = system_of(path, system)
    rows = rows_of(system)
    budget = parse_bytes(MEMORY)

    def ends_of(found: KeyedTable) -> dict[int, End]:
        ends = found.end_offsets
        if system != PULSAR:
            return dict(ends)
        return {partition: str(Position.of(end)) for partition, end in ends.items()}

    # of Kafka's records headers may say how values are to be decoded
    has_headers = system == KAFKA and wanted.value_format == "confluent"

    def held(logs: Sequence[PartitionLog]) -> tuple[Table, str, Any]:
        with KeyedTable(rows, logs, budget, raw_keys=True) as found:
            writes = _held(found.items(), _KEYS[system], limit_bytes)
            table = Table.of(system, writes, ends_of(found))
            table.notes = gaps_in(logs)
            headers = found.to_arrow(["headers"])["headers"] if has_headers else None
            return table, logs[0].name.topic if logs else "", headers

    named: set[str] = set()

    def listed() -> list[PartitionLog]:
        logs = whole_topic(rows, path, topic)
        warn_of(gaps_in(logs), named)
        return logs

    if spark is None:
        table, name, headers = steady(rows, listed, held)
        if wanted.is_raw:
            return table
        require_arrow()
        from lastwrite.rows.messages import decoded_values  # not before it is needed

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
            # Spark has no place of its own for them.
            frame.end_offsets = ends_of(found)  # type: ignore[attr-defined]
            return frame

    return steady(rows, listed, framed)


def _reject_for_dictionaries(wanted: DecodingConfig) -> None:
    if wanted.key_format != "raw":
        raise InvalidConfig("keys of a dictionary stay as they are", remedy="give value_format")
    if wanted.on_bad == ASIDE:
        raise InvalidConfig("on_bad=aside is for columns", remedy="take table(), or a DataFrame")


def _key_of_pulsar(key: bytes) -> str:
    """As Java's client has it: what is not UTF-8 becomes the replacement character."""
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


def _held(
    items: Iterable[tuple[bytes, bytes]], key_of: Callable[[bytes], Any], limit_bytes: int
) -> dict[Any, bytes]:
    """
    Raises:
        OutOfMemoryBudget: they take more than ``limit_bytes``.
    """
    held, last = 0, {}
    for key, value in items:
        held += len(key) + len(value) + _ENTRY_BYTES
        if held > limit_bytes:
            raise OutOfMemoryBudget(
                f"the table takes more than {limit_bytes} bytes",
                remedy="raise limit_bytes, or take table(), which holds only an index",
            )
        last[key_of(key)] = value
    return last
