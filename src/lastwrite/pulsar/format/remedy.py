"""What to do with a damaged object of an archive, in words that lose nothing when they are
followed.

``fetch`` takes an object for present whose index fits and has the ledger's length: it reads no data
for that. So a damaged object has to go before it is brought anew; and it goes only where somebody
else has the ledger, since most of a damaged one can still be read.
"""

RESTORE = (
    "nothing was changed; if a bucket, bookies or the cluster still have this ledger, it is enough "
    "to delete this object and fetch the topic again: that brings it anew; else restore it from a "
    "backup"
)
