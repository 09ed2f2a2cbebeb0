"""The fields of the lines that ``dump`` and ``read`` print with ``--json``.

Each system's ``look/rows.py`` creates the lines as dictionaries, which is faster. Bytes are base64,
times are milliseconds since 1970.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType, field

from lastwrite.model.log import Problem
from lastwrite.reports.document import Document


class KafkaRecordLine(Document, kw_only=True):
    """A record of Kafka. Numbers are as stored; -1 means none."""

    topic: str | None  # null if the path does not contain it
    partition: int | None  # null if the path does not contain it
    offset: int
    timestamp: int
    timestamp_type: str  # "CreateTime", "LogAppendTime" or "none"
    key: str | None  # base64
    value: str | None  # base64; null if the record deletes the key
    headers: list[tuple[str, str | None]]  # name, and value in base64
    producer_id: int
    producer_epoch: int
    sequence: int
    transactional: bool
    control: str | None  # "commit", "abort" or another type; null for data
    compression: str
    leader_epoch: int
    segment: int  # base offset from the segment's file name
    position: int  # byte of the record's batch in the segment
    # only with --decode: key and value as text, or type, name, key, value_version, value and
    # problem in Kafka's internal topics; null for control records
    decoded: dict[str, Any] | None | UnsetType = UNSET


class KafkaBatchLine(Document, kw_only=True):
    """A batch of Kafka, printed by ``dump --batches``."""

    topic: str | None
    partition: int | None
    base_offset: int
    last_offset: int
    records: int  # records in the batch
    bytes: int  # bytes of the batch, including the header
    magic: int  # 0, 1 or 2
    crc: int
    base_timestamp: int
    max_timestamp: int
    timestamp_type: str  # "CreateTime", "LogAppendTime" or "none"
    # time from which the batch's deletes and markers may be dropped; null if no round has set it
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
    offset: int | UnsetType = UNSET  # only if ``index`` is "offset" or "time"
    position: int | UnsetType = UNSET  # only if ``index`` is "offset"
    timestamp: int | UnsetType = UNSET  # only if ``index`` is "time"
    version: int | UnsetType = UNSET  # only if ``index`` is "transaction"
    producer_id: int | UnsetType = UNSET  # only if ``index`` is "transaction"
    first_offset: int | UnsetType = UNSET  # only if ``index`` is "transaction"
    last_offset: int | UnsetType = UNSET  # only if ``index`` is "transaction"
    last_stable_offset: int | UnsetType = UNSET  # only if ``index`` is "transaction"


class KafkaProducerLine(Document, kw_only=True):
    """A producer in a ``.snapshot`` file. Numbers are as stored; -1 means none."""

    topic: str | None
    partition: int | None
    snapshot: int  # offset in the snapshot's file name
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int  # last offset of the producer's last batch
    offset_delta: int  # last offset minus first offset of the producer's last batch
    coordinator_epoch: int
    current_txn_first_offset: int  # first offset of the producer's open transaction; -1 if none
    timestamp: int  # timestamp of the producer's last batch or marker


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
    start_offset: int  # first offset of the leader epoch


class KafkaTopicIdLine(Document, kw_only=True):
    """The content of ``partition.metadata``."""

    topic: str | None
    partition: int | None
    topic_id: str


class KafkaShutdownLine(Document, kw_only=True):
    """The content of ``.kafka_cleanshutdown``."""

    broker_epoch: int | None


class KafkaRootLine(Document, kw_only=True):
    """The content of ``meta.properties``. A missing entry is null."""

    version: str | None
    cluster_id: str | None
    node_id: str | None
    directory_id: str | None  # different in each log root of a broker


class KafkaReadEnd(Document, kw_only=True):
    """The last line of ``read`` for a partition of Kafka: how the read ended."""

    # END_OF_PARTITION, LIMIT, OPEN_TRANSACTION (the last stable offset is below the high
    # watermark), OFFSET_OUT_OF_RANGE (the log ends below the requested offset) or DAMAGED
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
    notes: list[Problem]  # irregularities in the log


class RocketmqMessageLine(Document, kw_only=True):
    """A message of RocketMQ."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int  # address of the record in the commit log, as stored in the record
    size: int  # bytes of the record
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
    stored_body: str  # base64 of the stored, possibly compressed body
    compression: str
    file: str
    position: int  # byte of the record in the file
    message_id: str | None  # only in the commit log
    transaction: str | None  # "prepared", "commit" or "rollback"
    batch_index: int | None  # index in an inner batch; null outside an inner batch
    properties_raw: str | None  # base64; null if ``properties`` has the same content
    found_by: str  # how the record was found
    problem: str | None
    decoded: dict[str, Any] | None | UnsetType = UNSET  # the body as text; only with --decode


