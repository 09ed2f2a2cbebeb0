"""Join messages that were sent in chunks, as a consumer does.

Each chunk is a separate entry with the message's uuid, the chunk's number and the number of chunks.
Chunks of several messages may be interleaved. The chunks of one message are a *group*, which begins
with chunk 0. A duplicate chunk is skipped. A chunk after a gap ends its group, because the missing
chunk will not arrive. If more groups are open than a consumer keeps, the oldest is dropped. The
message has the id and the metadata of its last chunk.

Source: Pulsar 4.2.4 ``ConsumerImpl.processMessageChunk``; docs/formats/pulsar-compaction.md, "A
round".
"""

from __future__ import annotations

from dataclasses import replace

from lastwrite.errors import OutOfMemoryBudget
from lastwrite.pulsar.format.entry import Entry

MOST_GROUPS = 10  # maximum number of open groups, as maxPendingChunkedMessage in the Java client


class ChunkGroups:
    """Incomplete chunked messages. Together they keep up to ``limit_bytes`` of payloads."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        # payloads by uuid, in the order of the first chunks
        self._groups: dict[str, list[bytes]] = {}
        self._held_bytes = 0
        self.dropped = 0  # number of chunks of messages that are never complete

    def add(self, entry: Entry) -> Entry | None:
        """Add the next chunk.

        Returns the message when it is complete, as an entry with the id of the last chunk.

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
        self._held_bytes += len(entry.payload)
        if self._held_bytes > self._limit:
            raise OutOfMemoryBudget(
                f"the incomplete chunked messages have more than {self._limit} bytes"
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
            self._held_bytes -= sum(map(len, parts))
            self.dropped += len(parts) if counts else 0
