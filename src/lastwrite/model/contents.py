"""Rows of contents: how ``verify`` speaks of every record and every batch of two logs at once.

A row is five uint64, so that rows of both logs sort and travel as one array:

    word  of a record                                of a batch
    0     digest of the key, first lane              digest of the base offset, first lane
    1     48 bits of the second lane · 16 flag bits  likewise
    2     offset                                     base offset
    3     digest of value, headers and timestamp     delete horizon, or NO_HORIZON
    4     its second lane                            digest of what compaction must not touch in the header

The top bits of word 0 choose the bucket, so that all that is said of a key lies in one. A record without a
key and a control record have a "key" of their own: their offset.
"""

from __future__ import annotations

ROW_WORDS = 5
ROW_BYTES = 8 * ROW_WORDS
SEED_WORDS = 8
FLAG_BITS = 16

AFTER = 1  # of the log under proof; else of the log as it was
KEYLESS = 2
TOMBSTONE = 4
CONTROL = 8
DUE = 16  # its batch's delete horizon has come
BATCH = 32
EMPTY = 64  # a batch without records
HONEST = 128  # the largest timestamp in the batch's header is that of its records
CODEC_SHIFT = 8  # three bits: the batch's codec

# Rows that sum up what was said of a key in later parts of the log (see ``compaction.promises``).
CARRIED = 1 << 11
GONE = 1 << 12  # the key's last record was a delete, and has been removed
SEEN = 1 << 13  # the key's last record of the log under proof has been counted

# What a reader counts on its way, by place in an int64 array.
RECORDS, TOMBSTONES, KEYLESS_RECORDS, CONTROL_RECORDS, EMPTY_BATCHES = range(5)
TALLIES = 5
