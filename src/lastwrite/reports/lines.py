"""The output lines of ``dump`` and ``read`` with ``--json``, described.

Each system's ``look/rows.py`` makes the rows as dictionaries, thousands per second. Bytes are
base64, times milliseconds since 1970.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType, field

from lastwrite.model.log import Problem
from lastwrite.reports.document import Document


class KafkaRecordLine(Document, kw_only=True):
    """A record of Kafka. Numbers are those on disk; -1 means none."""

    topic: str | None  # null if the path contains none, as is partition
    partition: int | None
    offset: int
    timestamp: int
    timestamp_type: str  # "CreateTime", "LogAppendTime" or "none"
    key: str | None  # base64
    value: str | None  # base64; null if it deletes the key
    headers: list[tuple[str, str | None]]  # name and base64
    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    control: str | None  # "commit", "abort" or another type; null for data
    compression: str
    leader_epoch: int
    segment: int  # base offset in the file's name
    position: int  # of the record's batch
    # for Kafka's internal topics type, name, key, value_version, value and problem, else key and
    # value as text; null for control records; only with --decode
    decoded: dict[str, Any] | None | UnsetType = UNSET


class KafkaBatchLine(Document, kw_only=True):
    """A batch of Kafka, printed by ``dump --batches``."""

    topic: str | None
    partition: int | None
    base_offset: int
    last_offset: int
    records: int  # present
    bytes: int  # including the header
    magic: int  # 0, 1 or 2
    crc: int
    base_timestamp: int
    max_timestamp: int
    timestamp_type: str  # as in a record
    # when its deletes and markers may be dropped; null if no round has set it
    delete_horizon: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    last_sequence: int
    transactional: bool
    control: bool
    compression: str
    leader_epoch: int
    segment: int
    position: int


class KafkaIndexLine(Document, kw_only=True):
    """An entry of one of a segment's indexes, printed by ``dump --index``."""

    topic: str | None
    partition: int | None
    segment: int
    index: str  # "offset", "time" or "transaction"
    offset: int | UnsetType = UNSET  # only of "offset" and "time"
    position: int | UnsetType = UNSET  # only of "offset"
    timestamp: int | UnsetType = UNSET  # only of "time"
    version: int | UnsetType = UNSET  # only of "transaction", as are the following
    producer_id: int | UnsetType = UNSET
    first_offset: int | UnsetType = UNSET
    last_offset: int | UnsetType = UNSET
    last_stable_offset: int | UnsetType = UNSET


class KafkaProducerLine(Document, kw_only=True):
    """A producer in a ``.snapshot``. Numbers are those on disk; -1 means none."""

    topic: str | None
    partition: int | None
    snapshot: int  # the offset in the file's name
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int  # of its last batch
    offset_delta: int  # that batch's last offset minus its first
    coordinator_epoch: int
    current_txn_first_offset: int  # -1 if it has no open transaction
    timestamp: int  # of its last batch or marker


class KafkaOffsetLine(Document, kw_only=True):
    """A partition in an offset checkpoint of a log root."""

    topic: str
    partition: int
    offset: int


class KafkaEpochLine(Document, kw_only=True):
    """An entry of ``leader-epoch-checkpoint``."""

    topic: str | None
    partition: int | None
    leader_epoch: int
    start_offset: int  # the first offset written in it


class KafkaTopicIdLine(Document, kw_only=True):
    """The content of ``partition.metadata``."""

    topic: str | None
    partition: int | None
    topic_id: str


class KafkaShutdownLine(Document, kw_only=True):
    """The content of ``.kafka_cleanshutdown``."""

    broker_epoch: int | None


class KafkaRootLine(Document, kw_only=True):
    """The content of ``meta.properties``; null for a missing entry."""

    version: str | None
    cluster_id: str | None
    node_id: str | None
    directory_id: str | None  # different in each log root of a broker


class KafkaReadEnd(Document, kw_only=True):
    """The last line of ``read`` for a partition of Kafka: how it ended."""

    # END_OF_PARTITION, LIMIT, OPEN_TRANSACTION (the last stable offset is below the high
    # watermark), OFFSET_OUT_OF_RANGE (the log ends before it) or DAMAGED
    status: str | None
    topic: str
    partition: int
    isolation_level: str
    offset: int  # the first offset of this read
    next_offset: int  # the offset at which to continue
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    messages: int
    notes: list[Problem]  # irregularities


