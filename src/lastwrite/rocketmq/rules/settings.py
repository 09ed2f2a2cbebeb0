"""The settings of a RocketMQ store's compaction.

A broker has no settings for when to compact a queue, how long to keep deletes, or whether to keep
messages without a key. It compacts whenever a closed file is dirty, and drops deletes and keyless
messages at once. Lastwrite has such settings, with Kafka's names if Kafka has the same setting. The
broker's settings are accepted without effect, so that its ``broker.conf`` can be used unchanged.
New files have the sizes of the existing files.

Source: RocketMQ 5.5.0 MessageStoreConfig, BrokerConfig; docs/formats/rocketmq-compaction.md, "A
run" and "Settings".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lastwrite.config.cleaner import CLEANER_NAMES
from lastwrite.config.declaration import SettingsTable, lower_text, setting
from lastwrite.config.stores import STORE_NAMES
from lastwrite.errors import InvalidConfig
from lastwrite.model.policy import LONG_MAX
from lastwrite.rocketmq.rules.broker_names import BROKER_NAMES

_DAY = 86_400_000
DROP, KEEP, REFUSE = "drop", "keep", "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class RocketmqConfig(SettingsTable):
    """The settings of compaction; dots in a setting's name become underscores.

    ``delete_retention_ms`` counts from the delete's store time. The default is a day, as in Kafka,
    so that a consumer that is offline for less than a day receives every delete. By default
    ``keyless_messages`` drops messages without a key, as a broker does; a compaction log that a
    broker wrote has none. ``undecodable_messages`` applies to messages whose body does not
    decompress; a broker's compaction drops such a message and the rest of its file.

    Raises:
        InvalidConfig: a value is out of its range, or min.compaction.lag.ms is above the maximum.
    """

    # a queue is cleaned if the dirty share of its bytes is above this ratio
    min_cleanable_dirty_ratio: float = setting(0.5, "min.cleanable.dirty.ratio", 0, 1)
    # a file with a younger message is not cleaned yet
    min_compaction_lag_ms: int = setting(0, "min.compaction.lag.ms", 0)
    # a queue with an older dirty message is cleaned at any dirty ratio
    max_compaction_lag_ms: int = setting(LONG_MAX, "max.compaction.lag.ms", 1)
    # time from the store time of a delete to its removal
    delete_retention_ms: int = setting(_DAY, "delete.retention.ms", 0)
    # whether messages without a key are dropped or kept
    keyless_messages: str = setting(
        DROP, "keyless.messages", choices=(DROP, KEEP), parse=lower_text
    )
    # if a message's body does not decompress: leave the queue uncompacted, or keep the message
    undecodable_messages: str = setting(
        REFUSE, "undecodable.messages", choices=(REFUSE, KEEP), parse=lower_text
    )
    # continue although a broker was not stopped cleanly
    unclean: bool = setting(False, "unclean")

    def __post_init__(self) -> None:
        SettingsTable.__post_init__(self)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms is {self.min_compaction_lag_ms}, which is more than "
                f"max.compaction.lag.ms, {self.max_compaction_lag_ms}",
                remedy="lower min.compaction.lag.ms, or raise max.compaction.lag.ms",
            )

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        """Always ``compact``: a compaction log has no retention."""
        return ("compact",)

    @property
    def compacts(self) -> bool:
        return True

    @classmethod
    def has_no_effect(cls, name: str) -> bool:
        return name in BROKER_NAMES or name in CLEANER_NAMES or name in STORE_NAMES

    @classmethod
    def similar(cls) -> Iterable[str]:
        return [*cls.field_of(), *CLEANER_NAMES, *STORE_NAMES, *BROKER_NAMES]
