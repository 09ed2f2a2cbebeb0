"""Which topics are served, and each partition as it lies now.

A partition is read when it is first asked for, and again when it has changed: of an archive its
manifest, of a log directory the folder, the active segment or the broker's word on what is
replicated. Whoever was answered from an older listing goes on in the newer one: offsets never name
another record.
"""

from __future__ import annotations

import base64
import os
import re
import threading
import time
import uuid
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from lastwrite.archive.place import MANIFEST
from lastwrite.errors import CorruptLog, InvalidConfig, LogError
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.format.text import topic_id_bytes
from lastwrite.kafka.look.problems import loses_records
from lastwrite.kafka.look.served import ServedLog
from lastwrite.kafka.store import archived, log_dir, partitions
from lastwrite.model.log import TopicPartition
from lastwrite.server.files import Files
from lastwrite.storage.objects.address import is_address, join, store_at

FILES_S, BUCKET_S = 0.05, 1.0  # between looks at a partition: in a bucket each is a request
_LIST_S = 5.0  # between looks for topics that are new
_AT_ONCE = 16  # partitions that are read for an answer about all
_IDS = uuid.UUID("4b7f6a53-7d0e-4f0c-9d0e-2f6c1f1c8a11")  # of topics that nobody gave one
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class Partition:
    """One partition of one topic."""

    def __init__(self, name: TopicPartition, folder: str, files: Files) -> None:
        self.name = name
        self.folder = folder
        self._files = files
        self._lock = threading.Lock()
        self._log: ServedLog | None = None
        self._state: Hashable = None
        self._looked_s = -60.0
        self.changed_s = 0.0  # of time.monotonic, when it was last found to be another

    @property
    def is_read(self) -> bool:
        """Whether it was asked for before."""
        return self._log is not None

    def log(self) -> ServedLog:
        """As it was listed last.

        Raises:
            LogError: it is damaged, or cannot be read.
        """
        return self._log or self.again()

    def again(self) -> ServedLog:
        """As it lies now.

        Raises:
            LogError: see above.
        """
        with self._lock:
            state = self._seen()
            log = log_dir.read_partition(self.folder)
            for problem in log.problems:
                if loses_records(problem, log):
                    raise CorruptLog(
                        problem.message, problem.position, problem.path, problem.remedy
                    )
            self._log = ServedLog(log, self._files.read)
            self._state, self.changed_s = state, time.monotonic()
            return self._log

    def fresh(self) -> ServedLog:
        """As it lies now, or lay a moment ago.

        Raises:
            LogError: see above.
        """
        seconds = BUCKET_S if is_address(self.folder) else FILES_S
        if time.monotonic() - self._looked_s > seconds:
            self.look()
        return self.log()

    def look(self) -> bool:
        """Read it again if it has changed; whether it did.

        Raises:
            LogError: see above.
        """
        self._looked_s = time.monotonic()
        if self._log is not None and self._seen() == self._state:
            return False
        self.again()
        return True

    def _seen(self) -> Hashable:
        """What is another as soon as anything of the partition is."""
        if archived.is_archived(self.folder):
            path = join(self.folder, MANIFEST)
            if is_address(path):
                store, key = store_at(path)
                found = store.head(key)
                return None if found is None else found.version
            return _file_state(path)
        active = None
        if self._log is not None and self._log.log.segments:
            active = _file_state(self._log.log.segments[-1].path)
        root = partitions.root_of(self.folder)
        return beside_a_broker.folder_state(self.folder), active, beside_a_broker.noted_ns(root)


class Topic:
    """A topic and its partitions, by number."""

    def __init__(self, name: str, parts: dict[int, Partition]) -> None:
        self.name = name
        self.partitions = parts
        self._id: bytes | None = None
        first = parts[min(parts)]
        # of a topic that no cluster gave one: it follows from where it lies
        self.made_id = uuid.uuid5(_IDS, f"{os.path.dirname(first.folder)}/{name}")

    @property
    def id(self) -> bytes:
        """16 bytes, those of the cluster where they are known.

        Raises:
            LogError: its first partition cannot be read.
        """
        if self._id is None:
            text = self.partitions[min(self.partitions)].log().topic_id
            self._id = self.made_id.bytes if text is None else topic_id_bytes(text)
        return self._id


