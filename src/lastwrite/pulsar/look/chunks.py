"""Join messages that were sent in chunks, as a consumer does.

Each chunk is an entry of its own. It has the message's uuid, its number and the number of chunks.
Chunks of several messages may be interleaved. A group begins with chunk 0. A chunk that was
received before is skipped. A chunk after a gap ends its group, because the missing one will not
arrive. If more groups are open than a consumer keeps, the oldest is dropped. The message has the id
and the metadata of its last chunk.

Source: Pulsar 4.2.4 ``ConsumerImpl.processMessageChunk``; docs/formats/pulsar-compaction.md, "A
round".
"""

from __future__ import annotations

from dataclasses import replace

from lastwrite.errors import OutOfMemoryBudget
from lastwrite.pulsar.format.entry import Entry

MOST_GROUPS = 10  # maxPendingChunkedMessage of the stock client


class ChunkGroups:
    """Incomplete messages, with up to ``limit_bytes`` of payloads in all."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._groups: dict[str, list[bytes]] = {}  # in the order of their first chunks
        self._held = 0
        self.dropped = 0  # chunks of messages that are never complete

    def add(self, entry: Entry) -> Entry | None:
        """Add the next chunk.

        Returns the message once complete, as an entry with its last chunk's id.

        Raises:
            OutOfMemoryBudget: the groups exceed the limit.
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
            raise OutOfMemoryBudget(
                f"incomplete messages in chunks have more than {self._limit} bytes"
            )
        if len(parts) < count:
            return None
        whole = replace(entry, payload=b"".join(parts))
        self._drop(uuid, counts=False)
        return whole

    @property
    def incomplete(self) -> int:
        """The number of groups without their last chunk."""
        return len(self._groups)

    def _drop(self, uuid: str, counts: bool = True) -> None:
        parts = self._groups.pop(uuid, None)
        if parts is not None:
            self._held -= sum(map(len, parts))
            self.dropped += len(parts) if counts else 0