class RocketmqIndexLine(Document, kw_only=True):
    """An entry of a queue or an index, printed by ``dump --index``. ``index`` determines which
    fields are present.
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
    messages: int | UnsetType = UNSET  # only if ``index`` is "batchconsumequeue" or "compaction"
    # only if ``index`` is "batchconsumequeue" or "compaction"
    compacted_offset: int | UnsetType = UNSET
    reserved: int | UnsetType = UNSET  # only if ``index`` is "batchconsumequeue" or "compaction"
    address: int | UnsetType = UNSET  # only if ``index`` is "consumequeue_ext"
    bitmap: str | UnsetType = UNSET  # only if ``index`` is "consumequeue_ext"; hexadecimal
    entry: int | UnsetType = UNSET  # only if ``index`` is "index": number of the entry
    slot: int | UnsetType = UNSET  # only if ``index`` is "index": hash slot of the entry
    hash: int | UnsetType = UNSET  # only if ``index`` is "index": hash of topic and key
    # only if ``index`` is "index": time since the file's first entry
    seconds: int | UnsetType = UNSET
    previous: int | UnsetType = UNSET  # only if ``index`` is "index": previous entry in the slot


class RocketmqCheckpointLine(Document, kw_only=True):
    """The content of ``checkpoint``. A field that the broker's release does not write is 0."""

    commit_log_timestamp: int
    consume_queue_timestamp: int
    index_timestamp: int
    master_flushed_offset: int
    confirm_offset: int
    consume_queue_offset: int
    recovery_timestamp: int  # time from which a broker dispatches again after a crash


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
    """A JSON file of a RocketMQ store that has no line type of its own."""

    file: str
    content: Any


class RocketmqReadEnd(Document, kw_only=True):
    """The last line of ``read`` for a queue of RocketMQ: how the read ended."""

    # as a broker returns it: FOUND if the limit was reached, OFFSET_OVERFLOW_ONE at the queue's
    # end, OFFSET_OVERFLOW_BADLY, OFFSET_FOUND_NULL, NO_MESSAGE_IN_QUEUE or NO_MATCHED_LOGIC_QUEUE
    status: str | None
    code: int | None  # status code in RocketMQ's protocol: 0, 19 or 21
    topic: str
    queue_id: int
    offset: int  # the first offset of this read
    next_offset: int  # the offset at which to continue
    min_offset: int
    max_offset: int
    messages: int
    notes: list[Problem]  # differences from what a broker would return


class PulsarTransaction(Document):
    """The id of a transaction."""

    most_bits: int
    least_bits: int


class PulsarChunk(Document):
    """A chunk of a large message. The message has several chunks, each in its own entry."""

    uuid: str | None
    id: int
    count: int | None
    total_size: int | None


class PulsarWrappedKey(Document):
    """The data key of an entry, encrypted with one public key."""

    name: str  # name of the public key; "?" if it cannot be read
    value: str | None  # base64
    metadata: dict[str, str]


class PulsarEncryption(Document):
    """The encryption of an entry: all data that the owner of a key needs for decryption."""

    keys: list[str]
    algorithm: str | None
    param: str | None  # base64; from the Java client, the IV of AES/GCM
    wrapped_keys: list[PulsarWrappedKey]