class Catalog:
    """What lies at ``paths``, log directories or archives of Kafka's; ``names``: of these topics
    alone.

    Raises:
        NotALog: nothing lies at one of them.
        InvalidConfig: a partition lies at two of them.
    """

    def __init__(self, paths: Sequence[str], names: Sequence[str], files: Files) -> None:
        self._paths = list(paths)
        self._names = list(names)
        self._files = files
        self._topics: dict[str, Topic] = {}
        self._of_ids: dict[bytes, Topic] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, "catalog")
        self.list_again()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def list_again(self) -> None:
        """See which partitions there are now; what is known of those that stay is kept.

        Raises:
            NotALog, InvalidConfig: see above.
        """
        self._listed_s = time.monotonic()
        found: dict[str, dict[int, Partition]] = {}
        known = {
            part.folder: part
            for topic in self._topics.values()
            for part in topic.partitions.values()
        }
        for path in self._paths:
            for folder in partitions.find_partitions(path, self._names or None, None):
                name = partitions.partition_name(folder)
                there = found.setdefault(name.topic, {})
                if name.partition in there:
                    raise InvalidConfig(
                        f"{name} lies in {there[name.partition].folder} and in {folder}",
                        remedy="serve one of them",
                    )
                there[name.partition] = known.get(folder) or Partition(name, folder, self._files)
        before = self._topics
        self._topics = {
            name: before[name]
            if name in before and before[name].partitions == parts
            else Topic(name, parts)
            for name, parts in sorted(found.items())
        }

    def names(self) -> list[str]:
        self._look()
        return list(self._topics)

    def topic(self, name: str) -> Topic | None:
        if name not in self._topics:
            self._look()
        return self._topics.get(name)

    def numbers(self, name: str) -> list[int]:
        """The partitions of a topic; none: it is not there."""
        topic = self.topic(name)
        return [] if topic is None else sorted(topic.partitions)

    def _look(self) -> None:
        """List again what was listed a while ago; a store that is silent changes nothing."""
        if time.monotonic() - self._listed_s > _LIST_S:
            with suppress(LogError):
                self.list_again()

    def of_id(self, id: bytes) -> Topic | None:
        """The topic of that id; those that were never asked for are read to find it."""
        found = self._of_ids.get(id)
        if found is not None and self._topics.get(found.name) is found:
            return found
        self.read_all(list(self._topics.values()))
        return self._of_ids.get(id)

    def read_all(self, topics: Sequence[Topic]) -> None:
        """Read the partitions of topics, several at once; those that cannot be are left out."""

        def read(found: Partition) -> None:
            with suppress(LogError):
                found.log()

        fresh = [p for topic in topics for p in topic.partitions.values() if not p.is_read]
        list(self._pool.map(read, fresh) if len(fresh) > 1 else map(read, fresh))
        for topic in topics:
            with suppress(LogError):
                self._of_ids[topic.id] = topic

    @staticmethod
    def partition(topic: Topic | None, number: int) -> Partition | None:
        return None if topic is None else topic.partitions.get(number)


def cluster_id_of(paths: Sequence[str]) -> str:
    """22 characters that stay as long as the same is served from the same place; never those of
    the cluster that wrote it, so that no client takes one for the other.
    """
    text = "\n".join(path if is_address(path) else os.path.abspath(path) for path in paths)
    made = uuid.uuid5(_IDS, text).bytes
    return base64.urlsafe_b64encode(made).decode().rstrip("=")


def is_name(topic: str | None) -> bool:
    """Whether a topic may be called so."""
    return _NAME.fullmatch(topic or "") is not None and topic not in (".", "..")


def _file_state(path: str) -> Hashable:
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns
