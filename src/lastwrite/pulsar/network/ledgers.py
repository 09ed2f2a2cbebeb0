"""Write a new ledger: choose bookies, write the entries, close the metadata.

A ledger is written once and by one writer. If a bookie fails, the ledger is deleted and another
ledger is written with other bookies. The entries can be read again, and the ledger has no readers
yet, so its ensemble never has to change.

Source: Pulsar 4.2.4 ``AbstractTwoPhaseCompactor``; BookKeeper 4.17.3 ``LedgerCreateOp``;
docs/formats/pulsar.md, "Compacted ledger"; docs/formats/pulsar-compaction.md, "The commit".
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lastwrite.errors import InvalidConfig, LogError, RemoteFailed
from lastwrite.pulsar.format.ledger_metadata import (
    Digest,
    Ensemble,
    LedgerMetadata,
    LedgerState,
    custom_items,
)
from lastwrite.pulsar.network.bookies import Bookies, LedgerWriter, LiveLedger
from lastwrite.pulsar.network.metadata import CreatedLedger, MetadataStore

_MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Quorums:
    """The ensemble size, write quorum and ack quorum of a ledger.

    The ensemble size is the number of the ledger's bookies. The write quorum is the number of
    bookies that store an entry, and the ack quorum the number that must confirm it.
    """

    ensemble: int = 2
    write: int = 2
    ack: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.ack <= self.write <= self.ensemble:
            raise InvalidConfig(
                f"the ensemble size {self.ensemble}, the write quorum {self.write} and the "
                f"ack quorum {self.ack} contradict each other",
                remedy="give an ensemble size that is at least the write quorum, a write quorum "
                "that is at least the ack quorum, and an ack quorum of at least 1",
            )


def write_ledger(
    store: MetadataStore,
    bookies: Bookies,
    entries: Callable[[], Iterable[bytes]],
    quorums: Quorums,
    custom: Mapping[str, bytes],
    now_ms: int,
    announce: Callable[[int], None] = lambda ledger: None,
) -> LiveLedger:
    """Write a closed ledger with these entries, numbered from 0.

    The ledger has CRC-32 digests and no password, as compacted ledgers have. ``entries`` is called
    again after a bookie fails. ``announce`` is called with each ledger before any of its entries is
    written. ``now_ms`` is the creation time in the ledger's metadata.

    Raises:
        RemoteFailed: not enough bookies, or no answer. The new ledger is deleted.
        CommitConflict: another program has changed the new ledger.
    """
    refused: dict[str, RemoteFailed] = {}
    for _ in range(_MOST_TRIES):
        ensemble = choose_bookies(store.bookies(), quorums.ensemble, store.racks(), refused)
        made = store.create_ledger(open_metadata(quorums, ensemble, custom, now_ms))
        writer = LedgerWriter(bookies, made.ledger)
        try:
            announce(made.ledger.id)
            for entry in entries():
                writer.add(entry)
            writer.flush()
            return _closed(store, made, writer)
        except BaseException as error:
            writer.abandon()
            # If this deletion fails, the next run deletes the ledger, because a note about it is
            # stored.
            with contextlib.suppress(LogError):
                store.delete_ledger(made.ledger.id)
            if writer.failed is None or not isinstance(error, RemoteFailed):
                raise
            refused[writer.failed] = error
    raise next(reversed(refused.values()))


def _closed(store: MetadataStore, ledger: CreatedLedger, writer: LedgerWriter) -> LiveLedger:
    metadata = replace(
        ledger.ledger.metadata,
        state=LedgerState.CLOSED,
        length=writer.bytes,
        last_entry=writer.entries - 1,
    )
    store.close_ledger(ledger, metadata)
    return LiveLedger(ledger.ledger.id, metadata)


def open_metadata(
    quorums: Quorums, ensemble: Sequence[str], custom: Mapping[str, bytes], now_ms: int
) -> LedgerMetadata:
    """The metadata of a new, open ledger."""
    return LedgerMetadata(
        quorum=quorums.write,
        ensemble=quorums.ensemble,
        length=0,
        last_entry=-1,
        state=LedgerState.OPEN,
        ensembles=(Ensemble(bookies=tuple(ensemble), first_entry=0),),
        digest=Digest.CRC32,
        password=b"",
        ack_quorum=quorums.ack,
        ctime_ms=now_ms,
        custom_items=custom_items(dict(custom)),
    )


def choose_bookies(
    alive: Sequence[str],
    count: int,
    racks: Mapping[str, str],
    refused: Collection[str] = (),
) -> tuple[str, ...]:
    """Choose ``count`` random bookies, from as many racks as possible.

    Raises:
        RemoteFailed: fewer bookies are available.
    """
    usable = [bookie for bookie in alive if bookie not in refused]
    if len(usable) < count:
        text = "".join(f"; {bookie} failed" for bookie in refused)
        raise RemoteFailed(
            f"a new ledger needs {count} bookies, but only {len(usable)} accept entries{text}",
            remedy="start more bookies, or set managedLedgerDefaultEnsembleSize, "
            "managedLedgerDefaultWriteQuorum and managedLedgerDefaultAckQuorum to the "
            "brokers' values",
        )
    order = sorted(usable, key=lambda bookie: secrets.randbits(32))
    chosen: list[str] = []
    while len(chosen) < count:
        seen = {racks.get(bookie) for bookie in chosen}
        left = [bookie for bookie in order if bookie not in chosen]
        chosen.append(next((each for each in left if racks.get(each) not in seen), left[0]))
    return tuple(chosen)
