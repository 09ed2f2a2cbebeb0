"""Records without a key, where a topic is to be compacted that has such.

A broker refuses a record without a key for a topic whose policy is ``compact``, so a partition that
holds one has been another kind of topic, or still is: to compact it would lose nearly all of it.
Kafka's own cleaner drops such records without a word. The smallest case: ten records, none with a
key, and somebody asks for compaction. Nothing is cleaned until it is said that they may go, by
``--drop-keyless``, or for a share of the records by ``max.keyless.ratio``.

Control records have no place here, nor have records of aborted transactions, which nobody reads; a
tombstone has a key.

Source: Kafka 4.4 ``LogValidator`` (a compacted topic cannot accept a message without key),
``Cleaner``;
docs/decisions/keyless-records.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from lastwrite.errors import InvalidConfig

RATIO = "max.keyless.ratio"
OPTION = "--drop-keyless"


def may_drop(config: Mapping[str, object] | None, drop_keyless: bool) -> dict[str, object]:
    """The settings, with leave to drop every record without a key where ``drop_keyless`` gives it.

    Raises:
        InvalidConfig: both are given.
    """
    if drop_keyless and RATIO in (config or {}):
        raise InvalidConfig(f"{OPTION} and {RATIO} exclude each other", remedy="give one of them")
    return {**(config or {}), **({RATIO: 1.0} if drop_keyless else {})}


def refuse_elsewhere(config: Mapping[str, object], system: str, governs: str) -> None:
    """Only Kafka's topics ask for leave.

    Raises:
        InvalidConfig: leave is given for a topic of another ``system``, where the setting
            ``governs`` says what goes.
    """
    if system != "kafka" and RATIO in config:
        raise InvalidConfig(
            f"{OPTION} ({RATIO}) is for Kafka's topics",
            remedy=f"here {governs} decides about such records",
        )


def is_refused(keyless: int, data: int, most: float) -> bool:
    """Whether ``keyless`` among ``data`` records are more than the share that may go."""
    return keyless > most * data


def refusal(keyless: int, data: int, first: int, most: float) -> str:
    """Why such a partition is left alone, and what to do."""
    share = "" if not most else f", more than {RATIO} = {most:g} allows"
    return (
        f"{keyless:,} of {data:,} records in range have no key, the first at offset {first}{share}: compaction would "
        "drop them, and a topic that was meant to be compacted has none — if it is such a topic, and they may be lost, "
        f"say so with {OPTION}; if not, its cleanup.policy is delete"
    )
