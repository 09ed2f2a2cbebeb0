"""Names and sizes of files and folders in a RocketMQ store.

``00000000000104857460`` is the file of a log or queue whose first byte has that address. Files of
one log have equal sizes, but compaction leaves gaps between names. So find the file of an address
in the list of names, and never by division. A compaction index file has the name of its log file,
not its own address.

``consumequeue/orders/3`` is queue 3 of topic ``orders``; the number is in plain decimal.

Source: RocketMQ 5.5.0 ``UtilAll.offset2FileName``, ``MappedFileQueue.load``, ``CompactionStore``;
docs/formats/rocketmq.md, "The store"; docs/formats/rocketmq-compaction.md, "Files and their sizes".
"""

from __future__ import annotations

import re
from functools import lru_cache

from lastwrite.errors import InvalidConfig

OFFSET_DIGITS = 20
LIGHT_QUEUE = "%LMQ%"  # prefix of the topic names of light queues
LITE_TOPIC = "%LMQ%$"  # prefix of the names of lite topics (5.5.0)

# Names in the store's root.
COMMIT_LOG = "commitlog"
CONSUME_QUEUES = "consumequeue"
CONSUME_QUEUE_EXTENSIONS = "consumequeue_ext"
BATCH_CONSUME_QUEUES = "batchconsumequeue"
INDEX = "index"
COMPACTION = "compaction"
CONFIG = "config"
TIMER_LOG = "timerlog"
TIMER_WHEEL = "timerwheel"  # a file; its snapshots are named ``timerwheel.NUMBER``
CHECKPOINT = "checkpoint"
ABORT = "abort"
LOCK = "lock"

# Markers of an interrupted command, in ``commitlog/``. A broker does not load the folder, because
# the size of the marker differs from the size of a commit log file.
DISPATCH_GUARD = "lastwrite-dispatch"
CUT_GUARD = "lastwrite-cut"
BEFORE_CUT = ".before-cut"  # suffix of files and folders that a cut has replaced

# Names in ``compaction/``.
COMPACTION_LOGS = "compactionLog"
COMPACTION_QUEUES = "compactionCq"
POSITION_CHECKPOINT = "position-checkpoint"

# Folders that exist in a queue's folder of COMPACTION_LOGS and COMPACTION_QUEUES while a broker
# compacts or rebuilds a replica, and the suffix of a file that is being replaced.
COMPACTING = "compacting"
REPLICATING = "replicating"
DELETED_SUFFIX = ".delete"

# The remedy for a file with the suffix ``.delete``. Until a broker's compaction has finished, the
# file may have the only copy of some messages.
UNFINISHED_REMEDY = (
    "keep the file, because it may have the only copy of some messages. If every file marked "
    f"{DELETED_SUFFIX} still exists, move the queue's new files out of the store, and remove "
    f"the suffix {DELETED_SUFFIX} from the log and index files. Otherwise move the files in "
    f"{COMPACTING} into the queue's folder, and the files marked {DELETED_SUFFIX} out of the "
    "store"
)

# The remedy for a damaged compaction log. Replicas compact independently, so a single file of
# another replica does not fit.
RESTORE_QUEUE = (
    "restore the whole queue, log files and index files together, from one backup or one replica"
)

# Names in ``config/``.
TOPICS = "topics.json"
CONSUMER_OFFSETS = "consumerOffset.json"
LIGHT_OFFSETS = "lmqConsumerOffset.json"  # used instead of CONSUMER_OFFSETS with enableLmq
DELAY_OFFSETS = "delayOffset.json"
TIMER_CHECKPOINT = "timercheck"
BACKUP_SUFFIX = ".bak"

