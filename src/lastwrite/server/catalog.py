"""The served topics, and the current state of each partition.

A partition is read when it is first requested, and again after a change. In an archive, a change is
detected from the manifest. In a log directory it is detected from the partition's folder, the
active segment and the checkpoint of replicated offsets. Clients may continue to read after a
change, because an offset always identifies the same record.
"""

from __future__ import annotations

import base64
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple, TypeAlias

from lastwrite.archive.gaps import gaps_in
from lastwrite.archive.partition_store import MANIFEST
from lastwrite.errors import CorruptLog, InvalidConfig, LogError, NotALog
from lastwrite.kafka import beside_a_broker
from lastwrite.kafka.format.text import topic_id_bytes
from lastwrite.kafka.look.problems import loses_records
from lastwrite.kafka.look.served import ServedLog
from lastwrite.kafka.store import archived, log_dir, partitions, root_state, tiered
from lastwrite.kafka.system import KAFKA
from lastwrite.model.log import PartitionLog, Problem, TopicPartition, any_damaged
from lastwrite.server.files import Files
from lastwrite.storage.file_state import state_of
from lastwrite.storage.layout import PartitionLocator
from lastwrite.storage.objects.address import is_address, join, store_at

# Seconds between two checks for changes of a partition. In a bucket, each check is a request.
FILES_S, BUCKET_S = 0.05, 1.0
_LIST_S = 5.0  # seconds between searches for new topics
_AT_ONCE = 16  # number of partitions that are read in parallel
# number of partitions on disks that are read in parallel; more threads would wait for each other
_FOLDERS_AT_ONCE = 4
# UUID namespace of the ids that are derived for topics and clusters
_IDS = uuid.UUID("4b7f6a53-7d0e-4f0c-9d0e-2f6c1f1c8a11")
# number of different errors per partition that are remembered, so that each is logged once
_MOST_ERRORS = 100
_MOST_NAME = 249  # maximum number of characters in a topic name
_NAME = re.compile(rf"[a-zA-Z0-9._-]{{1,{_MOST_NAME}}}")


