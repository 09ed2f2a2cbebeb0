"""Members and protocols of the groups in ``__consumer_offsets``, and expiry of committed offsets.

A broker removes a committed offset ``offsets.retention.minutes`` after

- the commit, if the group never had members;
- the commit, if the group has the protocol of KIP-848 and no member subscribes to the topic;
- the time at which a classic group became empty, or the commit if the group's record lacks that
  time.

Offsets of a classic group with members do not expire. A commit of version 1 has an expiry time that
the client chose.

Source: Kafka 4.4 ``OffsetMetadataManager.cleanupExpiredOffsets``,
``OffsetExpirationConditionImpl``, ``ClassicGroup.offsetExpirationCondition``,
``ConsumerGroup.isSubscribedToTopic``; KIP-211.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lastwrite.kafka.cluster.commits import Commit, GroupPartition
from lastwrite.kafka.cluster.internal_topics import (
    GROUPS_TOPIC,
    DecodedRecord,
    decode_internal_record,
)
from lastwrite.kafka.format.batch_layout import Record

_CLASSIC, _CONSUMER, _CONSUMER_MEMBER, _CONSUMER_TARGET = 2, 3, 5, 6  # record types
_KINDS = (_CLASSIC, _CONSUMER, _CONSUMER_MEMBER, _CONSUMER_TARGET)


class GroupKind(NamedTuple):
    """The protocol of a group. ``protocol_type`` is empty if a classic group never had members."""

    protocol_type: str = ""
    is_newer: bool = False  # whether the group uses the protocol of KIP-848
    epoch: int = 0  # group epoch; 0 in classic groups
    assignment_epoch: int = 0  # epoch of the target assignment; 0 in classic groups


class GroupStates:
    """Groups and members in ``__consumer_offsets``, built by applying its records in order."""

    def __init__(self) -> None:
        # the newest value of each key, by record type
        self._values: dict[int, dict[bytes, bytes]] = {kind: {} for kind in _KINDS}

    def take(self, records: Iterable[Record]) -> None:
        """Apply the next records of ``__consumer_offsets``."""
        for record in records:
            key = record.key or b""
            kind = int.from_bytes(key[:2], "big") if len(key) >= 2 else -1
            if kind in _KINDS:
                there = self._values[kind]
                if record.value is None:
                    there.pop(key, None)
                else:
                    there[key] = record.value

    def expiry(self) -> Expiry:
        """The rules by which committed offsets expire, after the records applied so far.

        If a group's record cannot be decoded, its members are unknown, and its offsets do not
        expire.
        """
        empty_since: dict[str, int | None] = {}
        held: set[str] = set()
        subscribed: set[tuple[str, str]] = set()
        for group, found in self._decoded(_CLASSIC):
            if found.value is None or found.problem or found.value["members"]:
                held.add(group)
            elif found.value["protocolType"]:
                since = found.value.get("currentStateTimestamp", -1)
                empty_since[group] = None if since < 0 else since
        for group, found in self._decoded(_CONSUMER_MEMBER):
            if found.value is None or found.problem or found.value["subscribedTopicRegex"]:
                held.add(group)
            else:
                topics = found.value["subscribedTopicNames"] or []
                subscribed |= {(group, topic) for topic in topics}
        return Expiry(empty_since, frozenset(held), frozenset(subscribed))

    def kinds(self) -> dict[str, GroupKind]:
        """The protocol of each group. Omits groups whose record cannot be decoded."""
        kinds = {
            group: GroupKind(found.value["protocolType"] or "")
            for group, found in self._decoded(_CLASSIC)
            if found.value is not None
        }
        targets = {
            group: found.value["assignmentEpoch"]
            for group, found in self._decoded(_CONSUMER_TARGET)
            if found.value is not None
        }
        for group, found in self._decoded(_CONSUMER):
            if found.value is not None:
                epochs = found.value["epoch"], targets.get(group, 0)
                kinds[group] = GroupKind("consumer", True, *epochs)
        return kinds

    def _decoded(self, kind: int) -> Iterator[tuple[str, DecodedRecord]]:
        """The group and the decoded record of each key with record type ``kind``."""
        for key, value in self._values[kind].items():
            found = decode_internal_record(GROUPS_TOPIC, key, value)
            group = (found.key or {}).get("group" if kind == _CLASSIC else "groupId")
            if group is not None:
                yield group, found


class Expiry:
    """The rules by which committed offsets expire, and the members and times of the groups."""

    def __init__(
        self,
        empty_since: dict[str, int | None],
        held: frozenset[str],
        subscribed: frozenset[tuple[str, str]],
    ) -> None:
        self._empty_since = empty_since
        self._stack = held
        self._subscribed = subscribed

    def is_expired(
        self, place: GroupPartition, commit: Commit, now_ms: int, retention_ms: int
    ) -> bool:
        """Whether a broker would expire the offset at ``now_ms``."""
        if place.group in self._stack or (place.group, place.topic) in self._subscribed:
            return False
        if commit.expires_ms >= 0:
            return now_ms >= commit.expires_ms
        since = self._empty_since.get(place.group)
        return now_ms - (commit.at_ms if since is None else since) >= retention_ms
