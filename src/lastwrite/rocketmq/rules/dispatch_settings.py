"""The settings that decide what RocketMQ's dispatch makes, under the broker's names, defaults and units.

File sizes are those of the files that are there; a setting speaks only where there is none.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from lastwrite.compaction.rocketmq_settings import BROKER_NAMES
from lastwrite.errors import InvalidConfig

_INT_MAX = 2**31 - 1
_DELAY_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# Names that a broker's own properties may hold and that dispatch has no use for, with what they must be.
_MUST_BE = {
    "storeType": "default",
    "enableConsumeQueueExt": "false",
    "enableMultiDispatch": "false",
    "enableDLegerCommitLog": "false",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """What a broker's settings say to dispatch. None: the files decide, or else the broker's default.

    One is ours: ``index.tags``, false for a store of a broker before 5.5.0, which does not enter tags into the index.

    Source: RocketMQ 5.5.0 ``MessageStoreConfig``; spec/rocketmq.md section 18.
    """

    consume_queue_bytes: int | None = field(
        default=None, metadata={"name": "mappedFileSizeConsumeQueue"}
    )
    batch_queue_bytes: int | None = field(
        default=None, metadata={"name": "mapperFileSizeBatchConsumeQueue"}
    )
    index_slots: int | None = field(default=None, metadata={"name": "maxHashSlotNum"})
    index_entries: int | None = field(default=None, metadata={"name": "maxIndexNum"})
    compaction_bytes: int | None = field(
        default=None, metadata={"name": "compactionMappedFileSize"}
    )
    compaction_cq_bytes: int | None = field(
        default=None, metadata={"name": "compactionCqMappedFileSize"}
    )
    has_index: bool = field(default=True, metadata={"name": "messageIndexEnable"})
    index_tags: bool = field(default=True, metadata={"name": "index.tags"})
    has_compaction: bool = field(default=True, metadata={"name": "enableCompaction"})
    delay_levels: str = field(default="", metadata={"name": "messageDelayLevel"})
    commit_log_folders: str = field(default="", metadata={"name": "storePathCommitLog"})
    read_only_folders: str = field(default="", metadata={"name": "readOnlyCommitLogStorePaths"})

    @classmethod
    def from_names(cls, names: Mapping[str, object]) -> DispatchConfig:
        """The config that the broker's ``names`` make; those of its settings that change nothing here are passed over.

        Raises:
            InvalidConfig: an unknown name, a value of another type or out of its range, or a feature that dispatch
                does not build.
        """
        known = {str(entry.metadata["name"]): entry for entry in fields(cls)}
        values: dict[str, object] = {}
        for name, given in names.items():
            text = str(given).strip()
            if name in _MUST_BE:
                if text.lower() != _MUST_BE[name].lower():
                    raise InvalidConfig(
                        f"{name} is {text}: what a broker builds then is not dispatched here",
                        remedy="start the broker on the store without these files and let it build them",
                    )
                continue
            entry = known.get(name)
            if entry is None and name in BROKER_NAMES:
                continue
            if entry is None:
                near = difflib.get_close_matches(name, [*known, *_MUST_BE], 1)
                raise InvalidConfig(
                    f"no setting is named {name!r}",
                    remedy=f"did you mean {near[0]}?"
                    if near
                    else f"those that have an effect: {', '.join(known)}",
                )
            if isinstance(entry.default, bool):
                values[entry.name] = _flag(name, text)
            elif isinstance(entry.default, str):
                values[entry.name] = text
            else:
                values[entry.name] = _whole(name, text)
        config = cls(**values)  # type: ignore[arg-type]
        config.delays_ms()
        return config

    def delays_ms(self) -> tuple[int, ...]:
        """How long a message of each level waits, level 1 first.

        Raises:
            InvalidConfig: messageDelayLevel is no list of times.
        """
        levels = []
        for text in (self.delay_levels or DEFAULT_DELAY_LEVELS).split():
            if text[-1:] not in _DELAY_UNITS or not text[:-1].isdigit():
                raise InvalidConfig(
                    f"messageDelayLevel holds {text!r}", remedy="times such as 10s 5m 2h, by blanks"
                )
            levels.append(int(text[:-1]) * _DELAY_UNITS[text[-1]])
        return tuple(levels)


DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def _whole(name: str, text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= _INT_MAX:
        raise InvalidConfig(f"{name} is a whole number from 1 to {_INT_MAX}, not {text!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InvalidConfig(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"
