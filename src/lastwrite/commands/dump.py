"""``dump``: the contents of a log as rows: dictionaries that can be written as JSON.

This module selects the system; its ``look/dump.py`` does the work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Unpack

from lastwrite.commands.systems import PULSAR, ROCKETMQ, system_to_read
from lastwrite.config.stores import is_of_stores, store_settings
from lastwrite.decoding.options import DecodingConfig, DecodingOptions
from lastwrite.errors import InvalidConfig
from lastwrite.reports.table import Row
from lastwrite.rows.requirements import require_arrow
from lastwrite.storage.objects import address


def dump(
    path: str,
    *,
    system: str | None = None,
    metadata: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    batches: bool = False,
    index: bool = False,
    offset: int | None = None,
    limit: int | None = None,
    key: bytes | None = None,
    decode: bool = False,
    spark: object = None,
    commit_log_offset: int | None = None,
    unique_key: str | None = None,
    message_id: str | None = None,
    time_ms: int | None = None,
    compacted: bool = False,
    config: Mapping[str, object] | None = None,
    say: Callable[[str], None] | None = None,
    start: str | None = None,
    last: int | None = None,
    **decoding: Unpack[DecodingOptions],
) -> Iterator[Row]:
    """The records at ``path``, in the order of partition and offset, one dictionary each.

    Args:
        path: a log root, a partition's folder, or one file of either (segment, index, snapshot,
            checkpoint …).
        system: ``kafka``, ``rocketmq``, ``pulsar`` or ``automq``. None means: detect it from the
            files.
        metadata: AutoMQ: the path of the cluster's metadata log, ``__cluster_metadata-0``.
        topic, partition: only this topic, and only this partition of each topic. None means all.
        batches: one row per batch instead: header fields, with the checksum checked; the records
            are not decoded.
        index: one row per entry of the offset, time and transaction indexes instead.
        offset: only records at this offset or above.
        last: only this many last rows of each partition, of the rows that the other arguments
            select.
        start: Pulsar: start at this message, ``LEDGER:ENTRY``.
        limit: at most this many rows.
        time_ms: start at the first record of this time or later, in milliseconds since 1970.
            RocketMQ: by store time. Pulsar: only messages published then or later.
        key: only records with exactly this key.
        decode: add a field ``decoded`` to records of Kafka's internal topics, including the
            metadata log (``topic="__cluster_metadata"``, its folder, or a ``.checkpoint`` of it).
            In other topics, it marks keys and values that are text.
        spark: accepted as in other commands, and not used. Rows are read in order, in this
            process.
        decoding: formats and schemas of keys and values, see ``DecodingConfig``. Rows get a field
            ``decoded``, with ``problem`` if ``on_bad`` is ``null``.

    For a RocketMQ store, ``partition`` is the queue, ``key`` is one of a message's keys, and
    ``batches`` does not split inner batches. These arguments are only for RocketMQ:

        commit_log_offset: the message at this physical offset of the commit log.
        unique_key: the messages with this unique key.
        message_id: the message with this id.
        compacted: the compaction logs instead of the commit log.
        config: ``storePathCommitLog`` and ``readOnlyCommitLogStorePaths``, if the commit log is in
            another folder.
        say: called with a note if a message was not found in the way that a broker finds it.

    Raises:
        NotALog, InvalidConfig, LogHeld: before the first row.
        CorruptLog: the first damage, raised after the last row. All intact rows were returned.
        BadValue: a key or value does not match its schema.
    """
    wanted = DecodingConfig.of(decoding)
    if wanted.is_raw:
        made = _same
    elif decode or batches or index:
        raise InvalidConfig(
            "key and value formats cannot be combined with --decode, --batches or --index"
        )
    else:
        require_arrow()
        from lastwrite.rows.messages import MessageDecoder  # imported only if needed

        made = MessageDecoder(wanted).rows
    address.use(store_settings(config))
    others = {name: value for name, value in (config or {}).items() if not is_of_stores(name)}
    if last is not None and last < 1:
        raise InvalidConfig(f"--last is {last}", remedy="give a number of 1 or more")
    found, path = system_to_read(str(path), system, metadata), str(path)
    missed = None  # text for a lookup without result; RocketMQ's lookups report this themselves
    if limit is None or limit > 0:
        missed = _missed(key=key, message_id=message_id, offset=offset, time_ms=time_ms)
    if found == PULSAR:
        _reject_options(
            "Pulsar",
            path,
            "to start at a message, give its id as start",
            offset=offset,
            commit_log_offset=commit_log_offset,
            unique_key=unique_key,
            decode=decode or None,
            config=others or None,
        )
        from lastwrite.pulsar.look.dump import (  # imported only if needed
            TopicDumpRequest,
            dump_topics,
        )

        asked = TopicDumpRequest.parse(
            topic=topic,
            partition=partition,
            start=start,
            message_id=message_id,
            key=key,
            time_ms=time_ms,
            whole_batches=batches,
            blocks=index,
            compacted=compacted,
            last=last,
        )
        found_rows = dump_topics(path, asked, limit, say or _ignore_note)
        return made(_with_empty_note(found_rows, missed, say or _ignore_note))
    if start is not None:
        raise InvalidConfig("start is only for Pulsar", path=path, remedy="give offset instead")
    if found == ROCKETMQ:
        from lastwrite.rocketmq.look.dump import (  # imported only if needed
            StoreDumpRequest,
            dump_store,
        )

        messages = StoreDumpRequest(
            topic=topic,
            queue=partition,
            offset=offset,
            commit_log_offset=commit_log_offset,
            unique_key=unique_key,
            key=None if key is None else key.decode("utf-8", "surrogateescape"),
            message_id=message_id,
            time_ms=time_ms,
            whole_batches=batches,
            index=index,
            compacted=compacted,
            decode=decode,
            config=config or {},
            last=last,
        )
        return made(dump_store(path, messages, limit, say or _ignore_note))
    _reject_options(
        "Kafka",
        path,
        commit_log_offset=commit_log_offset,
        unique_key=unique_key,
        message_id=message_id,
        compacted=compacted or None,
        config={name: others[name] for name in others if name != "cleanup.policy"} or None,
    )
    from lastwrite.kafka.look.dump import LogDumpRequest, dump_logs  # imported only if needed

    logs = LogDumpRequest(
        batches=batches,
        index=index,
        offset=offset or 0,
        key=key,
        decode=decode,
        time_ms=time_ms,
        last=last,
        config=others,
    )
    found_rows = dump_logs(path, topic, partition, logs, limit, say or _ignore_note)
    return made(_with_empty_note(found_rows, missed, say or _ignore_note))


def _reject_options(system: str, path: str, remedy: str | None = None, **given: object) -> None:
    """Reject arguments for other systems.

    Raises:
        InvalidConfig: the first such argument.
    """
    for name, value in given.items():
        if value is not None:
            raise InvalidConfig(f"{name} is not an option for {system}", path=path, remedy=remedy)


_MISSED = {
    "key": "no record has this key",
    "message_id": "no message has this id",
    "time_ms": "no record has this time or a later one",
    "offset": "no record has this offset or a later one",
}


def _missed(**given: object) -> str | None:
    """The note for a lookup that found nothing. None if the call was not a lookup."""
    return next((_MISSED[name] for name in _MISSED if given[name] is not None), None)


def _with_empty_note(
    rows: Iterator[Row], text: str | None, note: Callable[[str], None]
) -> Iterator[Row]:
    """Yield the rows. If there are no rows, ``note`` is called with ``text``."""
    is_found = False
    for row in rows:
        is_found = True
        yield row
    if not is_found and text is not None:
        note(text)


def _same(rows: Iterator[Row]) -> Iterator[Row]:
    return rows


def _ignore_note(text: str) -> None:
    """The default of ``say``: ignores notes."""