class RocketmqMessageLine(Document, kw_only=True):
    """A message of RocketMQ."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int  # of the record, according to the record
    size: int  # of the record
    magic: int
    body_crc: int
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    properties: dict[str, str]
    body: str | None  # base64, decompressed; null if it cannot be decoded
    stored_body: str  # base64, as stored
    compression: str
    file: str
    position: int  # in the file
    message_id: str | None  # only in the commit log
    transaction: str | None  # "prepared", "commit" or "rollback"
    batch_index: int | None  # in an inner batch
    properties_raw: str | None  # base64, if the properties do not contain everything
    found_by: str  # how it was found
    problem: str | None
    decoded: dict[str, Any] | None | UnsetType = UNSET  # the body as text; only with --decode


class RocketmqIndexLine(Document, kw_only=True):
    """An entry of a queue or an index, printed by ``dump --index``; ``index`` determines its
    fields.
    """

    index: str  # "consumequeue", "consumequeue_ext", "batchconsumequeue", "compaction" or "index"
    file: str
    position: int
    topic: str | None | UnsetType = UNSET
    queue_id: int | None | UnsetType = UNSET
    queue_offset: int | UnsetType = UNSET
    physical_offset: int | UnsetType = UNSET
    size: int | UnsetType = UNSET
    tags_code: int | UnsetType = UNSET
    store_timestamp: int | UnsetType = UNSET
    messages: int | UnsetType = UNSET  # of a batch, as are the next two
    compacted_offset: int | UnsetType = UNSET
    reserved: int | UnsetType = UNSET
    address: int | UnsetType = UNSET  # of an extension, as is the next
    bitmap: str | UnsetType = UNSET  # hexadecimal
    entry: int | UnsetType = UNSET  # of the index by key, as are the following
    slot: int | UnsetType = UNSET
    hash: int | UnsetType = UNSET
    seconds: int | UnsetType = UNSET
    previous: int | UnsetType = UNSET


class RocketmqCheckpointLine(Document, kw_only=True):
    """The content of ``checkpoint``; a field that the release does not have is 0."""

    commit_log_timestamp: int
    consume_queue_timestamp: int
    index_timestamp: int
    master_flushed_offset: int
    confirm_offset: int
    consume_queue_offset: int
    recovery_timestamp: int  # from which a broker that was killed dispatches again


class RocketmqAbortLine(Document, kw_only=True):
    """The content of ``abort``."""

    abort: bool
    process: int | None


class RocketmqLockLine(Document, kw_only=True):
    """The content of ``lock``."""

    lock: str


class RocketmqTopicLine(Document, kw_only=True):
    """A topic in ``config/topics.json``."""

    topic: str
    read_queues: int
    write_queues: int
    perm: int
    order: bool
    filter_type: str
    sys_flag: int
    attributes: dict[str, str]


class RocketmqGroupLine(Document, kw_only=True):
    """A group's offset in a queue, from ``config/consumerOffset.json``."""

    topic: str
    group: str
    queue_id: int
    offset: int


class RocketmqPositionLine(Document, kw_only=True):
    """The progress of a queue's compaction, from its ``position-checkpoint``."""

    topic: str
    queue_id: int
    position: int


class RocketmqFileLine(Document, kw_only=True):
    """Another JSON file of a store."""

    file: str
    content: Any


class RocketmqReadEnd(Document, kw_only=True):
    """The last line of ``read`` for a queue of RocketMQ: how it ended."""

    # the broker's status: FOUND if the limit was reached, OFFSET_OVERFLOW_ONE at the queue's end,
    # OFFSET_OVERFLOW_BADLY, OFFSET_FOUND_NULL, NO_MESSAGE_IN_QUEUE, NO_MATCHED_LOGIC_QUEUE
    status: str | None
    code: int | None  # on the wire: 0, 19 or 21
    topic: str
    queue_id: int
    offset: int  # the first offset of this read
    next_offset: int  # the offset at which to continue
    min_offset: int
    max_offset: int
    messages: int
    notes: list[Problem]  # differences from what a broker would return


class PulsarTransaction(Document):
    """A transaction's id."""

    most_bits: int
    least_bits: int


class PulsarChunk(Document):
    """The part of a message that an entry contains."""

    uuid: str | None
    id: int
    count: int | None
    total_size: int | None


class PulsarWrappedKey(Document):
    """An entry's data key, encrypted for the owner of one key."""

    name: str  # of that key; "?" if it cannot be read
    value: str | None  # base64
    metadata: dict[str, str]


class PulsarEncryption(Document):
    """The encryption of an entry: all that the owner of one of the keys needs to decrypt it."""

    keys: list[str]
    algorithm: str | None
    param: str | None  # base64; the Java client's IV of AES/GCM
    wrapped_keys: list[PulsarWrappedKey]


class PulsarMessageLine(Document, kw_only=True):
    """A message of Pulsar, or a marker. Fields of an entry apply to all its messages."""

    topic: str | None  # null if the path contains none
    partition: int | None
    ledger: int
    entry: int
    batch_index: int  # -1 if it is in no batch
    message_id: str  # LEDGER:ENTRY:PARTITION[:INDEX]
    key: str | None  # as clients return it: base64 if the key is bytes
    value: str | None  # base64; null if it is null, encrypted or compacted out
    properties: dict[str, str]
    event_time: int  # 0 if there is none
    publish_time: int
    sequence_id: int
    producer: str
    null_value: bool
    null_key: bool
    key_b64_encoded: bool
    ordering_key: str | None  # base64
    schema_version: str | None  # base64
    schema_id: str | None  # base64
    replicated_from: str | None
    deliver_at_time: int | None
    compression: str
    batch_size: int | None
    compacted_out: bool  # a placeholder
    encryption: PulsarEncryption | None
    stored_value: str | None  # base64, if it cannot be decoded
    transaction: PulsarTransaction | None
    chunk: PulsarChunk | None
    marker: str | None  # its kind
    broker_timestamp: int | None
    index: int | None  # set by the broker
    size: int  # of the entry
    source: str  # "backlog" or "compacted"
    file: str
    position: int
    problem: str | None
    stored_ledger: int | UnsetType = UNSET  # in an entry log, as is the next
    stored_entry: int | UnsetType = UNSET


