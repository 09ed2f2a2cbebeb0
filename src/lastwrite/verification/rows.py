"""The rows by which ``verify`` compares every record and batch of two logs.

A row is five uint64, so that the rows of both logs can be sorted as one array:

    word  of a record                                of a batch
    0     digest of the key, first lane              digest of the base offset, first lane
    1     48 bits of the second lane · 16 flag bits  as for a record
    2     offset                                     base offset
    3     digest of value, headers and timestamp     delete horizon, or NO_HORIZON
    4     second lane of word 3, or the version      digest of the header fields that compaction
                                                     must not change

The top bits of word 0 choose the bucket, so all rows of a key are in one bucket. For records
without a key and for control records, the offset is used as the key.

A record has a version if its topic's last writes are not chosen by offset
(``compaction.strategy``). The version is the record's timestamp, or the number in a header.

Some properties of a record depend on batches elsewhere in the log: whether its transaction was
aborted, and whether a producer's state depends on its batch. For each of these batches a *fact* is
stored, nine int64, in the order of the log. Facts are judged separately (see
``verification.batch_invariants``). Their consequences for records are looked up by offset.
"""

from __future__ import annotations

ROW_WORDS = 5
ROW_BYTES = 8 * ROW_WORDS
SEED_WORDS = 8
FLAG_BITS = 16

AFTER = 1  # the row is of the present log; otherwise of the earlier log
BATCH = 32  # the row is of a batch; otherwise of a record

# The kinds of versions. BY_OFFSET means that records have no versions.
BY_OFFSET, BY_TIMESTAMP, BY_HEADER = range(3)
NO_VERSION = -(1 << 63)  # the version of a record without the header

# Flags of a record.
KEYLESS = 2
TOMBSTONE = 4
CONTROL = 8
DUE = 16  # the batch's delete horizon has passed
IN_TRANSACTION = 1 << 14
# set from ``Lookups``: data of an aborted transaction, or a marker whose transaction has no batch
# left
DISCARDABLE = 1 << 15

# Flags of a batch.
SIMPLE = 2  # the batch has no producer and no leader epoch, like a converted batch
OLD = 4  # the batch has an older format
EMPTY = 64  # the batch has no records
HONEST = 128  # the header's largest timestamp equals the largest timestamp of the records
CODEC_SHIFT = 8  # position of the three bits of the codec
OWED = 1 << 15  # set from ``Lookups``: the batch must stay, perhaps empty

# Flags of carried rows, which summarise the later parts of the log for a key (see
# ``verification.invariants``).
CARRIED = 1 << 11
GONE = 1 << 12  # the key's last record was a delete, and has been removed
SEEN = 1 << 13  # the key's last record in the present log has been counted
COUNTED = 1 << 14  # the key has been counted

# Indexes of the counts in a reader's int64 array.
RECORDS, TOMBSTONES, KEYLESS_RECORDS, CONTROL_RECORDS, EMPTY_BATCHES, OLD_BATCHES = range(6)
TALLIES = 6

# The fields of a fact.
BASE = 0  # first offset of the batch
LAST = 1  # last offset of the batch
PRODUCER = 2  # producer id; -1 if there is none
EPOCH = 3  # producer epoch
KIND = 4  # kind of the batch, one of the constants below
HORIZON = 5  # delete horizon, or NO_HORIZON
TIME = 6  # largest timestamp of the batch
PRESENT = 7  # number of records in the batch
SHAPE = 8  # codec, plus 8 if timestamps are append times
FACT_WORDS = 9

# Kinds of facts.
IDEMPOTENT_DATA = 0
TRANSACTION_DATA = 1
ABORT_MARKER = 2
COMMIT_MARKER = 3
EMPTIED_MARKER = 4  # a control batch whose record was removed, so that its type is unknown
OLD_DATA = 5
SIMPLE_DATA = 6

# The fields of a finished transaction, in an array of rows that ascends by marker.
MARKER = 0  # offset of the marker
OWNER = 1  # producer id
VERDICT = 2  # ABORT_MARKER or COMMIT_MARKER
LEFT = 3  # number of data batches left, including empty batches
FIRST_LEFT = 4  # base offset of the first data batch left; -1 if there is none
LAST_LEFT = 5  # last offset of the last data batch left
LEFT_RECORDS = 6  # number of data records left
TRANSACTION_WORDS = 7
