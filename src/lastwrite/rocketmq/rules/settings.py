"""The settings of a RocketMQ store's compaction.

A broker has no setting for when to compact a queue, how long to keep a delete, or what to do with
messages without a key. It compacts whenever a closed file is dirty, and drops deletes and keyless
messages at once. Lastwrite has settings for these, with Kafka's names if Kafka has the same
setting. The broker's own names are accepted without effect, so that its ``broker.conf`` can be used
unchanged. Sizes of files are taken from the files.

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
    """The settings of compaction; dots become underscores.

    ``delete_retention_ms`` is a day as in Kafka, while a broker drops deletes at once. A consumer
    that was offline for less than that sees every delete. It counts from the delete's own store
    time. ``keyless_messages`` drops them by default, as a broker does; its own compaction logs have
    none. ``undecodable_messages`` applies to messages whose body does not decompress; a broker's
    compaction drops them and the rest of their file.

    Raises:
        InvalidConfig: a value is out of its range, or contradicts another.
    """

    # fmt: off
    min_cleanable_dirty_ratio: float = setting(0.5, "min.cleanable.dirty.ratio", 0, 1)
    min_compaction_lag_ms: int = setting(0, "min.compaction.lag.ms", 0)
    max_compaction_lag_ms: int = setting(LONG_MAX, "max.compaction.lag.ms", 1)
    delete_retention_ms: int = setting(_DAY, "delete.retention.ms", 0)
    keyless_messages: str = setting(DROP, "keyless.messages", choices=(DROP, KEEP), parse=lower_text)
    undecodable_messages: str = setting(REFUSE, "undecodable.messages", choices=(REFUSE, KEEP), parse=lower_text)
    unclean: bool = setting(False, "unclean")  # continue although a broker was not stopped cleanly
    # fmt: on

    def __post_init__(self) -> None:
        SettingsTable.__post_init__(self)
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfig(
                f"min.compaction.lag.ms is {self.min_compaction_lag_ms}, "
                f"more than max.compaction.lag.ms, {self.max_compaction_lag_ms}",
                remedy="lower the first or raise the second",
            )

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        """A compaction log has no retention and no policy but compaction."""
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
