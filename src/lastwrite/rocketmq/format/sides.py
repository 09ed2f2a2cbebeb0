"""The small files beside the logs: checkpoint, abort, lock, and the broker's JSON files.

``checkpoint`` has 4,096 bytes: six numbers and zeros. ``abort`` exists while a broker runs. It has
the broker's process id (5.x) or is empty (4.9.3). If it exists when a broker starts, the previous
broker was not stopped cleanly. ``lock`` contains the text ``lock`` and is locked while a broker
runs.

The JSON files are written by fastjson, which writes numbers as member names without quotation
marks (``{0:5}``). Python's parser rejects these names, so they are quoted first. Unknown members
are ignored.

Source: RocketMQ 5.5.0 ``StoreCheckpoint``, ``DefaultMessageStore``, ``TopicConfigManager``,
``ConsumerOffsetManager``, ``CompactionPositionMgr``; docs/formats/rocketmq.md, "The store" and
"Side files"; docs/formats/rocketmq-compaction.md, "A run" and "What 5.5.0 does otherwise than older
releases".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

from lastwrite.encoding.layout import I64, At, Buffer, layout
from lastwrite.errors import CorruptLog, TruncatedLog
from lastwrite.rocketmq.format.java_hash import decode, string_hash

CHECKPOINT_BYTES = 4096
LOCK_TEXT = b"lock"

CLEANUP_POLICY = "cleanup.policy"
COMPACTION_POLICY = "COMPACTION"
QUEUE_TYPE = "queue.type"
BATCH_QUEUE_TYPE = "BatchCQ"

_RECOVERY_MARGIN_MS = 3_000


class Checkpoint(NamedTuple):
    """The content of the file ``checkpoint``: how far a broker has flushed its data.

    Fields that a release does not write are 0.
    """

    # fmt: off
    #                                      offset  type
    commit_log_time_ms:     Annotated[int, At(0,  I64)]  # newest store time flushed to disk
    # newest store time in consume queues; updated only every 60 s
    consume_queue_time_ms:  Annotated[int, At(8,  I64)]
    index_time_ms:          Annotated[int, At(16, I64)]
    master_flushed_offset:  Annotated[int, At(24, I64)]  # since 5.0.0
    confirm_offset:         Annotated[int, At(32, I64)]  # since 5.1.1
    # since 5.5.0; commit log address up to which the consume queues are filled
    consume_queue_offset:   Annotated[int, At(40, I64)]
    # fmt: on

    @property
    def recovery_time_ms(self) -> int:
        """The store time from which a broker dispatches again after an unclean stop."""
        return max(
            min(self.commit_log_time_ms, self.consume_queue_time_ms) - _RECOVERY_MARGIN_MS, 0
        )


CHECKPOINT = layout(Checkpoint, byte_order=">", size=48)


def decode_checkpoint(data: Buffer) -> Checkpoint:
    """Decode the file ``checkpoint``.

    Raises:
        TruncatedLog: fewer bytes than the six numbers need.
    """
    if len(data) < CHECKPOINT.size:
        raise TruncatedLog(f"the checkpoint has only {len(data)} bytes", len(data))
    return Checkpoint._make(CHECKPOINT.unpack_from(data, 0))


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Encode the file ``checkpoint``, 4,096 bytes."""
    return CHECKPOINT.pack(*checkpoint).ljust(CHECKPOINT_BYTES, b"\0")


def decode_abort(data: bytes) -> int | None:
    """The process id in the file ``abort``. Returns None if the file has none, as in 4.9.3."""
    text = bytes(data).strip()
    return int(text) if text.isdigit() and len(text) < 12 else None


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The settings of one topic."""

    name: str
    read_queues: int
    write_queues: int
    perm: int  # bits: 8 priority, 4 read, 2 write, 1 inherit
    is_ordered: bool = False
    filter_type: str = "SINGLE_TAG"
    system_flag: int = 0
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def is_compacted(self) -> bool:
        """Whether a broker keeps a compaction log of the topic."""
        return self.attributes.get(CLEANUP_POLICY) == COMPACTION_POLICY

    @property
    def has_batch_queues(self) -> bool:
        """Whether the topic's queues have units of 46 bytes, under ``batchconsumequeue``."""
        return self.attributes.get(QUEUE_TYPE) == BATCH_QUEUE_TYPE


def decode_topics(data: bytes) -> dict[str, TopicConfig]:
    """Decode ``config/topics.json``: the settings of each topic by name.

    Raises:
        CorruptLog: the data is not JSON, or a setting has the wrong type.
    """
    table = _member(_json(data), "topicConfigTable")
    return {name: _topic(name, value) for name, value in table.items()}


def decode_topic(name: str, data: bytes) -> TopicConfig:
    """Decode a topic's settings from a broker's response.

    Raises:
        CorruptLog: the data is not JSON, or a setting has the wrong type.
    """
    return _topic(name, _json(data))


