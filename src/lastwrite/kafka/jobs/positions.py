"""Where consumer groups are, by the ``__consumer_offsets`` of log directories: what an archive takes
along.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

from lastwrite.errors import NotALog
from lastwrite.kafka.store.positions import positions_in
from lastwrite.model.log import TopicPartition
from lastwrite.storage.objects.address import is_address

# By partition and group: position, leader epoch before it or -1, the group's own word; None: gone.
Positions: TypeAlias = Mapping[TopicPartition, Mapping[str, tuple[int, int, str] | None]]


def positions_of(roots: Sequence[str]) -> Positions:
    """The positions that log roots know of; of groups that other brokers coordinate, none.

    Raises:
        LogError: some of them cannot be read.
    """
    found: dict[TopicPartition, dict[str, tuple[int, int, str] | None]] = {}
    for root in roots:
        if is_address(root) or not os.path.isdir(root):
            continue
        with suppress(NotALog):
            told = positions_in(root)
            gone = dict.fromkeys(told.gone)
            at = {place: commit[:3] for place, commit in told.known.items()}
            for place, position in {**gone, **at}.items():
                name = TopicPartition(place.topic, place.partition)
                found.setdefault(name, {})[place.group] = position
    return found