class ServedPartition:
    """A partition that clients can read, and its current log."""

    # whether the partition is Kafka's, so that its archive may have committed offsets
    is_of_kafka = True

    def __init__(
        self,
        name: TopicPartition,
        folder: str,
        files: Files,
        notify: Callable[[str], None] = lambda text: None,
        config: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self._files = files
        self._notify = notify
        self._config = config or {}
        self._last_message = ""
        self._errors: dict[str, None] = {}  # the latest errors that were logged
        # messages of the problems that the last read found, by kind
        self._notes: dict[str, frozenset[str]] = {}
        self._has_folder = not is_address(folder) and os.path.isdir(folder)
        self._is_there, self._checked_s = True, time.monotonic()
        self._lock = threading.Lock()
        self._log: ServedLog | None = None
        self._state: Hashable = None
        self._last_check_s = -60.0
        self.changed_s = 0.0  # time.monotonic at which the last change was detected

    @cached_property
    def _root(self) -> str:
        return partitions.root_of(self.folder)

    @property
    def settings_folder(self) -> str:
        """The folder that determines the topic's settings.

        Raises:
            LogError: the partition cannot be read.
        """
        return self.folder

    @property
    def is_read(self) -> bool:
        """Whether the partition was read since the server started."""
        return self._log is not None

    @property
    def epoch(self) -> int:
        """The leader epoch at the log's end. 0 until the partition is requested.

        Raises:
            LogError: the partition is damaged or cannot be read.
        """
        return self.log().epoch if self.is_read else 0

    @property
    def topic_id(self) -> str | None:
        """The topic's id as text. None if no cluster has assigned one.

        Raises:
            LogError: the partition is damaged or cannot be read.
        """
        return self.log().topic_id

    def peek(self) -> None:
        """Read the partition's metadata, for responses to requests other than Fetch.

        Raises:
            LogError: the partition is damaged or cannot be read.
        """
        self.log()

    def log(self) -> ServedLog:
        """The partition's log as it was last read. Reads it if it was never read.

        Raises:
            LogError: the partition is damaged or cannot be read.
        """
        if self._log is None:
            # read only if no other thread has read the partition since the check above
            with self._lock:
                if self._log is None:
                    return self._read()
        return self._log

    def reread(self) -> ServedLog:
        """Read the partition again.

        Raises:
            LogError: the partition is damaged or cannot be read.
        """
        with self._lock:
            return self._read()

    def _read(self) -> ServedLog:
        """Read the partition's files, and return its log.

        Report an error to the operator: clients get only an error code.
        """
        try:
            state = self.state()
            log = self.listed()
            self._log = ServedLog(log, self._files.read, self._lost(log))
        except LogError as error:
            if str(error) != self._last_message and self._folder_exists():
                self._last_message = str(error)
                self._notify(f"{self.name} cannot be served: {error}")
            raise
        self._last_message = ""
        self._state, self.changed_s = state, time.monotonic()
        return self._log

    def _log_gaps(self, log: PartitionLog) -> None:
        """Report each gap of an archive to the operator, once."""
        self._log_problems("gaps", gaps_in([log]))

    def _log_problems(self, kind: str, problems: Iterable[Problem]) -> None:
        """Report new problems to the operator: those that the previous read did not find."""
        texts = {problem.message: str(problem) for problem in problems}
        known, self._notes[kind] = self._notes.get(kind, frozenset()), frozenset(texts)
        for message, text in texts.items():
            if message not in known:
                self._notify(f"{self.name}: {text}")

    def report(self, error: LogError) -> None:
        """Report the error of a failed Fetch to the operator, unless it was reported recently."""
        text = str(error)
        if text == self._last_message:
            return
        if text not in self._errors:
            self._notify(f"{self.name}: clients get KAFKA_STORAGE_ERROR: {text}")
            if len(self._errors) >= _MOST_ERRORS:
                self._errors.pop(next(iter(self._errors)), None)
        self._errors[text] = self._errors.pop(
            text, None
        )  # move the error to the end, where the newest errors are

    def _lost(self, log: PartitionLog) -> tuple[tuple[int, int], ...]:
        """The offset ranges of missing segments, if records are lost. Also reports them.

        Ranges that may have been compacted away are reported, but not returned.
        """
        found = KAFKA.judged(log, self._config).problems[len(log.problems) :]
        self._log_problems("holes", found)
        return log.holes if any_damaged(found) else ()

    def is_there(self) -> bool:
        """Whether the partition's folder exists, checked at most every 50 ms.

        Always true for a bucket.
        """
        if self._has_folder and time.monotonic() - self._checked_s > FILES_S:
            self._is_there, self._checked_s = self._folder_exists(), time.monotonic()
        return self._is_there

    def _folder_exists(self) -> bool:
        try:
            os.stat(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return not self._has_folder
        except OSError:  # the folder is not accessible; reading the partition reports this
            return True
        return True

    def listed(self) -> PartitionLog:
        """Read the partition's files, and return its log.

        Raises:
            LogError: the partition is damaged or cannot be read.
        """
        is_root = not archived.is_archived(self.folder)
        root = root_state.recent(self._root) if is_root else None
        log = log_dir.read_partition(self.folder, root=root)
        for problem in log.problems:
            if loses_records(problem, log):
                raise CorruptLog(problem.message, problem.position, problem.path, problem.remedy)
        self._log_gaps(log)
        return log

    def current(self) -> ServedLog:
        """The partition's current log. Checks for a change at most once per polling interval.

        Raises:
            LogError: the partition is damaged or cannot be read.
        """
        seconds = BUCKET_S if is_address(self.folder) else FILES_S
        if time.monotonic() - self._last_check_s > seconds:
            self.refresh()
        return self.log()

    def refresh(self) -> bool:
        """Read the partition again if it has changed. Returns whether it has changed.

        Raises:
            LogError: the partition is damaged or cannot be read.
        """
        self._last_check_s = time.monotonic()
        if self._log is not None and self.is_unchanged():
            return False
        self.reread()
        return True

    def is_unchanged(self) -> bool:
        """Whether the partition's state is the same as when it was last read."""
        return self.state() == self._state

    def state(self) -> Hashable:
        """A value that changes whenever the partition changes."""
        if archived.is_archived(self.folder):
            return self.manifest_state()
        # A bucket of AutoMQ: its listing stays the same until the bucket is located again.
        if tiered.is_located(self._root):
            return None
        active = None
        if self._log is not None and self._log.log.segments:
            active = state_of(self._log.log.segments[-1].path)
        # The modification time of the checkpoint is taken from the cached root state. The next read
        # of the partition may use this cached state, even if the file has changed.
        noted_ns = root_state.recent(self._root).noted_ns
        return beside_a_broker.folder_state(self.folder), active, noted_ns

    def manifest_state(self) -> Hashable:
        """The version of an archived partition's manifest.

        Any change of the partition changes it.
        """
        path = join(self.folder, MANIFEST)
        if is_address(path):
            store, key = store_at(path)
            found = store.head(key)
            return None if found is None else found.version
        return state_of(path)


class ServedTopic:
    """A topic and its partitions, by number."""

    def __init__(
        self, name: str, parts: dict[int, ServedPartition], known_id: bytes | None = None
    ) -> None:
        self.name = name
        self.partitions = parts
        self.cached_id = known_id  # the topic's id; None before the first use of ``id``
        first = parts[min(parts)]
        # the id that is used if the topic's cluster has not assigned one
        self.derived_id = uuid.uuid5(_IDS, f"{os.path.dirname(first.folder)}/{name}")

    @property
    def id(self) -> bytes:
        """The topic's id, 16 bytes: assigned by its cluster, or derived from its path.

        Raises:
            LogError: the topic's first partition cannot be read.
        """
        if self.cached_id is None:
            text = self.partitions[min(self.partitions)].topic_id
            self.cached_id = self.derived_id.bytes if text is None else topic_id_bytes(text)
        return self.cached_id


class ServedSource(NamedTuple):
    """The topics of one system at an address."""

    path: str
    system: PartitionLocator

    def found(self, names: Sequence[str]) -> Iterator[tuple[TopicPartition, TopicPartition, str]]:
        """Yield each partition's name for clients, its name in its own system, and its folder.

        Raises:
            NotALog: there is no topic at the address, or none with one of ``names``.
            InvalidConfig: a topic's name is not valid for Kafka clients.
        """
        for folder in self.system.find(self.path, list(names) or None, None):
            name = self.system.name_of(folder)
            topic = self.system.topic_names(name)[0]
            if not is_name(topic):
                raise InvalidConfig(
                    f"{topic!r} is not a valid topic name for Kafka",
                    path=folder,
                    remedy="select the topics to serve with --topic",
                )
            yield TopicPartition(topic, max(name.partition, 0)), name, folder


Maker: TypeAlias = Callable[[TopicPartition, str, ServedSource, Files], ServedPartition]


def as_stored(
    name: TopicPartition, folder: str, source: ServedSource, files: Files
) -> ServedPartition:
    """The object that serves a Kafka partition from its own files, without a copy."""
    return ServedPartition(name, folder, files)


class Catalog:
    """The served topics. They are the topics at ``sources``.

    If ``names`` is not empty, only the topics with these names are served. ``make`` creates the
    object that serves a partition.

    Raises:
        NotALog: a source is empty, or no source has one of the names.
        InvalidConfig: two sources have the same partition, or two topics have the same name.
    """

    def __init__(
        self,
        sources: Sequence[ServedSource],
        names: Sequence[str],
        files: Files,
        make: Maker = as_stored,
        notify: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._sources = list(sources)
        self._names = list(names)
        self._files = files
        self._make = make
        self._notify = notify
        self._lock = threading.Lock()
        # partitions whose folder is missing, by folder
        self._missing: dict[str, TopicPartition] = {}
        self._topics: dict[str, ServedTopic] = {}
        self._of_ids: dict[bytes, ServedTopic] = {}
        self._pool = ThreadPoolExecutor(_AT_ONCE, "catalog")
        self.list_again()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def list_again(self) -> None:
        """Find the partitions that exist now. Objects of known partitions stay, with their state.

        Raises:
            NotALog, InvalidConfig: a source is empty, or two sources have the same partition or
                topic.
        """
        self._listed_s = time.monotonic()
        found: dict[str, dict[int, ServedPartition]] = {}
        # the system of each topic, and the topic's name in that system
        of: dict[str, tuple[PartitionLocator, str]] = {}
        missing: NotALog | None = None
        known = {
            part.folder: part
            for topic in self._topics.values()
            for part in topic.partitions.values()
        }
        for source in self._sources:
            try:
                here = list(source.found(self._names))
            except NotALog as error:
                if not self._names or len(self._sources) == 1:
                    raise
                missing = error  # no error yet: another source may have the topic
                continue
            for name, own, folder in here:
                there = found.setdefault(name.topic, {})
                other = of.setdefault(name.topic, (source.system, own.topic))
                if name.partition in there or other != (source.system, own.topic):
                    place = there.get(name.partition) or there[min(there)]
                    raise InvalidConfig(
                        f"two topics are named {name.topic}: in {place.folder} and in {folder}"
                        if other != (source.system, own.topic)
                        else f"{name} exists in {place.folder} and in {folder}",
                        remedy="give only the address of one of them",
                    )
                there[name.partition] = known.get(folder) or self._make(
                    name, folder, source, self._files
                )
        if not found and missing is not None:
            raise missing
        folders = {part.folder: part.name for parts in found.values() for part in parts.values()}
        for folder, part in known.items():
            if folder not in folders:
                self._report_missing(part)
        for folder in self._missing.keys() & folders.keys():
            self._notify(
                f"{self._missing.pop(folder)} is served again: the folder {folder} exists again"
            )
        before = self._topics
        self._topics = {
            name: before[name]
            if name in before and before[name].partitions == parts
            else ServedTopic(name, parts)
            for name, parts in sorted(found.items())
        }

    def names(self) -> list[str]:
        self._refresh()
        topics = map(self._present, list(self._topics.values()))
        return [topic.name for topic in topics if topic is not None]

    def topic(self, name: str) -> ServedTopic | None:
        if name not in self._topics or self._missing:
            self._refresh()
        found = self._topics.get(name)
        return None if found is None else self._present(found)

    def _present(self, topic: ServedTopic) -> ServedTopic | None:
        """The topic without partitions whose folder is missing. None if no partition is left."""
        there = {number: part for number, part in topic.partitions.items() if part.is_there()}
        if len(there) == len(topic.partitions):
            return topic
        for number in topic.partitions.keys() - there.keys():
            self._report_missing(topic.partitions[number])
        if not there:
            self._topics.pop(topic.name, None)
            return None
        rest = ServedTopic(topic.name, there, topic.cached_id)
        self._topics[topic.name] = rest
        if rest.cached_id is not None:
            self._of_ids[rest.cached_id] = rest
        return rest

    def _report_missing(self, part: ServedPartition) -> None:
        """Report a partition's missing folder to the operator, once until it is found again."""
        with self._lock:
            is_reported = part.folder in self._missing
            self._missing[part.folder] = part.name
        if not is_reported:
            self._notify(
                f"{part.name} is no longer served: the folder {part.folder} was removed. Clients "
                "get UNKNOWN_TOPIC_OR_PARTITION. When the folder exists again, the partition is "
                "served again"
            )

    def numbers(self, name: str) -> list[int]:
        """The partition numbers of a topic. Empty if it does not exist."""
        topic = self.topic(name)
        return [] if topic is None else sorted(topic.partitions)

    def _refresh(self) -> None:
        """Search the sources for topics again, at most once in ``_LIST_S`` seconds.

        After an error, the known topics are kept.
        """
        if time.monotonic() - self._listed_s > _LIST_S:
            with suppress(LogError):
                self.list_again()

    def of_id(self, id: bytes) -> ServedTopic | None:
        """The topic with this id. Reads topics that were not read yet, to find their ids."""
        found = self._of_ids.get(id)
        if found is not None and self._topics.get(found.name) is found:
            return self._present(found)
        if self._missing:
            self._refresh()
            if found is not None and found.name not in self._topics:
                return None
        self.read_all(list(self._topics.values()))
        return self._of_ids.get(id)

    def read_all(self, topics: Sequence[ServedTopic]) -> None:
        """Read the partitions that were not read yet, in parallel. Skips unreadable partitions."""

        def read(found: Sequence[ServedPartition]) -> None:
            for each in found:
                with suppress(LogError):
                    each.peek()

        fresh = [p for topic in topics for p in topic.partitions.values() if not p.is_read]
        here = [p for p in fresh if not is_address(p.folder)]
        portions = [[p] for p in fresh if is_address(p.folder)]
        portions += filter(None, (here[n::_FOLDERS_AT_ONCE] for n in range(_FOLDERS_AT_ONCE)))
        list(self._pool.map(read, portions) if len(portions) > 1 else map(read, portions))
        for topic in topics:
            with suppress(LogError):
                self._of_ids[topic.id] = topic

    def folders(self) -> set[str]:
        """The parent folders of the partitions' folders (for example, log directories)."""
        parts = (part for topic in self._topics.values() for part in topic.partitions.values())
        return {os.path.dirname(part.folder) for part in parts}

    @staticmethod
    def partition(topic: ServedTopic | None, number: int) -> ServedPartition | None:
        return None if topic is None else topic.partitions.get(number)


def cluster_id_of(paths: Sequence[str]) -> str:
    """A cluster id of 22 characters, derived from the served paths.

    It differs from the id of the cluster that wrote the logs, so that clients do not confuse this
    server with that cluster.
    """
    text = "\n".join(path if is_address(path) else os.path.abspath(path) for path in paths)
    made = uuid.uuid5(_IDS, text).bytes
    return base64.urlsafe_b64encode(made).decode().rstrip("=")


def is_name(topic: str | None) -> bool:
    """Whether ``topic`` is a valid topic name."""
    return _NAME.fullmatch(topic or "") is not None and topic not in (".", "..")


def name_problem(topic: str) -> str:
    """Why a topic name is invalid, in a broker's words. Empty if the name is valid."""
    if is_name(topic):
        return ""
    if not topic:
        why = "the empty string is not allowed"
    elif topic in (".", ".."):
        why = f"'{topic}' is not allowed"
    elif len(topic) > _MOST_NAME:
        why = f"the length of '{topic}' is longer than the max allowed length {_MOST_NAME}"
    else:
        why = f"'{topic}' contains one or more characters other than ASCII alphanumerics, "
        why += "'.', '_' and '-'"
    return f"Topic name is invalid: {why}"
