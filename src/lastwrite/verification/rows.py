"""Rows of contents: how ``verify`` speaks of every record and every batch of two logs at once.

A row is five uint64, so that rows of both logs sort and travel as one array:

    word  of a record                                of a batch
    0     digest of the key, first lane              digest of the base offset, first lane
    1     48 bits of the second lane · 16 flag bits  likewise
    2     offset                                     base offset
    3     digest of value, headers and timestamp     delete horizon, or NO_HORIZON
    4     its second lane, or its version            digest of what compaction must not touch in the
                                                     header

The top bits of word 0 choose the bucket, so that all that is said of a key lies in one. A record
without a key and a control record have a "key" of their own: their offset.

A record has a version where its topic's last writes are not chosen by offset
(``compaction.strategy``): its timestamp, or what a header of it says.

What a record cannot tell of itself (whether its transaction was aborted, whether a producer's state
hangs on its batch) follows from batches elsewhere in the log. Of these a *fact* is noted, nine
int64, in the order of the log. Facts are judged by themselves (see ``verify.batch_invariants``),
and what follows for records is looked up by offset.
"""

from __future__ import annotations

ROW_WORDS = 5
ROW_BYTES = 8 * ROW_WORDS
SEED_WORDS = 8
FLAG_BITS = 16

AFTER = 1  # of the log under proof; else of the log as it was
BATCH = 32  # the row is of a batch

# What a version is; with offsets there is none.
BY_OFFSET, BY_TIMESTAMP, BY_HEADER = range(3)
NO_VERSION = -(1 << 63)  # without that header

# Of a record.
KEYLESS = 2
TOMBSTONE = 4
CONTROL = 8
DUE = 16  # its batch's delete horizon has come
IN_TRANSACTION = 1 << 14
# looked up: data of an aborted transaction; a marker of whose transaction no batch was left
DISCARDABLE = 1 << 15

# Of a batch.
SIMPLE = 2  # without producer and leader epoch: what an older format becomes
OLD = 4  # of an older format
EMPTY = 64  # without records
HONEST = 128  # the largest timestamp in the header is that of its records
CODEC_SHIFT = 8  # three bits: the codec
OWED = 1 << 15  # looked up: must stay, empty if need be

# Rows that sum up what was said of a key in later parts of the log (see ``verify.invariants``).
CARRIED = 1 << 11
GONE = 1 << 12  # the key's last record was a delete, and has been removed
SEEN = 1 << 13  # the key's last record of the log under proof has been counted
COUNTED = 1 << 14  # the key has been counted

# What a reader counts on its way, by place in an int64 array.
RECORDS, TOMBSTONES, KEYLESS_RECORDS, CONTROL_RECORDS, EMPTY_BATCHES, OLD_BATCHES = range(6)
TALLIES = 6

# A fact, by place.
BASE = 0  # first and last offset of the batch
LAST = 1
PRODUCER = 2  # -1: none
EPOCH = 3  # of the producer
KIND = 4  # one of those below
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
EMPTIED_MARKER = 4  # a control batch without records: it says no more what it was
OLD_DATA = 5
SIMPLE_DATA = 6

# A finished transaction, as facts tell it: an array of rows ascending by marker, by place.
MARKER = 0  # offset of the marker
OWNER = 1  # the producer
VERDICT = 2  # ABORT_MARKER or COMMIT_MARKER
LEFT = 3  # data batches left, empty ones too
FIRST_LEFT = 4  # base offset of the first of them; -1: none
LAST_LEFT = 5  # last offset of the last of them
LEFT_RECORDS = 6
TRANSACTION_WORDS = 7
