"""Settings from a file, which may be the complete settings file of a broker or a client."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from lastwrite.config.cleaner import CleanerConfig
from lastwrite.config.stores import STORE_NAMES
from lastwrite.kafka.rules.live_settings import CLIENT_NAMES
from lastwrite.kafka.rules.serve_settings import SERVE_NAMES
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.pulsar.rules.live_settings import LIVE_NAMES
from lastwrite.pulsar.rules.settings import PulsarConfig
from lastwrite.rocketmq.rules.dispatch_settings import DispatchConfig
from lastwrite.rocketmq.rules.settings import RocketmqConfig

_TABLES = (KafkaTopicConfig, RocketmqConfig, DispatchConfig, PulsarConfig)
_MOST = 8  # maximum number of unknown names in the note


def split_known_settings(
    names: Mapping[str, object], path: str
) -> tuple[dict[str, object], str | None]:
    """The known settings of a file, and a note on its unknown settings.

    An unknown name is not an error, because a broker's file may contain settings of its plugins,
    its version or its vendor. If the name resembles a known name, the note suggests that name. The
    note is None if all names are known.
    """
    with_effect = sorted(
        {*CleanerConfig.field_of(), *STORE_NAMES, *LIVE_NAMES, *CLIENT_NAMES, *SERVE_NAMES}.union(
            *(table.field_of() for table in _TABLES)
        )
    )
    known = {
        name: value
        for name, value in names.items()
        if name in with_effect or any(table.has_no_effect(name) for table in _TABLES)
    }
    slips: list[str] = []
    others: list[str] = []
    for name in names.keys() - known.keys():
        nearest = get_close_matches(name, with_effect, 1, 0.85)
        (slips if nearest else others).append(
            f"{name} (did you mean {nearest[0]}?)" if nearest else name
        )
    if not slips and not others:
        return known, None
    said = [*sorted(slips), *sorted(others)]
    more = f" and {len(said) - _MOST:,} more" if len(said) > _MOST else ""
    return known, (f"{path}: Lastwrite ignores unknown settings: {', '.join(said[:_MOST])}{more}")