RETRY_TOPIC = "%RETRY%"  # prefix of retry topics, for messages to be consumed again
SYSTEM_TOPIC = "rmq_sys_"  # prefix of most internal topics of a broker
TIMER_TOPIC = "rmq_sys_wheel_timer"  # messages with a delivery time, in queue 0
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # delayed messages; their tags code is the delivery time
DEFAULT_CONSUME_QUEUE_BYTES = 6_000_000  # mappedFileSizeConsumeQueue
DEFAULT_BATCH_QUEUE_BYTES = 13_800_000  # mapperFileSizeBatchConsumeQueue
DEFAULT_COMPACTION_LOG_BYTES = 104_857_600  # compactionMappedFileSize; log_sizes adjusts it
DEFAULT_COMPACTION_QUEUE_BYTES = 10_485_760  # compactionCqMappedFileSize; log_sizes adjusts it

_BATCH_UNIT_BYTES = 46
_FEWEST_INDEXES = 5  # a log file is at least this many times as large as an index file
_MAX_I64 = (1 << 63) - 1
_MAX_I32 = (1 << 31) - 1
_NAME = re.compile(r"[0-9]{20}", re.ASCII)
_QUEUE = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)
_INDEX_NAME = re.compile(r"[0-9]{17}", re.ASCII)


def file_name(offset: int) -> str:
    """The name of the file whose first byte has the address ``offset``.

    Raises:
        ValueError: the offset is below 0 or above 2**63 - 1.
    """
    if not 0 <= offset <= _MAX_I64:
        raise ValueError(f"no file begins at {offset}")
    return f"{offset:0{OFFSET_DIGITS}d}"


@lru_cache(1 << 14)
def parse_file_name(name: str) -> int | None:
    """The address in a file's name. Returns None for any other name.

    A broker accepts any decimal number as a name. But it writes names of 20 digits, and would not
    find the file under another name.
    """
    if not _NAME.fullmatch(name):
        return None
    offset = int(name)
    return offset if offset <= _MAX_I64 else None


def parse_queue_name(name: str) -> int | None:
    """The queue number in a folder's name. Returns None for a name that brokers skip."""
    if not _QUEUE.fullmatch(name):
        return None
    queue = int(name)
    return queue if queue <= _MAX_I32 else None


def dispatches_to_light_queues(topic: str) -> bool:
    """Whether a broker dispatches the topic's records to the light queues that they name.

    Only records in an ordinary consume queue are dispatched to light queues.

    Source: RocketMQ 5.5.0 ``MultiDispatchUtils.isNeedHandleMultiDispatch``.
    """
    return topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_TOPIC, SYSTEM_TOPIC))


def is_index_name(name: str) -> bool:
    """Whether ``name`` is an index file name: ``yyyyMMddHHmmssSSS``, in the broker's time zone."""
    return _INDEX_NAME.fullmatch(name) is not None


def log_sizes(
    compaction_mapped_file_size: int, compaction_cq_mapped_file_size: int
) -> tuple[int, int]:
    """The sizes of a compaction log file and of its index file, from the settings of the two sizes.

    The log file's size is a multiple of the index file's, because a broker computes the position in
    an index file as the address modulo the index file's size.

    Raises:
        InvalidConfig: an index file would have no unit, or a file would exceed 2 GiB.
    """
    index = compaction_cq_mapped_file_size // _BATCH_UNIT_BYTES * _BATCH_UNIT_BYTES
    if index <= 0:
        raise InvalidConfig(
            f"compactionCqMappedFileSize is {compaction_cq_mapped_file_size}, which is less "
            f"than one unit of {_BATCH_UNIT_BYTES} bytes",
            remedy="set it to the broker's value",
        )
    count, rest = divmod(compaction_mapped_file_size, index)
    if count < _FEWEST_INDEXES:
        count = _FEWEST_INDEXES
    elif not 0 < rest < index // 2:
        count += 1
    if count * index > _MAX_I32:
        raise InvalidConfig(
            f"compactionMappedFileSize is {compaction_mapped_file_size}, which results in files "
            f"of {count * index} bytes, more than 2 GiB",
            remedy="set it to the broker's value",
        )
    return count * index, index
