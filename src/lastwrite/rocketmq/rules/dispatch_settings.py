"""The settings of RocketMQ's dispatch, with the broker's names, defaults and units.

A size setting is used only if no file exists; otherwise the files determine the size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from lastwrite.config.cleaner import CLEANER_NAMES
from lastwrite.config.declaration import INT_MAX, SettingsTable, setting
from lastwrite.config.stores import STORE_NAMES
from lastwrite.errors import InvalidConfig
from lastwrite.rocketmq.rules.broker_names import BROKER_NAMES

_DELAY_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# Broker settings, each with the only value that dispatch supports.
_MUST_BE = {
    "storeType": "default",
    "enableConsumeQueueExt": "false",
    "enableDLegerCommitLog": "false",
    "rocksdbCQDoubleWriteEnable": "false",
    "indexRocksDBEnable": "false",
    "transRocksDBEnable": "false",
}


@dataclass(frozen=True, kw_only=True)
class DispatchConfig(SettingsTable):
    """A broker's settings for dispatch.

    None means the value of the existing files, or else the broker's default. ``index.tags`` is a
    setting of Lastwrite. Set it to false for a broker before 5.5.0, which does not index tags.
    Light queues are built if records name them; only a broker with ``enableLmq`` writes such
    records. With ``enableMultiDispatch=false`` no light queues are built.

    Source: RocketMQ 5.5.0 ``MessageStoreConfig``; docs/formats/rocketmq-compaction.md, "Settings".
    """

    # size of a consume queue file
    consume_queue_bytes: int | None = setting(None, "mappedFileSizeConsumeQueue", 1, INT_MAX)
    # size of a file of a batch consume queue
    batch_queue_bytes: int | None = setting(None, "mapperFileSizeBatchConsumeQueue", 1, INT_MAX)
    # number of slots of an index file
    index_slots: int | None = setting(None, "maxHashSlotNum", 1, INT_MAX)
    # number of entries of an index file
    index_entries: int | None = setting(None, "maxIndexNum", 1, INT_MAX)
    # size of a compaction log file
    compaction_bytes: int | None = setting(None, "compactionMappedFileSize", 1, INT_MAX)
    # size of an index file of a compaction log
    compaction_cq_bytes: int | None = setting(None, "compactionCqMappedFileSize", 1, INT_MAX)
    # whether index files are built
    has_index: bool = setting(True, "messageIndexEnable")
    # Lastwrite's own: whether the index contains tags; false for brokers before 5.5.0
    index_tags: bool = setting(True, "index.tags")
    # whether compaction logs are built
    has_compaction: bool = setting(True, "enableCompaction")
    # whether light queues (%LMQ%…) are built
    has_light_queues: bool = setting(True, "enableMultiDispatch")
    # whether the number of a light queue is always 0; false: the number of the record's queue
    light_at_zero: bool = setting(True, "enableLmq")
    # delays of the delay levels, such as 1s 5s 10s; default: the broker's
    delay_levels: str = setting("", "messageDelayLevel")
    # folders of the commit log, separated by commas
    commit_log_folders: str = setting("", "storePathCommitLog")
    # folders of the commit log to which the broker does not append
    read_only_folders: str = setting("", "readOnlyCommitLogStorePaths")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.delays_ms()

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        return name in BROKER_NAMES or name in CLEANER_NAMES or name in STORE_NAMES

    @classmethod
    def similar(cls) -> Iterable[str]:
        return [*cls.field_of(), *STORE_NAMES, *_MUST_BE]

    @classmethod
    def from_names(cls, names: Mapping[str, object]) -> Self:
        """Parse settings like ``SettingsTable.from_names``, and ignore unrelated broker settings.

        Raises:
            InvalidConfig: a setting is invalid, or enables a feature that dispatch does not
                support.
        """
        for name in _MUST_BE.keys() & names.keys():
            text = str(names[name]).strip()
            if text.lower() != _MUST_BE[name].lower():
                raise InvalidConfig(
                    f"{name} is {text}, and dispatch does not support that setting; nothing was "
                    "changed",
                    remedy="move the damaged files out of the store, keep them, and start the "
                    "broker, which rebuilds them",
                )
        return super().from_names(names)

    def delays_ms(self) -> tuple[int, ...]:
        """The delay of each level in ms, level 1 first.

        Raises:
            InvalidConfig: messageDelayLevel is not a list of times.
        """
        levels = []
        for text in (self.delay_levels or DEFAULT_DELAY_LEVELS).split():
            if text[-1:] not in _DELAY_UNITS or not text[:-1].isdigit():
                raise InvalidConfig(
                    f"messageDelayLevel contains {text!r}, which is not a duration",
                    remedy="give durations such as 10s 5m 2h, separated by blanks",
                )
            levels.append(int(text[:-1]) * _DELAY_UNITS[text[-1]])
        return tuple(levels)


DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
