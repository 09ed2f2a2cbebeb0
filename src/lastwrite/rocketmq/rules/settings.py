"""The settings that decide what compaction of a RocketMQ store does.

A broker has none that says when a queue is worth a run, how long a delete stays or what becomes of
messages without a key: it compacts whenever a closed file is dirty, and drops deletes and keyless
messages at once. Those are ours, under Kafka's names where Kafka has the same thing. The broker's
own names are accepted, so that its ``broker.conf`` can be given as it is; they have no effect: the
sizes of files are taken from the files.

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
    """What compaction obeys; dots become underscores.

    ``delete_retention_ms`` is Kafka's day, not the broker's nothing: a consumer that was away for
    less learns of every delete. It counts from the delete's own store time. ``keyless_messages`` is
    the broker's way, to drop them; its own compaction logs have none. ``undecodable_messages``: of
    those whose body does not decompress; the broker's run drops them and what comes after them in
    their file.

    Raises:
        InvalidConfig: a value is out of its range, or does not go with another.
    """

    # fmt: off
    min_cleanable_dirty_ratio: float = setting(0.5, "min.cleanable.dirty.ratio", 0, 1)
    min_compaction_lag_ms: int = setting(0, "min.compaction.lag.ms", 0)
    max_compaction_lag_ms: int = setting(LONG_MAX, "max.compaction.lag.ms", 1)
    delete_retention_ms: int = setting(_DAY, "delete.retention.ms", 0)
    keyless_messages: str = setting(DROP, "keyless.messages", choices=(DROP, KEEP), parse=lower_text)
    undecodable_messages: str = setting(REFUSE, "undecodable.messages", choices=(REFUSE, KEEP), parse=lower_text)
    unclean: bool = setting(False, "unclean")  # go on where a broker was not stopped in order
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
        """A compaction log is compacted: it knows no retention, and no other policy."""
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
