"""The remedy for a damaged object of an archive. Following it loses no data.

``fetch`` skips a ledger whose index matches the ledger's length, without reading the data object.
So a damaged object must be deleted before ``fetch`` copies the ledger again. Delete it only if
another copy of the ledger exists, since most of a damaged object can still be read.
"""

RESTORE = (
    "nothing was changed; if the cluster, its bookies or its bucket still have this ledger, "
    "move this object to another folder and fetch the topic again, which copies the ledger "
    "again; otherwise restore the object from a backup"
)
