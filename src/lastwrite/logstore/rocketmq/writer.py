"""A compaction log laid out anew from records, as a broker appends them.

Records come in the order of their queue offsets and go one behind another into files of the log's size, each with its
unit in the index file of the same name. A record that would leave no room for a blank record of 8 bytes, or whose unit
would take the index's last slot, begins the next pair; the pair before it is closed by a blank record and an end unit.
Bytes stay as they are but for the address, which becomes the record's place here.

The last pair stays open: zeros follow its records, and a broker appends there.

Source: RocketMQ 5.5.0 ``CompactionLog``, ``SparseConsumeQueue``; spec/rocketmq.md sections 10 and 11.
"""

from __future__ import annotations

import os
from io import FileIO

from lastwrite.errors import InvalidConfig
from lastwrite.formats.rocketmq.kernels import MessageTable
from lastwrite.formats.rocketmq.names import file_name
from lastwrite.formats.rocketmq.record import BLANK, BLANK_BYTES, MAGIC_BLANK, PHYSICAL_OFFSET_AT
from lastwrite.formats.rocketmq.units import BATCH_UNIT, END_UNIT
from lastwrite.logstore import files
from lastwrite.logstore.aside import changing
from lastwrite.logstore.rocketmq.publish import Pair
from lastwrite.model.columns import ByteArray

_BUFFER_BYTES = 4 << 20
_ADDRESS_BYTES = 8


class QueueWriter:
    """Appends records to new pairs of files in ``folder``, named from 0 on; nothing is synced.

    ``log_bytes`` and ``index_bytes``: of each file, as ``names.log_sizes`` gives them. Holds one file's index and a few
    MiB of log.
    """

    def __init__(self, folder: str, log_bytes: int, index_bytes: int) -> None:
        self.end_offset = 0  # behind the last record
        self.records = 0
        self.bytes = 0  # of records
        self._folder = folder
        self._log_bytes, self._index_bytes = log_bytes, index_bytes
        self._pairs: list[Pair] = []
        self._file: FileIO | None = None
        self._start = 0  # the address of the file being written
        self._size = 0  # of what is in it, written or waiting
        self._waiting = bytearray()
        self._units = bytearray()

    def append(self, data: ByteArray, table: MessageTable) -> int:
        """Append the records of ``table``, whose bytes lie in ``data``; how many of them were taken.

        As a broker does, it passes over a record without a key, and one whose offset is not above all before it.

        Raises:
            InvalidConfig: a record that fits no file of this size.
            LogError: what the system refuses.
        """
        taken = 0
        columns = ("position", "size", "queue_offset", "store_time", "tags_code", "key_length")
        for position, size, offset, stored, tags, key_length in zip(
            *(table[name].tolist() for name in columns), strict=True
        ):
            if offset < self.end_offset or key_length < 0:
                continue
            self._make_room(size)
            address = self._start + self._size
            at = len(self._waiting)
            self._waiting += data[position : position + size].data
            place = at + PHYSICAL_OFFSET_AT
            self._waiting[place : place + _ADDRESS_BYTES] = address.to_bytes(_ADDRESS_BYTES, "big")
            self._units += BATCH_UNIT.pack(address, size, tags, stored, offset, 1, -1, 0)
            self._size += size
            self.end_offset = offset + 1
            self.bytes += size
            taken += 1
            if len(self._waiting) >= _BUFFER_BYTES:
                self._flush()
        self.records += taken
        return taken

    def finish(self) -> list[Pair]:
        """Write what waits, bring both files to their size, and say what was made, in order."""
        if self._file is not None:
            self._end_pair()
        return self._pairs

    def abandon(self) -> None:
        """Remove what was written."""
        if self._file is not None:
            self._file.close()
            self._file = None
        for pair in self._pairs:
            for path in (pair.log_path, pair.index_path):
                if os.path.lexists(path):
                    files.unlink(path)

    def _make_room(self, size: int) -> None:
        if size + BLANK_BYTES > self._log_bytes or 2 * BATCH_UNIT.size > self._index_bytes:
            raise InvalidConfig(
                f"a record of {size:,} bytes fits no file of {self._log_bytes:,}", path=self._folder,
                remedy="give compactionMappedFileSize and compactionCqMappedFileSize as the broker has them",
            )  # fmt: skip
        if self._file is not None:
            room = self._log_bytes - self._size
            if size + BLANK_BYTES <= room and len(self._units) + BATCH_UNIT.size < self._index_bytes:
                return
            self._waiting += BLANK.pack(room, MAGIC_BLANK)
            self._units += END_UNIT
            self._end_pair()
            self._start += self._log_bytes
        self._begin_pair()

    def _begin_pair(self) -> None:
        name = file_name(self._start)
        pair = Pair(name, *(os.path.join(self._folder, f"{name}.{kind}") for kind in ("log", "index")))
        self._pairs.append(pair)
        with changing("create", pair.log_path):
            self._file = open(pair.log_path, "wb", buffering=0)
        self._size = 0
        self._units.clear()

    def _flush(self) -> None:
        assert self._file is not None
        with changing("append", self._pairs[-1].log_path):
            view = memoryview(self._waiting)
            while len(view):
                view = view[self._file.write(view) :]
            view.release()
        self._waiting = bytearray()

    def _end_pair(self) -> None:
        assert self._file is not None
        pair = self._pairs[-1]
        self._flush()
        self._file.close()
        self._file = None
        files.truncate(pair.log_path, self._log_bytes)
        files.write(pair.index_path, bytes(self._units), is_synced=False)
        files.truncate(pair.index_path, self._index_bytes)
