"""Records without a key in a topic that is to be compacted.

A broker refuses a record without a key if the topic's policy is ``compact``. So a partition with
such a record was another kind of topic, or still is, and compaction would lose nearly all of it.
Kafka's own cleaner drops such records silently. The smallest case: ten records without a key, and a
user who asks for compaction. Nothing is cleaned until the user accepts the loss, with
``--drop-keyless``, or up to a share of the records with ``max.keyless.ratio``.

Control records do not count, nor do records of aborted transactions, which consumers never read. A
tombstone has a key.

Source: Kafka 4.4 ``LogValidator`` (a compacted topic cannot accept a message without key),
``Cleaner``; docs/decisions/keyless-records.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from lastwrite.errors import InvalidConfig

RATIO = "max.keyless.ratio"
OPTION = "--drop-keyless"


def may_drop(config: Mapping[str, object] | None, drop_keyless: bool) -> dict[str, object]:
    """The settings, which with ``drop_keyless`` allow dropping every record without a key.

    Raises:
        InvalidConfig: both the option and the setting are given.
    """
    if drop_keyless and RATIO in (config or {}):
        raise InvalidConfig(f"{OPTION} and {RATIO} exclude each other", remedy="give one of them")
    return {**(config or {}), **({RATIO: 1.0} if drop_keyless else {})}


def reject_elsewhere(config: Mapping[str, object], system: str, governs: str) -> None:
    """Check that the option is used with Kafka only.

    Raises:
        InvalidConfig: it is given for a topic of another ``system``, where the setting ``governs``
            decides what is dropped.
    """
    if system != "kafka" and RATIO in config:
        raise InvalidConfig(
            f"{OPTION} ({RATIO}) is for Kafka's topics",
            remedy=f"here {governs} decides whether such records are dropped",
        )


def is_refused(keyless: int, data: int, most: float) -> bool:
    """Whether ``keyless`` among ``data`` records exceed the share that may be dropped."""
    return keyless > most * data


def refusal(keyless: int, data: int, first: int, most: float) -> str:
    """Why such a partition is skipped, and what the user can do."""
    share = "" if not most else f", more than {RATIO} = {most:g} allows"
    return (
        f"{keyless:,} of {data:,} records in range have no key, the first at offset {first}{share}: "
        "compaction would drop them, so the partition is skipped — "
        f"add {OPTION} if they may be lost; otherwise do not compact this topic"
    )
