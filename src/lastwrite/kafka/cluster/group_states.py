"""Members and protocols of the groups in ``__consumer_offsets``, and which offsets a broker
expires.

A broker expires a committed offset ``offsets.retention.minutes`` after

- its commit, in a group that never had members, or of the newer protocol in a topic that no member
  subscribes to;
- the moment its classic group became empty, or its commit if the group's record lacks that moment.

Offsets of a classic group with members do not expire. A record of version 1 has its own time.

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

_CLASSIC, _CONSUMER, _CONSUMER_MEMBER, _CONSUMER_TARGET = 2, 3, 5, 6  # types of keys
_KINDS = (_CLASSIC, _CONSUMER, _CONSUMER_MEMBER, _CONSUMER_TARGET)


class GroupKind(NamedTuple):
    """The protocol of a group. ``protocol_type`` is empty if a classic group never had members."""

    protocol_type: str = ""
    is_newer: bool = False  # the protocol of KIP-848
    epoch: int = 0  # of a newer group
    assignment_epoch: int = 0


class GroupStates:
    """Replays the records of ``__consumer_offsets`` that describe groups and their members."""

    def __init__(self) -> None:
        # by type, the newest value of each key
        self._values: dict[int, dict[bytes, bytes]] = {kind: {} for kind in _KINDS}

    def take(self, records: Iterable[Record]) -> None:
        """Apply the next records."""
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
        """The expiry rules after the records applied so far.

        If a group's record cannot be decoded, its members are unknown and none of its offsets
        expires.
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
        """The protocols of groups that have or had members. Groups with undecodable records are
        left out.
        """
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
        """The group and the decoded record of each key of that type."""
        for key, value in self._values[kind].items():
            found = decode_internal_record(GROUPS_TOPIC, key, value)
            group = (found.key or {}).get("group" if kind == _CLASSIC else "groupId")
            if group is not None:
                yield group, found


class Expiry:
    """Decides which committed offsets are expired; see the module."""

    def __init__(
        self,
        empty_since: dict[str, int | None],
        held: frozenset[str],
        subscribed: frozenset[tuple[str, str]],
    ) -> None:
        self._empty_since = empty_since
        self._held = held
        self._subscribed = subscribed

    def is_expired(
        self, place: GroupPartition, commit: Commit, now_ms: int, retention_ms: int
    ) -> bool:
        """Whether a broker would expire the offset at ``now_ms``."""
        if place.group in self._held or (place.group, place.topic) in self._subscribed:
            return False
        if commit.expires_ms >= 0:
            return now_ms >= commit.expires_ms
        since = self._empty_since.get(place.group)
        return now_ms - (commit.at_ms if since is None else since) >= retention_ms
