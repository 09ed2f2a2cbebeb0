"""``fetched.json``: what a fetch found out about a topic, even if the topic folder lacks the data.

``fetch`` writes the file before it copies data.

::

    {"version": 1, "topic": "persistent://public/default/orders", "entries": {"10": 30, "80": 90},
     "damaged": {"80": "91"}, "compacted": {"ledger": 77, "horizon": "10:5"}, "cursor": null,
     "checksum": "8a2e10c4"}

- ``entries``: the minimum number of entries of each ledger. For a closed ledger it is from the
  topic's metadata, its offload or the confirmed entries on bookies; for an open one it counts up to
  the last confirmed entry.
- ``damaged``: entries beyond ``entries`` that have no intact copy or may not belong to the ledger.
- ``compacted``: the compacted ledger that the cluster read from, and its horizon.
- ``cursor``: the cursor's ledger, if it could not be read. The id and the horizon of the compacted
  ledger are in its last entry.

Every command checks the folder against this file and reports missing entries as damage. If the
folder has the topic's own list of ledgers, only the listed ledgers are checked: ledgers deleted by
retention are not missing.

The file is Lastwrite's own and is replaced by one rename. ``manifest`` describes ``checksum``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lastwrite.errors import CorruptLog, InvalidConfig, located
from lastwrite.model.log import Problem, ProblemKind
from lastwrite.pulsar.format.managed_ledger import ManagedLedgerInfo
from lastwrite.pulsar.format.missing import EntryRange, decode_ranges, encode_ranges
from lastwrite.pulsar.format.names import FETCHED
from lastwrite.pulsar.format.position import MAX_ENTRY, MAX_LEDGER, Position
from lastwrite.pulsar.store.manifest import read_sealed, replace_file, seal, unseal

_VERSION = 1
_MOST_BYTES = 256 << 20
_REMEDY = (
    "fetch the topic again, which rewrites this file; without it Lastwrite cannot detect "
    "missing entries"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """The content of ``fetched.json``: what a fetch found out about a topic."""

    topic: str = ""
    entries: Mapping[int, int] = field(default_factory=dict)
    damaged: Mapping[int, tuple[EntryRange, ...]] = field(default_factory=dict)
    compacted: tuple[int, Position] | None = None  # ledger id and horizon of the compacted ledger
    cursor: int | None = None  # id of the cursor's ledger, if that ledger could not be read

    def encode(self) -> bytes:
        """The bytes of the file."""
        content = {
            "version": _VERSION,
            "topic": self.topic,
            "entries": {str(ledger): count for ledger, count in sorted(self.entries.items())},
            "damaged": {
                str(ledger): encode_ranges(each).decode()
                for ledger, each in sorted(self.damaged.items())
            },
            "compacted": self.compacted
            and {"ledger": self.compacted[0], "horizon": str(self.compacted[1])},
            "cursor": self.cursor,
        }
        return seal(content)

    @classmethod
    def decode(cls, data: bytes) -> TopicFacts:
        """Decode the file's bytes.

        Raises:
            CorruptLog: Lastwrite did not write these bytes.
        """
        content = unseal(data, "the file", _VERSION, _REMEDY)
        try:
            compacted, cursor = content["compacted"], content["cursor"]
            return cls(
                topic=str(content["topic"]),
                entries={
                    _ledger(name): _count(count) for name, count in content["entries"].items()
                },
                damaged={
                    _ledger(name): decode_ranges(text.encode())
                    for name, text in content["damaged"].items()
                },
                compacted=compacted
                and (_ledger(compacted["ledger"]), Position.parse(compacted["horizon"])),
                cursor=None if cursor is None else _ledger(cursor),
            )
        except (KeyError, TypeError, ValueError, AttributeError, InvalidConfig) as error:
            raise CorruptLog(
                f"a field of the file is missing or wrong: {error!r}", remedy=_REMEDY
            ) from error


def _ledger(value: object) -> int:
    number = int(str(value))
    if not 0 <= number <= MAX_LEDGER:
        raise ValueError(f"ledger {number}")
    return number


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= MAX_ENTRY + 1:
        raise ValueError(f"{value!r} entries")
    return value


def read_facts(folder: str) -> TopicFacts | None:
    """The content of ``fetched.json`` in a topic folder. None if there is no such file.

    Raises:
        CorruptLog: Lastwrite did not write this content.
        LogError: the file cannot be read.
    """
    path = os.path.join(folder, FETCHED)
    data = read_sealed(path, _MOST_BYTES, _REMEDY)
    with located(path):
        return None if data is None else TopicFacts.decode(data)


def write_facts(folder: str, facts: TopicFacts) -> None:
    """Write ``fetched.json``, atomically and durably.

    Raises:
        LogError: the file cannot be written; the former file remains.
    """
    replace_file(os.path.join(folder, FETCHED), facts.encode())


def without_list(ledgers: Sequence[int], folder: str) -> Problem:
    """A note that a topic was fetched without a ledger list."""
    each = "The ledger" if len(ledgers) == 1 else f"Each of the {len(ledgers)} ledgers"
    words = (
        f"the folder has no ledger list of the topic. {each} with the topic's name counts, "
        "even if retention deleted it or it belongs to an earlier topic of this name. "
        "Deleted values may come back"
    )
    remedy = (
        "fetch into a new folder with --topic, and with --metadata: the output of "
        "pulsar-admin topics stats-internal TOPIC, which contains the ledger list"
    )
    return Problem(ProblemKind.RECOVERED, words, folder, None, remedy)


def expected_entries(
    info: ManagedLedgerInfo | None, last_confirmed: Position | None, facts: TopicFacts | None
) -> dict[int, int | None]:
    """The minimum number of entries of each ledger, by ledger id in the log's order.

    None if unknown.
    """
    told: Mapping[int, int] = {} if facts is None else facts.entries
    if info is None:
        return dict(sorted(told.items()))
    found: dict[int, int | None] = {}
    for each in info.ledgers:
        counts = [each.entries, told.get(each.ledger)]
        if not each.is_closed:
            if last_confirmed is not None and last_confirmed.ledger <= each.ledger:
                counts.append(
                    last_confirmed.entry + 1 if last_confirmed.ledger == each.ledger else 0
                )
        found[each.ledger] = max((count for count in counts if count is not None), default=None)
    return found