def _topic(name: str, value: Any) -> TopicConfig:
    if not isinstance(value, dict):
        raise CorruptLog(f"the settings of topic {name} are not a JSON object")
    attributes = value.get("attributes") or {}
    if not isinstance(attributes, dict):
        raise CorruptLog(f"the attributes of topic {name} are not a JSON object")
    return TopicConfig(
        name=name,
        read_queues=_number(value.get("readQueueNums", 16), f"readQueueNums of topic {name}"),
        write_queues=_number(value.get("writeQueueNums", 16), f"writeQueueNums of topic {name}"),
        perm=_number(value.get("perm", 6), f"perm of topic {name}"),
        is_ordered=value.get("order") is True,
        filter_type=str(value.get("topicFilterType", "SINGLE_TAG")),
        system_flag=_number(value.get("topicSysFlag", 0), f"topicSysFlag of topic {name}"),
        attributes={str(key): str(text) for key, text in attributes.items()},
    )


def decode_consumer_offsets(data: bytes) -> dict[tuple[str, str], dict[int, int]]:
    """Decode ``config/consumerOffset.json`` or ``lmqConsumerOffset.json``.

    Returns the next offset of each queue, by topic and group. A light queue has the number 0.

    Raises:
        CorruptLog: the data is not JSON, or a value is not a number.
    """
    found = {}
    document = _json(data)
    for name, queues in _member(document, "offsetTable").items():
        topic, _, group = name.partition("@")
        if not isinstance(queues, dict):
            raise CorruptLog(f"the offsets of {name} are not a JSON object")
        found[topic, group] = {
            _number(queue, f"queue of {name}"): _number(offset, f"offset of {name}")
            for queue, offset in queues.items()
        }
    for name, offset in _member(document, "lmqOffsetTable").items():
        topic, _, group = name.rpartition("@")
        found[topic, group] = {0: _number(offset, f"offset of {name}")}
    return found


def decode_delay_offsets(data: bytes) -> dict[int, int]:
    """Decode ``config/delayOffset.json``. Returns the next offset to deliver, by delay level.

    Raises:
        CorruptLog: the data is not JSON, or a value is not a number.
    """
    return {
        _number(level, "a delay level"): _number(offset, f"offset of delay level {level}")
        for level, offset in _member(_json(data), "offsetTable").items()
    }


def decode_config(data: bytes) -> Any:
    """Decode a JSON file of the folder ``config`` that has no decoder of its own.

    Raises:
        CorruptLog: the data is not JSON.
    """
    return _json(data)


_GROUP = re.compile(r'"((?:[^"\\]|\\.)*)@([^"@]*)"(\s*:\s*\{)([^{}]*)\}')
_LIGHT_OFFSET = re.compile(r'"((?:[^"\\]|\\.)*)@([^"@]*)"(\s*:\s*)([0-9]{1,19})(?![0-9])')
_QUEUE_OFFSET = re.compile(r'("?)(?<![0-9])([0-9]{1,10})\1(\s*:\s*)([0-9]{1,19})(?![0-9])')


def lower_consumer_offsets(
    data: bytes, ends: Mapping[tuple[str, int], int]
) -> tuple[bytes, list[tuple[str, str, int, int, int]]]:
    """Lower committed offsets that exceed ``ends`` in a file of consumer offsets.

    The file is ``consumerOffset.json`` or ``lmqConsumerOffset.json``. ``ends`` has the largest
    offset by topic and queue. All other text is unchanged. Returns the bytes, and for each lowered
    offset its topic, group, queue, old and new value. A light queue has the number 0.
    """
    lowered: list[tuple[str, str, int, int, int]] = []

    def group(match: re.Match[str]) -> str:
        topic, name = match[1], match[2]

        def offset(one: re.Match[str]) -> str:
            queue, value = int(one[2]), int(one[4])
            end = ends.get((topic, queue), value)
            if end < value:
                lowered.append((topic, name, queue, value, end))
            return f"{one[1]}{one[2]}{one[1]}{one[3]}{min(value, end)}"

        return f'"{topic}@{name}"{match[3]}{_QUEUE_OFFSET.sub(offset, match[4])}}}'

    def light(match: re.Match[str]) -> str:
        topic, name, value = match[1], match[2], int(match[4])
        end = ends.get((topic, 0), value)
        if end < value:
            lowered.append((topic, name, 0, value, end))
        return f'"{topic}@{name}"{match[3]}{min(value, end)}'

    text = _GROUP.sub(group, data.decode("utf-8", "surrogateescape"))
    return _LIGHT_OFFSET.sub(light, text).encode("utf-8", "surrogateescape"), lowered


_DELAY_TABLE = re.compile(rb'("offsetTable"\s*:\s*\{)([^{}]*)\}')
_DELAY_OFFSET = re.compile(rb'("?)(?<![0-9])([0-9]{1,10})\1(\s*:\s*)([0-9]{1,19})(?![0-9])')