class PulsarMessageLine(Document, kw_only=True):
    """A message of Pulsar, or a marker. Fields of an entry apply to all its messages."""

    topic: str | None  # null if the path does not contain it
    partition: int | None
    ledger: int
    entry: int
    batch_index: int  # index in the batch; -1 outside a batch
    message_id: str  # LEDGER:ENTRY:PARTITION[:INDEX]
    key: str | None  # as clients return it: base64 if the key was set as bytes
    value: str | None  # base64; null if the value is null, encrypted or compacted out
    properties: dict[str, str]
    event_time: int  # event time in ms; 0 if there is none
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
    compacted_out: bool  # whether the message is only a placeholder after compaction
    encryption: PulsarEncryption | None
    stored_value: str | None  # base64 of the stored value, if it cannot be decoded
    transaction: PulsarTransaction | None
    chunk: PulsarChunk | None
    marker: str | None  # kind of the marker; null for a message
    broker_timestamp: int | None
    index: int | None  # index that the broker assigned
    size: int  # bytes of the entry
    source: str  # "backlog" or "compacted"
    file: str
    position: int
    problem: str | None
    stored_ledger: int | UnsetType = UNSET  # ledger id in the entry log
    stored_entry: int | UnsetType = UNSET  # entry id in the entry log


class PulsarEntryLine(Document, kw_only=True):
    """An entry of Pulsar, printed by ``dump --batches``. Common fields are as in a message."""

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
    records: int | None  # number of messages; null for a marker
    compacted_batch_indexes: list[int]
    highest_sequence_id: int | None
    uncompressed_size: int | None
    payload_bytes: int
    checksum: int | None
    stored_ledger: int | UnsetType = UNSET
    stored_entry: int | UnsetType = UNSET


class PulsarBlockLine(Document, kw_only=True):
    """A block of an offloaded ledger, printed by ``dump --index``."""

    topic: str | UnsetType = UNSET  # only in a topic folder
    partition: int | UnsetType = UNSET  # only in a topic folder
    ledger: int | UnsetType = UNSET  # only in a topic folder
    index: str  # "offload"
    first_entry: int
    part: int
    position: int
    end: int
    source: str | UnsetType = UNSET  # only in a topic folder
    file: str


class PulsarLedgerLine(Document, kw_only=True):
    """A ledger in the metadata of a topic folder."""

    topic: str
    partition: int
    ledger: int
    entries: int | None  # null if the ledger is open
    bytes: int | None  # null if the ledger is open
    closed_timestamp: int | None  # null if the ledger is open
    offloaded: str | None
    properties: dict[str, str]


class PulsarManifestLine(Document, kw_only=True):
    """The entry for the compacted ledger in ``compacted.json`` of a topic folder."""

    topic: str
    partition: int
    version: int
    ledger: int
    object: str  # name of the ledger's data object
    from_: str = field(name="from")  # position of the first entry
    to: str
    horizon: str  # position of the last entry that compaction has read
    entries: int
    bytes: int
    messages: int
    order: str  # "publishing" or "event-time"
    retain_null_key: bool
    parts: bool  # whether there may be chunked messages
    read: int  # number of messages that the last round read
    ledgers: list[int]  # raw ledgers that the last round read
    checksum: str


class PulsarLastMessageId(Document):
    """The id of the topic's last message, as a broker reports it. -1 means none."""

    ledger: int
    entry: int
    batch_index: int


class PulsarReadEnd(Document, kw_only=True):
    """The last line of ``read`` for a topic of Pulsar: how the read ended."""

    status: str | None  # END_OF_TOPIC, LIMIT, OPEN_TRANSACTION or DAMAGED
    topic: str
    partition: int
    read_compacted: bool
    from_: str = field(name="from")
    next: str  # position at which to continue, as a value of --from
    messages: int
    horizon: str | None  # LEDGER:ENTRY
    compacted_ledger: int | None
    horizons_read: list[str]  # horizons of all compacted ledgers that were read
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