class PulsarEntryLine(Document, kw_only=True):
    """An entry of Pulsar, printed by ``dump --batches``: a message's fields and some more."""

    topic: str | None
    partition: int | None
    ledger: int
    entry: int
    key: str | None
    properties: dict[str, str]
    publish_time: int
    sequence_id: int
    producer: str
    key_b64_encoded: bool
    ordering_key: str | None
    schema_version: str | None
    schema_id: str | None
    replicated_from: str | None
    deliver_at_time: int | None
    compression: str
    batch_size: int | None
    encryption: PulsarEncryption | None
    transaction: PulsarTransaction | None
    chunk: PulsarChunk | None
    marker: str | None
    broker_timestamp: int | None
    index: int | None
    size: int
    source: str
    file: str
    position: int
    problem: str | None
    records: int | None  # messages; null for a marker
    compacted_batch_indexes: list[int]
    highest_sequence_id: int | None
    uncompressed_size: int | None
    payload_bytes: int
    checksum: int | None
    stored_ledger: int | UnsetType = UNSET
    stored_entry: int | UnsetType = UNSET


class PulsarBlockLine(Document, kw_only=True):
    """A block of an offloaded ledger, printed by ``dump --index``."""

    topic: str | UnsetType = UNSET  # only in a topic folder, as are the next two and source
    partition: int | UnsetType = UNSET
    ledger: int | UnsetType = UNSET
    index: str  # "offload"
    first_entry: int
    part: int
    position: int
    end: int
    source: str | UnsetType = UNSET
    file: str


class PulsarLedgerLine(Document, kw_only=True):
    """A ledger in the metadata of a topic folder."""

    topic: str
    partition: int
    ledger: int
    entries: int | None  # null if the ledger is open, as are the next two
    bytes: int | None
    closed_timestamp: int | None
    offloaded: str | None
    properties: dict[str, str]


class PulsarManifestLine(Document, kw_only=True):
    """The entry for the compacted ledger in ``compacted.json`` of a topic folder."""

    topic: str
    partition: int
    version: int
    ledger: int
    object: str  # the name of its data object
    from_: str = field(name="from")  # the first entry
    to: str
    horizon: str  # the last entry that the rounds have read
    entries: int
    bytes: int
    messages: int
    order: str  # "publishing" or "event-time"
    retain_null_key: bool
    parts: bool  # there may be messages in chunks
    read: int  # messages that the last round read
    ledgers: list[int]  # the raw ledgers that it read
    checksum: str


class PulsarLastMessageId(Document):
    """The last message as a broker reports it; -1 means none."""

    ledger: int
    entry: int
    batch_index: int


class PulsarReadEnd(Document, kw_only=True):
    """The last line of ``read`` for a topic of Pulsar: how it ended."""

    status: str | None  # END_OF_TOPIC, LIMIT, OPEN_TRANSACTION or DAMAGED
    topic: str
    partition: int
    read_compacted: bool
    from_: str = field(name="from")
    next: str  # where to continue, as a value of --from
    messages: int
    horizon: str | None  # LEDGER:ENTRY
    compacted_ledger: int | None
    horizons_read: list[str]  # of all compacted ledgers that were read
    last_message_id: PulsarLastMessageId
    incomplete_chunks: int
    notes: list[Problem]


DUMPED = (
    KafkaRecordLine,
    KafkaBatchLine,
    KafkaIndexLine,
    KafkaProducerLine,
    KafkaEpochLine,
    KafkaOffsetLine,
    KafkaTopicIdLine,
    KafkaShutdownLine,
    KafkaRootLine,
    RocketmqMessageLine,
    RocketmqIndexLine,
    RocketmqCheckpointLine,
    RocketmqAbortLine,
    RocketmqLockLine,
    RocketmqTopicLine,
    RocketmqGroupLine,
    RocketmqPositionLine,
    RocketmqFileLine,
    PulsarMessageLine,
    PulsarEntryLine,
    PulsarBlockLine,
    PulsarLedgerLine,
    PulsarManifestLine,
)
READ = (
    KafkaRecordLine,
    KafkaReadEnd,
    RocketmqMessageLine,
    RocketmqReadEnd,
    PulsarMessageLine,
    PulsarReadEnd,
)
