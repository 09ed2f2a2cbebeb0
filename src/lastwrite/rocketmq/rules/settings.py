"""The settings that decide what compaction of a RocketMQ store does.

A broker has none that says when a queue is worth a run, how long a delete stays or what becomes of messages without a
key: it compacts whenever a closed file is dirty, and drops deletes and keyless messages at once. Those are ours, under
Kafka's names where Kafka has the same thing. The broker's own names are accepted, so that its ``broker.conf`` can be
given as it is; they have no effect: the sizes of files are taken from the files.

Source: RocketMQ 5.5.0 MessageStoreConfig, BrokerConfig; spec/rocketmq.md sections 13 and 18.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lastwrite.compaction.named_settings import (
    LONG_MAX,
    Setting,
    check,
    given,
    parse_flag,
    parse_number,
    setting,
)
from lastwrite.errors import InvalidConfig

_DAY = 86_400_000
DROP, KEEP = "drop", "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketmqConfig:
    """What compaction obeys; dots become underscores.

    ``delete_retention_ms`` is Kafka's day, not the broker's nothing: a consumer that was away for less learns of every
    delete. It counts from the delete's own store time. ``keyless_messages`` is the broker's way, to drop them; its own
    compaction logs have none.

    Raises:
        InvalidConfig: a value is out of its range, or does not go with another.
    """

    min_cleanable_dirty_ratio: float = setting(0.5, "min.cleanable.dirty.ratio", 0, 1)
    min_compaction_lag_ms: int = setting(0, "min.compaction.lag.ms", 0)
    max_compaction_lag_ms: int = setting(LONG_MAX, "max.compaction.lag.ms", 1)
    delete_retention_ms: int = setting(_DAY, "delete.retention.ms", 0)
    keyless_messages: str = setting(DROP, "keyless.messages", choices=(DROP, KEEP))
    unclean: bool = setting(False, "unclean")  # go on where a broker was not stopped in order

    def __post_init__(self) -> None:
        for name, known in _SETTINGS.items():
            check(known, getattr(self, name), known.names[0][0])
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms is {self.min_compaction_lag_ms}, "
                f"more than max.compaction.lag.ms, {self.max_compaction_lag_ms}",
                remedy="lower the first or raise the second",
            )

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        """What lies in a compaction log is compacted: there is no retention for it, and no other policy."""
        return ("compact",)

    @property
    def compacts(self) -> bool:
        return True

    @classmethod
    def from_names(cls, names: Mapping[str, object]) -> RocketmqConfig:
        """The config that ``names`` and values (text, or already of the right type) make.

        Raises:
            InvalidConfig: no setting has the name, or the value is of another type or out of range.
        """
        for name in names:
            if name not in _FIELD_OF and name not in _WITHOUT_EFFECT:
                raise _unknown(name)
        return cls(
            **{
                field: _parse(field, name, value)
                for field, name, value, _ in given(_SETTINGS, names)
            }
        )


_SETTINGS: dict[str, Setting] = {f.name: f.metadata["setting"] for f in fields(RocketmqConfig)}
_FIELD_OF = {name: field_name for field_name, known in _SETTINGS.items() for name, _ in known.names}
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(RocketmqConfig)}

# The broker's, which change nothing here; those of our cleaner's speed are read by ``cleaner_settings``.
_WITHOUT_EFFECT = frozenset(
    """
accessMessageInMemoryMaxRatio aclEnable autoCreateSubscriptionGroup autoCreateTopicEnable autoMessageVersionOnTopicLen
bindAddress bitMapLengthConsumeQueueExt brokerClusterName brokerId brokerIP1 brokerIP2 brokerName brokerPermission
brokerRole checkCRCOnRecover checkCommitLogOffsetOnRecover commitLogRecoverMaxNum compactionCqMappedFileSize
compactionMappedFileSize compactionScheduleInternal compactionThreadNum defaultTopicQueueNums deleteWhen
diskMaxUsedSpaceRatio enableCompaction enableConsumeQueueExt enablePropertyFilter enabledAppendPropCRC fileReservedTime
flushCommitLogLeastPages flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval flushDiskType
flushIntervalCommitLog flushIntervalConsumeQueue forceVerifyPropCRC haListenPort haMasterAddress indexFileReadEnable
indexFileWriteEnable indexRocksDBEnable listenPort log.cleaner.io.max.bytes.per.second
mappedFileSizeCommitLog mappedFileSizeConsumeQueue mappedFileSizeConsumeQueueExt mapperFileSizeBatchConsumeQueue
maxHashSlotNum maxIndexNum maxMessageSize maxOffsetMapSize maxTransferBytesOnMessageInDisk
maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory messageDelayLevel
messageIndexEnable namesrvAddr offsetCheckInSlave putConsumeQueueDataByFileChannel readOnlyCommitLogStorePaths
rocketmqHome searchBcqByCacheEnable sendMessageThreadPoolNums sharedByteBufferNum storePathCommitLog storePathRootDir
storeType timerRocksDBEnable traceTopicEnable transRocksDBEnable transferMsgByHeap transientStorePoolEnable
travelCqFileNumWhenGetMessage useReentrantLockWhenPutMessage warmMapedFileEnable writeWithoutMmap
""".split()
)


BROKER_NAMES = _WITHOUT_EFFECT  # of a broker.conf, which may be given as it is


def _unknown(name: str) -> InvalidConfig:
    nearest = difflib.get_close_matches(name, [*_FIELD_OF, *_WITHOUT_EFFECT], 1, 0.6)
    remedy = (
        f"did you mean {nearest[0]}?"
        if nearest
        else f"those that have an effect: {', '.join(_FIELD_OF)}"
    )
    return InvalidConfig(f"no setting is named {name!r}", remedy=remedy)


def _parse(field_name: str, name: str, value: object) -> Any:
    default = _DEFAULTS[field_name]
    parsed: Any
    if isinstance(default, bool):
        return parse_flag(name, value)
    if isinstance(default, str):
        parsed = str(value).strip().lower()
    else:
        parsed = parse_number(name, value, whole=isinstance(default, int))
    check(_SETTINGS[field_name], parsed, name)
    return parsed
