"""Requests for the objects of an AutoMQ bucket, and a cache of their indexes.

An object never changes, so its index is read once: by one ranged request for its tail, whose size
the metadata log states. A composite object is read whole, and its linked objects are checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from lastwrite.errors import (
    CommitConflict,
    CorruptLog,
    LogError,
    TruncatedLog,
    UnsupportedFormat,
)
from lastwrite.kafka.automq.cluster_image import COMPOSITE, ClusterImage
from lastwrite.kafka.automq.names import object_key
from lastwrite.kafka.automq.stored_objects import (
    COMPOSITE_MAGIC,
    FOOTER,
    NORMAL_MAGIC,
    Footer,
    IndexEntry,
    IndexTable,
    decode_footer,
    decode_index,
    decode_links,
)
from lastwrite.model.columns import ByteArray
from lastwrite.storage.objects.address import join, store_at

_REQUESTS_AT_ONCE = 32  # most parallel requests, which mostly wait for the store
_TAIL_BYTES = 64 << 10
_BUCKET_BITS = 0xFFFF
_AGAIN = "run the command again; read a copy of the bucket, or stop the cluster"


ObjectKeys = npt.NDArray[np.object_]  # an object's key for each entry
InputT = TypeVar("InputT")
ResultT = TypeVar("ResultT")


def in_parallel(action: Callable[[InputT], ResultT], values: Iterable[InputT]) -> Iterator[ResultT]:
    """Call ``action``, which sends a request, with each of ``values``; yield results in order.

    Results of at most 32 calls are in memory.
    """
    left = iter(values)
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "automq") as pool:
        ahead = deque(pool.submit(action, each) for each in islice(left, _REQUESTS_AT_ONCE))
        try:
            while ahead:
                result = ahead.popleft().result()
                ahead.extend(pool.submit(action, each) for each in islice(left, 1))
                yield result
        finally:
            for each in ahead:
                each.cancel()


class SecondLook(CommitConflict):
    """The cluster changed during a read, which must be repeated."""


class ObjectVanished(SecondLook):
    """An object that the metadata log lists as live does not exist.

    A running cluster deletes objects that it has replaced. If newer metadata lists the same object,
    it was lost. ``keys`` are the keys of all objects that were found missing.
    """

    keys: frozenset[str] = frozenset()

    @classmethod
    def of(cls, keys: Iterable[str], path: str) -> ObjectVanished:
        """The error for objects with these keys. ``path`` is the path or address of one of them."""
        error = cls("another program deleted the object during the command", None, path, _AGAIN)
        error.keys = frozenset(keys)
        return error


@dataclass(frozen=True, slots=True)
class ObjectIndex:
    """The index of an object, with a row of ``entries`` for each run of stream records.

    ``keys`` has the key of the object that contains each run. Unreadable runs are left out.
    ``problems`` has the reasons.
    """

    object_id: int
    entries: IndexTable  # sorted by stream and offset
    keys: tuple[str, ...]
    problems: tuple[LogError, ...] = ()

    @classmethod
    def of(
        cls,
        object_id: int,
        entries: IndexTable,
        keys: ObjectKeys,
        problems: Sequence[LogError] = (),
    ) -> ObjectIndex:
        """The index with these entries, in any order. ``keys`` has the key of each entry."""
        order = np.lexsort((entries["start_offset"], entries["stream_id"]))
        return cls(object_id, entries[order], tuple(keys[order]), tuple(problems))

    def of_stream(self, stream_id: int) -> list[tuple[str, IndexEntry]]:
        """The index entries of one stream, by offset.

        Each has the key of the object with its bytes.
        """
        begin, end = np.searchsorted(self.entries["stream_id"], [stream_id, stream_id + 1])
        return [
            (self.keys[n], IndexEntry._make(map(int, self.entries[n]))) for n in range(begin, end)
        ]


class BucketObjects:
    """The objects of a cluster in the bucket at ``address``.

    Args:
        lost: keys of objects that are known to be lost. Such an object is reported as damage, not
            as vanished.
    """

    def __init__(
        self, address: str, namespace: str, image: ClusterImage, lost: frozenset[str] = frozenset()
    ) -> None:
        self.address = address
        self._store, self._prefix = store_at(address)
        self._namespace, self._image, self._lost = namespace, image, lost
        self._indexes: dict[int, ObjectIndex] = {}
        live = (each for id, each in image.objects.items() if image.is_live(id))
        found = {each.bucket for each in live if each.bucket is not None}
        self._bucket = next(iter(found), None)
        if len(found) > 1:
            raise UnsupportedFormat(
                f"the cluster's objects are in the data buckets {sorted(found)}, and Lastwrite "
                "supports one data bucket",
                path=address,
                remedy="nothing was read; read the topics through a broker",
            )

    def key_of(self, object_id: int) -> str:
        """The key of an object."""
        return object_key(self._namespace, object_id)

    def path_of(self, key: str) -> str:
        """The path or address of an object, for messages."""
        return join(self.address, key)

    def indexes(self, object_ids: Iterable[int]) -> list[ObjectIndex]:
        """The indexes of objects, in the given order.

        Raises:
            ObjectVanished: an object does not exist.
            UnsupportedFormat: an object has an unknown format, or links to another bucket.
            RemoteFailed, LogError: the store does not answer.
        """
        wanted = [*object_ids]
        missing = [each for each in dict.fromkeys(wanted) if each not in self._indexes]
        if missing:
            vanished: list[ObjectVanished] = []
            for index in in_parallel(self._index_or_vanished, missing):
                if isinstance(index, ObjectVanished):
                    vanished.append(index)
                else:
                    self._indexes[index.object_id] = index
            if vanished:
                keys = (key for each in vanished for key in each.keys)
                raise ObjectVanished.of(keys, str(vanished[0].path)) from vanished[0]
        return [self._indexes[each] for each in wanted]

    @property
    def read_indexes(self) -> Iterable[ObjectIndex]:
        """The indexes that were read so far."""
        return self._indexes.values()

    def fetch(self, key: str, position: int, size_bytes: int) -> ByteArray:
        """A range of an object's bytes.

        Raises:
            ObjectVanished: the object does not exist.
            TruncatedLog: the object is too short.
        """
        content = np.empty(size_bytes, np.uint8)
        try:
            self._store.read_into(self._key(key), content, position)
        except LogError as error:
            # For a missing object, a bucket raises CommitConflict, and a folder any LogError.
            self._raise_missing(key, position + size_bytes, error)
        return content

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _raise_missing(self, key: str, wanted: int, cause: LogError) -> None:
        found = self._store.head(self._key(key))
        if found is None:
            raise self._absent(key) from cause
        if found.size_bytes < wanted:
            raise TruncatedLog(
                f"the object has only {found.size_bytes} of {wanted} bytes",
                found.size_bytes,
                self.path_of(key),
            ) from cause
        raise cause

    def _absent(self, key: str) -> LogError:
        """The error for a missing object: damage if the object is known to be lost."""
        if key in self._lost:
            return CorruptLog(
                "the object is missing, and the metadata log lists it as live",
                path=self.path_of(key),
            )
        return ObjectVanished.of([key], self.path_of(key))

    def _index_or_vanished(self, object_id: int) -> ObjectIndex | ObjectVanished:
        try:
            return self._read_index(object_id)
        except ObjectVanished as error:
            return error

    def _read_index(self, object_id: int) -> ObjectIndex:
        key, state = self.key_of(object_id), self._image.objects[object_id]
        try:
            if state.type == COMPOSITE:
                return self._read_composite(object_id, key)
            return self._read_normal(object_id, key, state.size_bytes)
        except UnsupportedFormat as error:
            raise error.located(self.path_of(key)) from error
        except CorruptLog as error:
            nothing = decode_index(b"", None)
            return ObjectIndex(object_id, nothing, (), (error.located(self.path_of(key)),))

    def _read_normal(self, object_id: int, key: str, size_bytes: int) -> ObjectIndex:
        if size_bytes < FOOTER.size:
            raise CorruptLog(f"the metadata log states a size of {size_bytes} bytes")
        tail = self.fetch(key, max(0, size_bytes - _TAIL_BYTES), min(size_bytes, _TAIL_BYTES))
        footer = self._footer(key, tail, size_bytes, NORMAL_MAGIC)
        at = footer.index_position - (size_bytes - len(tail))
        index = tail[at : at + footer.index_bytes] if at >= 0 else None
        if index is None:
            index = self.fetch(key, footer.index_position, footer.index_bytes)
        table = decode_index(index, footer.index_position)
        return ObjectIndex.of(object_id, table, np.full(len(table), key, object))

    def _footer(self, key: str, tail: ByteArray, size_bytes: int, magic: int) -> Footer:
        try:
            footer = decode_footer(tail, size_bytes)
        except CorruptLog as error:
            found = self._store.head(self._key(key))
            if found is None:
                raise self._absent(key) from error
            if found.size_bytes != size_bytes:
                raise CorruptLog(
                    f"the object has {found.size_bytes} bytes, and the metadata log states "
                    f"{size_bytes}"
                ) from error
            raise
        if footer.magic != magic:
            kinds = {NORMAL_MAGIC: "normal", COMPOSITE_MAGIC: "composite"}
            raise CorruptLog(
                f"the object is {kinds[footer.magic]}, and the metadata log states that it is "
                f"{kinds[magic]}",
                size_bytes - FOOTER.size,
            )
        return footer

    def _read_composite(self, object_id: int, key: str) -> ObjectIndex:
        found = self._store.get(self._key(key))
        if found is None:
            raise self._absent(key)
        content = np.frombuffer(found[0], np.uint8)
        footer = self._footer(key, content, len(content), COMPOSITE_MAGIC)
        begin, end = footer.index_position, footer.index_position + footer.index_bytes
        table = decode_index(content[begin:end], None)
        links = decode_links(content[:begin], len(table))
        for link in links:
            if self._bucket is not None and link.bucket_id & _BUCKET_BITS != self._bucket:
                raise UnsupportedFormat(
                    f"the composite object links to data bucket {link.bucket_id}, and the "
                    f"cluster's objects are in bucket {self._bucket}"
                )
        keys = np.empty(len(table), object)
        problems: list[LogError] = []
        for n, link in enumerate(links):
            until = links[n + 1].first_entry if n + 1 < len(links) else len(table)
            linked = self.key_of(link.object_id)
            problem = self._linked_problem(linked, table[link.first_entry : until])
            keys[link.first_entry : until] = linked if problem is None else None
            problems += [] if problem is None else [problem]
        kept = np.array([key is not None for key in keys], bool)
        return ObjectIndex.of(object_id, table[kept], keys[kept], problems)

    def _linked_problem(self, key: str, entries: IndexTable) -> LogError | None:
        """The damage of a linked object that makes entries of a composite object unreadable."""
        found = self._store.head(self._key(key))
        if found is None:
            error = self._absent(key)
            if isinstance(error, ObjectVanished):
                raise error
            return error
        end = int((entries["position"] + entries["size_bytes"]).max(initial=0))
        if end > found.size_bytes - FOOTER.size:
            return TruncatedLog(
                f"the object has only {found.size_bytes} bytes, and a composite object states "
                f"data up to byte {end}",
                found.size_bytes,
                self.path_of(key),
            )
        return None
