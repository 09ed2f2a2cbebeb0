"""``restore``: restores Kafka topics from an archive, or lost first messages of RocketMQ queues.

Kafka topics are restored into a stopped broker's log root or a running cluster. RocketMQ queues are
restored from a live broker. The rest of this text is about RocketMQ.

Suppose that a broker's machine failed and its commit log was recovered by replication. Brokers
delete the oldest files of a commit log by age. Their messages were only in the compaction log,
which is lost.
Suppose that the local store begins at offset 70. A live broker with the same data has a, b and c::

    live     a@3 b@12 c@66 a@71 …       pulled from 0 up to 70:  a@3 b@12 c@66
    local              a@71 b@75 …      after it:                a@71 b@75 …
    then compacted by force:            c@66 a@71 b@75 …

The new queue is built in a separate folder, starting at file name 0, and replaces the old one in
one step (``rocketmq.store.publish``). It is compacted afterwards. A crash therefore leaves the old
queue, or the complete new queue, which the next compaction compacts.

When a broker rebuilds a replica, it pulls messages up to the first offset of the local log. This is
not enough if the local log was already compacted: tombstones were removed, so deleted values would
reappear. In this case, messages are pulled up to the position of the last compaction. Local and
pulled messages are merged by queue offset, and no local message is discarded. The live broker may
have removed a message because it has a later value, which the store does not have.

Source: RocketMQ 5.5.0 ``CompactionLog.replicateFromMaster``; docs/formats/rocketmq-compaction.md.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

import numpy as np

from lastwrite.commands.compact import compact
from lastwrite.commands.following import limits_of
from lastwrite.config.stores import store_settings
from lastwrite.engine.system import system_named
from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.kafka.restored import LogsGiven, LogsRestored
from lastwrite.kafka.rules.live_settings import SCHEME
from lastwrite.model.columns import ByteArray
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.format.kernels import MESSAGE, MessageTable
from lastwrite.rocketmq.network.client import RocketmqClient
from lastwrite.rocketmq.network.connection import TIMEOUT_SECONDS
from lastwrite.rocketmq.network.patience import Patience
from lastwrite.rocketmq.network.pulling import Puller, Records, reject_reader_with_holes
from lastwrite.rocketmq.network.route import MessageQueue
from lastwrite.rocketmq.reports import Restoration, RestoredQueue
from lastwrite.rocketmq.store import links, lock, publish
from lastwrite.rocketmq.store.compacted import CompactedQueue, first_damage
from lastwrite.rocketmq.store.place import find_place
from lastwrite.rocketmq.store.positions import UNKNOWN, read_positions
from lastwrite.rocketmq.store.reading import StoreFolder, read_queue
from lastwrite.rocketmq.store.untouched import BY_ROUND, list_untouched
from lastwrite.rocketmq.store.writer import QueueWriter
from lastwrite.storage.choice import Topics
from lastwrite.storage.objects.address import use

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastwrite.spark.inline import Inline

_TRUSTED = (
    "; or, if the broker was not restarted since the topic was created, continue with "
    "--trust-broker"
)
_SIZE_SETTINGS = {
    "compactionMappedFileSize": names.DEFAULT_COMPACTION_LOG_BYTES,
    "compactionCqMappedFileSize": names.DEFAULT_COMPACTION_QUEUE_BYTES,
}


def restore(  # many parameters, because each is an option of the command line
    path: str,
    topic: Topics = None,
    *,
    name_server: str | None = None,
    to: str | None = None,
    partition: int | Sequence[int] | None = None,
    name: str | None = None,
    until: int | datetime | None = None,
    drop_open: bool = False,
    groups: bool = False,
    replication_factor: int = -1,
    rate: str | int | None = None,
    metadata: str | None = None,
    broker: str | None = None,
    config: Mapping[str, object] | None = None,
    now_ms: int | None = None,
    unclean: bool = False,
    trust_broker: bool = False,
    timeout: float = TIMEOUT_SECONDS,
    memory: str | int | None = None,
    spark: SparkSession | Inline | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Restoration | LogsRestored | LogsGiven:
    """Restore topics of an archive to Kafka, or the beginning of queues to a RocketMQ store.

    Kafka: the archive ``path`` is written to the log root ``to`` of a stopped broker at the same
    offsets, or to a running cluster at new offsets. RocketMQ: each queue of ``topic`` in the store
    ``path`` gets the earlier messages that a live broker still has.

    Args:
        path: Kafka: an archive, a folder or ``s3://bucket/prefix``. RocketMQ: a store whose broker
            is stopped and whose commit log was dispatched.
        topic: Kafka: a name, a shell pattern, or several of either; None means all topics.
            RocketMQ: the name of the topic.
        name_server: RocketMQ: ``HOST:PORT`` of the live cluster's name server; several are
            separated by semicolons.
        to: Kafka: one of the broker's ``log.dirs``, where the cluster already has the topics; or
            a running cluster, ``kafka://HOST:PORT[,HOST:PORT…]``, where missing topics are
            created.
        partition: only this partition or queue, for Kafka also several. None means all.
        name: Kafka: the new name of the single restored topic. None means its own name.
        until: Kafka: the first offset to omit, or the time from which on records are omitted. A
            transaction that had not ended there is omitted completely.
        drop_open: Kafka: omit the records of transactions that are open at the archive's end.
        groups: running Kafka cluster: only set the committed offsets of groups, as in the archive.
            For partitions that were restored with their offsets.
        replication_factor: running Kafka cluster: replication factor of created topics. -1 means
            the brokers' default.
        rate: running Kafka cluster: maximum bytes per second, such as ``"50m"``. None means no
            limit.
        metadata: Kafka: the metadata of the cluster, as for ``compact``. None means in ``to``.
        broker: RocketMQ: the name of the broker to pull from. None means the only one with the
            topic.
        config: Kafka: settings ``storage.*`` of a bucket; for a running cluster also the settings
            of a client. RocketMQ: settings of the following compaction, and file sizes if the
            store has no files of the queue.
        now_ms, spark, master, conf, memory, progress: of that compaction, as for ``compact``.
        unclean: continue although the store's broker was killed.
        trust_broker: also pull from a broker that may skip messages
            (docs/formats/rocketmq-compaction.md, "The read hole after a restart").
        timeout: time limit of each request, in seconds, and of a period without messages.

    Raises:
        NotALog, InvalidConfig, LogHeld: nothing was done. For Kafka, the report contains the
            failures of single partitions.
        RemoteFailed: the broker does not answer, or its answer is invalid. Earlier queues are
            restored.
        CorruptLog: received or local data is damaged. The queue is unchanged.
    """
    numbers = [partition] if isinstance(partition, int) else partition
    if to is not None or name_server is None:
        from lastwrite.kafka.jobs.restorable import RestoreRequest  # not before
        from lastwrite.kafka.jobs.restore import restore_logs

        if to is None or name_server is not None:
            raise InvalidConfig(
                "the source or the destination of the restore is missing",
                path=str(path),
                remedy="to restore an archive of Kafka, give --to LOGROOT; to restore a RocketMQ "
                "queue from a broker, give --from HOST:PORT and the path of a store",
            )
        use(store_settings(config))
        is_live = to.startswith(SCHEME)
        if not is_live and (rate is not None or replication_factor != -1):
            raise InvalidConfig(
                "--rate and --replication-factor are only for a running Kafka cluster",
                path=to,
                remedy="leave them out, or give --to kafka://HOST:PORT",
            )
        if groups and not is_live:
            raise InvalidConfig(
                "consumer group offsets can be restored only into a running cluster",
                path=to,
                remedy="first restore the records into the log root without --groups; then start "
                "the broker, and run restore with --groups and --to kafka://HOST:PORT",
            )
        wanted = RestoreRequest(
            topic=topic,
            partitions=numbers,
            name=name,
            until=until,
            drop_open=drop_open,
            groups=groups,
        )
        if is_live:
            from lastwrite.kafka.jobs.restore_live import restore_live

            limits = limits_of(memory, rate)
            return restore_live(
                str(path), to, wanted, config or {}, replication_factor, limits, progress
            )
        return restore_logs(str(path), str(to), wanted, metadata, memory, config, progress)
    topics = [topic] if isinstance(topic, str) else list(topic or ())
    if len(topics) != 1 or len(numbers or ()) > 1:
        raise InvalidConfig(
            "one command restores one topic of RocketMQ, or one queue of it",
            remedy="name one topic with --topic, and at most one queue",
        )
    (topic,), partition = topics, numbers[0] if numbers else None
    root = find_place(str(path)).root
    if root is None:
        raise NotALog(
            "the path is not inside a RocketMQ store",
            path=str(path),
            remedy="give the broker's storePathRootDir",
        )
    root = links.home_of(root)
    settings: dict[str, object] = {
        **(config or {}),
        "min.cleanable.dirty.ratio": 0,
        "min.compaction.lag.ms": 0,
        "unclean": unclean,
    }
    system_named("rocketmq").check_config(settings)
    sizes = {name: settings.get(name, default) for name, default in _SIZE_SETTINGS.items()}
    progress = progress or NoProgress()
    lock.reject_broker(root)
    lock.reject_unclean(root, goes_on=unclean)
    with RocketmqClient(name_server, timeout) as client:
        queues = _choose(client, name_server, topic, partition, broker)
        if not trust_broker:
            reject_reader_with_holes(client, queues[0].broker, _TRUSTED)
        named = [TopicPartition(topic, queue.queue) for queue in queues]
        restored: list[RestoredQueue] = []
        with _naming_restored(restored, progress), lock.hold(root, named):
            lock.reject_unclean(root, goes_on=unclean)
            for queue, place in zip(queues, named, strict=True):
                publish.recover(root, place)
                file_sizes = _file_sizes(root, place, sizes)
                one = _Rebuild(root, place, queue, client, file_sizes, Patience(timeout))
                restored.append(one.run())
    notes = tuple(f"{queue.name}: {note}" for queue in restored for note in queue.notes)
    left = tuple(list_untouched(root, {names.COMPACTION}, BY_ROUND))
    if not any(read_queue(root, StoreFolder.COMPACTION_LOG, name).files for name in named):
        return Restoration(queues=tuple(restored), notes=notes, untouched=left)
    with _naming_restored(restored, progress):
        report = compact(
            root,
            system="rocketmq",
            topic=topic,
            partition=partition,
            now_ms=now_ms,
            include_active=True,
            memory=memory,
            spark=spark,
            master=master,
            conf=conf,
            progress=progress,
            config=settings,
        )
    return Restoration(queues=tuple(restored), compaction=report, notes=notes, untouched=left)


@contextlib.contextmanager
def _naming_restored(restored: Sequence[RestoredQueue], progress: Progress) -> Iterator[None]:
    """A context that, if an error ends it, reports which queues were restored before."""
    try:
        yield
    except BaseException:
        if restored:
            done = ", ".join(str(queue.name) for queue in restored)
            progress.note(
                f"{done} restored, but not compacted yet; run the command again to continue"
            )
        raise


def merged(
    pulled: Iterable[Records], own: Iterable[Records]
) -> Iterator[tuple[bool, ByteArray, MessageTable]]:
    """Merge two streams of records that are sorted by queue offset.

    Yields (whether the records were pulled from the broker, the records). If both streams have a
    record of the same offset, the pulled record is first.
    """
    ahead, behind = _RecordStream(pulled), _RecordStream(own)
    while (first := ahead.offset()) is not None or behind.offset() is not None:
        second = behind.offset()
        if second is None or (first is not None and first <= second):
            yield True, *ahead.take(second, "right")
        else:
            yield False, *behind.take(first, "left")


class _RecordStream:
    """A stream of blocks of records, with a current position inside a block."""

    def __init__(self, records: Iterable[Records]) -> None:
        self._records = iter(records)
        self._data: ByteArray = np.empty(0, np.uint8)
        self._table: MessageTable = np.empty(0, MESSAGE)

    def offset(self) -> int | None:
        """The queue offset of the next record. None at the end of the stream."""
        while not len(self._table):
            some = next(self._records, None)
            if some is None:
                return None
            self._data, self._table = some
        return int(self._table["queue_offset"][0])

    def take(self, until: int | None, side: Literal["left", "right"]) -> Records:
        """Take the records of the current block up to the queue offset ``until``.

        ``side="right"`` includes the record at ``until``; ``side="left"`` excludes it.
        """
        offsets = self._table["queue_offset"]
        count = len(offsets) if until is None else int(np.searchsorted(offsets, until, side=side))
        taken, self._table = self._table[:count], self._table[count:]
        return self._data, taken


def _choose(
    client: RocketmqClient, name_server: str, topic: str, partition: int | None, broker: str | None
) -> list[MessageQueue]:
    readable = client.route(topic).readable
    brokers = sorted({queue.broker for queue in readable})
    if broker is None and len(brokers) > 1:
        raise InvalidConfig(
            f"{topic} is on {len(brokers)} brokers, and no broker was chosen",
            path=name_server,
            remedy=f"choose the broker of this store's queues with --broker: {', '.join(brokers)}",
        )
    chosen = [
        queue
        for queue in readable
        if broker in (None, queue.broker) and partition in (None, queue.queue)
    ]
    if not chosen:
        raise InvalidConfig(
            f"no live broker has this queue of {topic}",
            path=name_server,
            remedy=f"choose one of the topic's brokers: {', '.join(brokers)}",
        )
    return chosen


def _file_sizes(root: str, name: TopicPartition, settings: Mapping[str, object]) -> tuple[int, int]:
    """The size of a log file and of an index file, in bytes.

    The sizes are taken from this queue's files. If the queue has no files, they are taken from
    another queue's files, or else from the settings.
    """
    found = []
    for part in (StoreFolder.COMPACTION_LOG, StoreFolder.COMPACTION_INDEX):
        size = read_queue(root, part, name).file_size or _size_of_others(os.path.join(root, part))
        found.append(size)
    if found[0] and found[1]:
        return found[0], found[1]
    sizes = []
    for setting in _SIZE_SETTINGS:
        try:
            sizes.append(int(str(settings[setting])))
        except ValueError as error:
            raise InvalidConfig(f"{setting} is {settings[setting]!r}, not a number") from error
    return names.log_sizes(*sizes)


def _size_of_others(folder: str) -> int | None:
    """The common size of the files in the folder. None if there are no files."""
    for place, _, entries in os.walk(folder):
        for entry in entries:
            if names.parse_file_name(entry) is not None and (
                size := os.path.getsize(os.path.join(place, entry))
            ):
                return size
    return None


@dataclass(slots=True)
class _Rebuild:
    """Restores one queue. The caller has locked the queue."""

    root: str
    name: TopicPartition
    queue: MessageQueue
    client: RocketmqClient
    sizes: tuple[int, int]
    patience: Patience  # how often and how long to retry after a disconnect

    def run(self) -> RestoredQueue:
        local = CompactedQueue(self.root, self.name)
        first = self._first_offset(local)
        rounds = read_positions(publish.live_tree(self.root)).of(self.name)
        below = None if first is None else first if rounds == UNKNOWN else max(first, rounds + 1)
        notes = []
        if first is None:
            self._reject_undispatched()
            notes.append(
                "the store had no message of this queue; do not start a broker on the store, "
                "because the broker would accept messages of the queue and not serve them"
            )
        writer = QueueWriter(publish.staging_folder(self.root, self.name), *self.sizes)
        pulled = kept = 0
        try:
            answers = Puller(self.client, self.queue, self.patience).records(below=below)
            begin = next(answers, None)
            if begin is not None:
                own = ((block.buffer, block.table) for block in local.blocks())
                for is_pulled, data, table in merged(itertools.chain([begin], answers), own):
                    taken = writer.append(data, table)
                    pulled, kept = (pulled + taken, kept) if is_pulled else (pulled, kept + taken)
                damage = first_damage([local])
                if damage is not None:
                    raise damage
                self._publish(writer, local)
        except BaseException:
            # files that cannot be deleted now are deleted by the next run
            with contextlib.suppress(LogError, OSError):
                writer.abandon()
                publish.delete_replaced(self.root, [self.name])
            raise
        publish.delete_replaced(self.root, [self.name])
        return RestoredQueue(
            name=self.name,
            broker=self.queue.broker,
            pulled=pulled,
            pulled_below=writer.end_offset if below is None else below,
            kept=kept,
            notes=(*notes, *(problem.message for problem in local.notes)),
        )

    def _publish(self, writer: QueueWriter, local: CompactedQueue) -> None:
        change = publish.QueueChange(
            name=self.name,
            removed=[names.file_name(pair.log.start) for pair in local.pairs],
            pairs=writer.finish(),
            position=UNKNOWN,  # unknown: the restored messages are not compacted yet
        )
        (error,) = publish.publish(self.root, [change])
        if error is not None:
            raise error

    def _first_offset(self, local: CompactedQueue) -> int | None:
        """The first queue offset in the store. None if the queue is empty."""
        for held in local.ranges:
            if held is not None:
                return held.first
        return None

    def _reject_undispatched(self) -> None:
        if read_queue(self.root, StoreFolder.CONSUME_QUEUE, self.name).files:
            raise InvalidConfig(
                f"the store has messages of {self.name}, but no compaction log of the queue",
                path=self.root,
                remedy="run lastwrite dispatch on the store first, which builds the compaction "
                "log; restore needs its first offset",
            )
