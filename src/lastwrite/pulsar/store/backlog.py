"""The raw ledgers of a topic, as the rules of a backlog see them."""

from __future__ import annotations

from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.rules.backlog import RawSegment
from lastwrite.pulsar.store.topic import list_topic


def raw_ledgers(folder: str) -> list[RawSegment]:
    """Those that the topic's own list has, whether they are here or not; without such a list those
    that are here.

    The sizes are of the entries. When a ledger was closed only the list says.

    Raises:
        LogError: the folder or a file cannot be read.
    """
    topic = list_topic(folder)
    here = {ledger.id: ledger for ledger in topic.ledgers}
    if topic.info is None or not topic.info.ledgers:
        return [
            RawSegment(
                f"ledger {each.id}",
                Position(each.id, each.entries).offset,
                each.metadata.length,
                None,
            )
            for each in topic.ledgers
        ]
    found = []
    for info in topic.info.ledgers:
        known = here.get(info.ledger)
        entries = info.entries if info.entries is not None or known is None else known.entries
        size = (
            info.size_bytes
            if info.size_bytes is not None or known is None
            else known.metadata.length
        )
        found.append(
            RawSegment(
                f"ledger {info.ledger}",
                Position(info.ledger, entries or 0).offset,
                size or 0,
                info.closed_ms or None,
                is_open=not info.is_closed,
            )
        )
    return found
