"""``dump``: what lies in a log, row by row, as dictionaries ready for JSON.

Chooses the system; its ``look/dump.py`` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Unpack

from lastwrite.commands.systems import PULSAR, ROCKETMQ, system_of
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
        system: ``kafka``, ``rocketmq`` or ``pulsar``; None: what lies there.
        topic, partition: only this topic, only this partition of each; None: all.
        batches: one row a batch instead: headers, checksums verified, records not decoded.
        index: one row an entry of the offset, time and transaction indexes instead.
        offset: nothing below this offset.
        last: of each partition the last so many rows of all that the others ask for.
        start: Pulsar: from this message on, ``LEDGER:ENTRY``.
        limit: at most so many rows.
        time_ms: Kafka: from the first record on that is of this time or later, milliseconds since
            1970. RocketMQ: from the first message on that was stored then or later. Pulsar:
            messages that were published then or later.
        key: only records with exactly this key.
        decode: say in a field ``decoded`` what the records of Kafka's own topics mean, the
            cluster's metadata log (``topic="__cluster_metadata"``, or its folder, or a
            ``.checkpoint`` of it) among them; of other topics, which keys and values are text.
        spark: taken as by the other commands, and not needed: rows come in order, from this
            process.

        decoding: what keys and values are decoded from, see ``DecodingConfig``: what they mean is
            in a field ``decoded`` then, with ``problem`` where ``on_bad`` is ``null``.

    Of a RocketMQ store ``partition`` is the queue, ``key`` one of a message's keys, ``batches``
    leaves inner batches whole, and these are its own:

        commit_log_offset: the message at this address in the commit log.
        unique_key: the messages with this unique key.
        message_id: the message that this id names.
        compacted: what the compaction logs have, not the commit log.
        config: ``storePathCommitLog`` and ``readOnlyCommitLogStorePaths`` where the commit log lies
        elsewhere.
        say: is told what was not found as a broker would have found it; None: nobody is.

    Raises:
        NotALog, InvalidConfig, LogHeld: before the first row.
        CorruptLog: after the last row, the first problem that was met; nothing that is whole was
            left out.
        BadValue: a key or value is not what its schema says.
    """
    wanted = DecodingConfig.of(decoding)
    if wanted.is_raw:
        made = _same
    elif decode or batches or index:
        raise InvalidConfig("formats are for records, and decode is for Kafka's own topics")
    else:
        require_arrow()
        from lastwrite.rows.messages import MessageDecoder  # not before it is needed

        made = MessageDecoder(wanted).rows
    address.use(store_settings(config))
    others = {name: value for name, value in (config or {}).items() if not is_of_stores(name)}
    if last is not None and last < 1:
        raise InvalidConfig(f"the last {last}", remedy="ask for one or more")
    found, path = system_of(str(path), system), str(path)
    missed = None  # RocketMQ's lookups say it themselves
    if limit is None or limit > 0:
        missed = _missed(key=key, message_id=message_id, offset=offset, time_ms=time_ms)
    if found == PULSAR:
        _refuse(
            "Pulsar",
            path,
            "start takes a message id",
            offset=offset,
            commit_log_offset=commit_log_offset,
            unique_key=unique_key,
            decode=decode or None,
            config=others or None,
        )
        from lastwrite.pulsar.look.dump import (  # not before it is needed
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
        found_rows = dump_topics(path, asked, limit, say or _nobody)
        return made(_saying_none(found_rows, missed, say or _nobody))
    if start is not None:
        raise InvalidConfig("start is for Pulsar", path=path, remedy="give offset")
    if found == ROCKETMQ:
        from lastwrite.rocketmq.look.dump import (  # not before it is needed
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
        return made(dump_store(path, messages, limit, say or _nobody))
    _refuse(
        "Kafka",
        path,
        commit_log_offset=commit_log_offset,
        unique_key=unique_key,
        message_id=message_id,
        compacted=compacted or None,
        config=others or None,
    )
    from lastwrite.kafka.look.dump import LogDumpRequest, dump_logs  # not before it is needed

    logs = LogDumpRequest(
        batches=batches,
        index=index,
        offset=offset or 0,
        key=key,
        decode=decode,
        time_ms=time_ms,
        last=last,
    )
    found_rows = dump_logs(path, topic, partition, logs, limit, say or _nobody)
    return made(_saying_none(found_rows, missed, say or _nobody))


def _refuse(system: str, path: str, remedy: str | None = None, **given: object) -> None:
    """Refuse what is for other systems.

    Raises:
        InvalidConfig: it names the first that is given.
    """
    for name, value in given.items():
        if value is not None:
            raise InvalidConfig(f"{name} is not for {system}", path=path, remedy=remedy)


_MISSED = {
    "key": "no record has this key",
    "message_id": "no message has this id",
    "time_ms": "no record is of this time or later",
    "offset": "no record has this offset or a later one",
}


def _missed(**given: object) -> str | None:
    """What to say where a lookup finds nothing; None: nothing was looked up."""
    return next((_MISSED[name] for name in _MISSED if given[name] is not None), None)


def _saying_none(
    rows: Iterator[Row], words: str | None, say: Callable[[str], None]
) -> Iterator[Row]:
    """The rows; ``say`` is told if a lookup gave none."""
    is_found = False
    for row in rows:
        is_found = True
        yield row
    if not is_found and words is not None:
        say(words)


def _same(rows: Iterator[Row]) -> Iterator[Row]:
    return rows


def _nobody(text: str) -> None:
    """Where nobody listens."""
