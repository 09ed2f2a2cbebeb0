"""Rows of contents: the form in which ``verify`` compares every record and batch of two logs.

A row is five uint64, so that rows of both logs are sorted and moved as one array:

    word  of a record                                of a batch
    0     digest of the key, first lane              digest of the base offset, first lane
    1     48 bits of the second lane · 16 flag bits  as for a record
    2     offset                                     base offset
    3     digest of value, headers and timestamp     delete horizon, or NO_HORIZON
    4     its second lane, or its version            digest of the header fields that compaction
                                                     must not change

The top bits of word 0 choose the bucket, so all rows of a key are in one bucket. A record without a
key and a control record have their offset as "key".

A record has a version if its topic's last writes are not chosen by offset
(``compaction.strategy``): its timestamp, or the number in a header.

Some properties of a record depend on batches elsewhere in the log: whether its transaction was
aborted, whether a producer's state depends on its batch. Of such batches a *fact* is stored, nine
int64, in the order of the log. Facts are judged by themselves (see ``verify.batch_invariants``),
and their consequences for records are looked up by offset.
"""

from __future__ import annotations

ROW_WORDS = 5
ROW_BYTES = 8 * ROW_WORDS
SEED_WORDS = 8
FLAG_BITS = 16

AFTER = 1  # in the log under proof; otherwise in the log before
BATCH = 32  # the row is of a batch

# The kinds of versions; with offsets there are none.
BY_OFFSET, BY_TIMESTAMP, BY_HEADER = range(3)
NO_VERSION = -(1 << 63)  # of a record without that header

# Flags of a record.
KEYLESS = 2
TOMBSTONE = 4
CONTROL = 8
DUE = 16  # its batch's delete horizon has come
IN_TRANSACTION = 1 << 14
# looked up: data of an aborted transaction, or a marker whose transaction has no batch left
DISCARDABLE = 1 << 15

# Flags of a batch.
SIMPLE = 2  # without producer and leader epoch, as a converted batch is
OLD = 4  # of an older format
EMPTY = 64  # without records
HONEST = 128  # the header's largest timestamp is that of the records
CODEC_SHIFT = 8  # three bits: the codec
OWED = 1 << 15  # looked up: the batch must stay, perhaps empty

# Rows that summarise the later parts of the log for a key (see ``verify.invariants``).
CARRIED = 1 << 11
GONE = 1 << 12  # the key's last record was a delete, and has been removed
SEEN = 1 << 13  # the key's last record of the log under proof has been counted
COUNTED = 1 << 14  # the key has been counted

# The counts of a reader, by index in an int64 array.
RECORDS, TOMBSTONES, KEYLESS_RECORDS, CONTROL_RECORDS, EMPTY_BATCHES, OLD_BATCHES = range(6)
TALLIES = 6

# The fields of a fact.
BASE = 0  # first and last offset of the batch
LAST = 1
PRODUCER = 2  # -1 if there is none
EPOCH = 3  # of the producer
KIND = 4  # one of the kinds below
HORIZON = 5  # delete horizon, or NO_HORIZON
TIME = 6  # the largest timestamp
PRESENT = 7  # records
SHAPE = 8  # codec, and 8 for append time
FACT_WORDS = 9

# Kinds of facts.
IDEMPOTENT_DATA = 0
TRANSACTION_DATA = 1
ABORT_MARKER = 2
COMMIT_MARKER = 3
EMPTIED_MARKER = 4  # a control batch without records: its type is lost
OLD_DATA = 5
SIMPLE_DATA = 6

# The fields of a finished transaction, in an array of rows that ascends by marker.
MARKER = 0  # offset of the marker
OWNER = 1  # the producer
VERDICT = 2  # ABORT_MARKER or COMMIT_MARKER
LEFT = 3  # data batches left, empty ones too
FIRST_LEFT = 4  # base offset of the first of them; -1 if there is none
LAST_LEFT = 5  # last offset of the last of them
LEFT_RECORDS = 6
TRANSACTION_WORDS = 7