def lower_delay_offsets(
    data: bytes, ends: Mapping[int, int]
) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Lower the offsets in ``config/delayOffset.json`` that exceed ``ends``, by delay level.

    Returns the bytes, and for each lowered offset its level, old and new value.
    """
    lowered: list[tuple[int, int, int]] = []

    def offset(one: re.Match[bytes]) -> bytes:
        level, value = int(one[2]), int(one[4])
        end = ends.get(level, value)
        if end < value:
            lowered.append((level, value, end))
        return b"%b%b%b%b%d" % (one[1], one[2], one[1], one[3], min(value, end))

    def table(match: re.Match[bytes]) -> bytes:
        return match[1] + _DELAY_OFFSET.sub(offset, match[2]) + b"}"

    return _DELAY_TABLE.sub(table, data, count=1), lowered


def decode_positions(data: bytes) -> dict[str, int]:
    """Decode ``compaction/position-checkpoint``.

    Returns the highest compacted queue offset, by ``TOPIC_QUEUE``.

    Returns an empty dict for an empty file; a broker then reads its ``.bak``.

    Raises:
        CorruptLog: the data is not JSON, or a value is not a number.
    """
    if not data.strip():
        return {}
    table = _member(_json(data), "queueOffsetMap")
    return {name: _number(value, f"position of {name}") for name, value in table.items()}


def position_name(topic: str, queue: int) -> str:
    """The name of a queue in ``position-checkpoint``."""
    return f"{topic}_{queue}"


def encode_positions(positions: Mapping[str, int]) -> bytes:
    """Encode the file ``position-checkpoint`` exactly as RocketMQ 5.5.0 does.

    The lines are indented by tabs and in the order of a Java map; the last has no newline.

    Args:
        positions: next offset by queue name. Queues that were read from the file come first, in
            the file's order, because the Java map's order depends on the order of insertion.
    """
    if not positions:
        return b'{\n\t"empty":true,\n\t"queueOffsetMap":{}\n}'
    lines = ",\n".join(
        f"\t\t{json.dumps(name)}:{positions[name]}" for name in java_order(positions)
    )
    return f'{{\n\t"empty":false,\n\t"queueOffsetMap":{{\n{lines}\n\t}}\n}}'.encode()


def java_order(names: Iterable[str]) -> list[str]:
    """Sort names in the order in which Java's ``ConcurrentHashMap`` iterates over them.

    The names were added one by one. The order is by bucket. The table doubles when it is three
    quarters full. Within a bucket, names are in insertion order until a doubling splits the bucket
    in two. The longest run of names at the bucket's end that go to the same new bucket keeps its
    order. Each other name is inserted at the front of its new bucket.
    """
    table: list[list[tuple[int, str]]] = [[] for _ in range(16)]
    count = 0
    for name in names:
        value = string_hash(name) & 0xFFFF_FFFF
        value ^= value >> 16
        table[value & len(table) - 1].append((value, name))
        count += 1
        if count >= len(table) * 3 // 4:
            table = _doubled(table)
    return [name for bucket in table for _, name in bucket]


def _doubled(table: list[list[tuple[int, str]]]) -> list[list[tuple[int, str]]]:
    bit = len(table)
    low: list[list[tuple[int, str]]] = []
    high: list[list[tuple[int, str]]] = []
    for bucket in table:
        tail = len(bucket)
        while tail > 0 and bucket[tail - 1][0] & bit == bucket[-1][0] & bit:
            tail -= 1
        moved: dict[bool, list[tuple[int, str]]] = {False: [], True: []}
        if bucket:
            moved[bool(bucket[-1][0] & bit)] = bucket[tail:]
        for entry in bucket[:tail]:
            moved[bool(entry[0] & bit)].insert(0, entry)
        low.append(moved[False])
        high.append(moved[True])
    return low + high


_BARE_NAME = re.compile(r'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(\s*:)', re.DOTALL)


def _json(data: bytes) -> Any:
    text = decode(bytes(data))
    try:
        return json.loads(_BARE_NAME.sub(_quoted, text))
    except json.JSONDecodeError as error:
        raise CorruptLog(
            f"the file is not valid JSON: {error.msg}", _byte_of(text, error.pos)
        ) from None
    except (ValueError, RecursionError) as error:
        raise CorruptLog(f"the file is not valid JSON: {error}") from None


def _byte_of(text: str, place: int) -> int:
    """The position in the file of a character that has position ``place`` in the parsed text.

    The parsed text has quotation marks around all member names; the file's ``text`` lacks some.
    """
    quotes = 0
    for match in _BARE_NAME.finditer(text):
        if match[3] is not None and match.start(3) + quotes < place:
            quotes += 2
    return len(text[: max(place - quotes, 0)].encode("utf-8", "surrogatepass"))


def _quoted(match: re.Match[str]) -> str:
    return match[1] if match[1] is not None else f'{match[2]}"{match[3]}"{match[4]}'


def _member(document: Any, name: str) -> dict[str, Any]:
    table = document.get(name) if isinstance(document, dict) else None
    if table is None and isinstance(document, dict):
        return {}
    if not isinstance(table, dict):
        raise CorruptLog(f"the JSON member {name} is not an object")
    return table


def _number(value: Any, what: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise CorruptLog(f"{what} is {value!r}, not an integer")
    return value
