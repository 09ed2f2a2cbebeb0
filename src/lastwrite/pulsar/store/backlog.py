"""The raw ledgers of a topic, as input for the backlog rules."""

from __future__ import annotations

from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.rules.backlog import RawSegment
from lastwrite.pulsar.store.topic import TopicFolder


def raw_ledgers(topic: TopicFolder) -> list[RawSegment]:
    """The ledgers in the topic's own list, or without a list the ledgers in the folder.

    Sizes are bytes of entries. Only the list has the time when a ledger was closed.
    """
    here = {ledger.id: ledger for ledger in topic.ledgers}
    if topic.info is None or not topic.info.ledgers:
        ends = [Position(each.id, each.entries).offset for each in topic.ledgers]
        return [
            RawSegment(f"ledger {each.id}", end, each.metadata.length, None)
            for each, end in zip(topic.ledgers, ends, strict=True)
        ]
    found = []
    for info in topic.info.ledgers:
        known = here.get(info.ledger)
        entries, size = info.entries, info.size_bytes
        if known is not None:
            entries = max(known.entries, entries or 0)
            size = max(known.metadata.length, size or 0)
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
