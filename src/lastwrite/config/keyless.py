"""Protect topics whose records have no key from losing all records.

A broker rejects a record without a key if the topic's policy is ``compact``. A topic with such
records therefore had another policy when they were written. Compaction would drop all of them, as
Kafka's cleaner does silently. Lastwrite cleans such a partition only if the user accepts the loss:
of all records with ``--drop-keyless``, or of a share of the records with ``max.keyless.ratio``.

Control records and records of aborted transactions do not count, because consumers never read them.
A tombstone has a key.

Source: Kafka 4.4 ``LogValidator`` (a compacted topic cannot accept a message without key),
``Cleaner``; docs/decisions/keyless-records.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from lastwrite.errors import InvalidConfig

RATIO = "max.keyless.ratio"
OPTION = "--drop-keyless"


def may_drop(config: Mapping[str, object] | None, drop_keyless: bool) -> dict[str, object]:
    """The settings in ``config``, extended by the effect of the option ``drop_keyless``.

    The option allows dropping all records without a key.

    Raises:
        InvalidConfig: both the option and the setting are given.
    """
    if drop_keyless and RATIO in (config or {}):
        raise InvalidConfig(
            f"{OPTION} and {RATIO} exclude each other", remedy="give only one of them"
        )
    return {**(config or {}), **({RATIO: 1.0} if drop_keyless else {})}


def reject_elsewhere(config: Mapping[str, object], system: str, governs: str) -> None:
    """Check that the option is used with Kafka only.

    Raises:
        InvalidConfig: the option is given for another ``system``, where the setting named in
            ``governs`` decides whether records without a key are dropped.
    """
    if system != "kafka" and RATIO in config:
        raise InvalidConfig(
            f"{OPTION} ({RATIO}) is only for topics of Kafka",
            remedy=f"leave it out; {governs} decides whether records without a key are dropped",
        )


def is_over_limit(keyless: int, data: int, most: float) -> bool:
    """Whether ``keyless`` records out of ``data`` are more than the share ``most``, 0 to 1."""
    return keyless > most * data


def refusal(keyless: int, data: int, first: int, most: float) -> str:
    """Why a partition with too many records without a key is skipped, and the remedy."""
    share = "" if not most else f", and {RATIO} = {most:g} allows fewer"
    return (
        f"{keyless:,} of {data:,} records in range have no key, the first at offset "
        f"{first}{share}. Compaction would drop them, so the partition was skipped — add "
        f"{OPTION} if they may be lost; otherwise do not compact this topic"
    )
