"""Messages that were sent in parts, put together as a consumer does.

Each part (*chunk*) is an entry of its own and says which message it is of (a uuid), its number and
how many there are. Parts of several messages may lie between each other. A group begins with part
0; a part that is there already is passed over; one that leaves a gap ends its group, for what is
missing will not come. Where more groups are open than a consumer keeps, the oldest goes. The
message has the id of its last part, and what it says of itself is that part's.

Source: Pulsar 4.2.4 ``ConsumerImpl.processMessageChunk``; docs/formats/pulsar-compaction.md, "A
round".
"""

from __future__ import annotations

from dataclasses import replace

from lastwrite.errors import OutOfMemoryBudget
from lastwrite.pulsar.format.entry import Entry

MOST_GROUPS = 10  # maxPendingChunkedMessage of the stock client


class ChunkGroups:
    """Messages that have come in part, with up to ``limit_bytes`` of payloads in all."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._groups: dict[str, list[bytes]] = {}  # in the order in which they began
        self._held = 0
        self.dropped = 0  # parts of messages that nobody gets

    def add(self, entry: Entry) -> Entry | None:
        """Take in the next part; the whole message, as an entry with its last part's id, where it
        is complete.

        Raises:
            OutOfMemoryBudget: the groups hold more than the limit.
        """
        meta = entry.metadata
        uuid, number, count = meta.uuid or "", meta.chunk_id or 0, meta.num_chunks_from_msg or 1
        if number == 0:
            self._drop(uuid)
            self._groups[uuid] = []
            if len(self._groups) > MOST_GROUPS:
                self._drop(next(iter(self._groups)))
        parts = self._groups.get(uuid)
        if parts is None or number != len(parts):
            if parts is None or number > len(parts):
                self._drop(uuid)
                self.dropped += 1
            return None
        parts.append(entry.payload)
        self._held += len(entry.payload)
        if self._held > self._limit:
            raise OutOfMemoryBudget(f"messages in parts hold more than {self._limit} bytes")
        if len(parts) < count:
            return None
        whole = replace(entry, payload=b"".join(parts))
        self._drop(uuid, counts=False)
        return whole

    @property
    def incomplete(self) -> int:
        """Groups whose last part has not come."""
        return len(self._groups)

    def _drop(self, uuid: str, counts: bool = True) -> None:
        parts = self._groups.pop(uuid, None)
        if parts is not None:
            self._held -= sum(map(len, parts))
            self.dropped += len(parts) if counts else 0
