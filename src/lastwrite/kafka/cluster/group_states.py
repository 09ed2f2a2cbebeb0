"""Which groups of ``__consumer_offsets`` have members, and which positions a broker lets expire.

A broker expires a position ``offsets.retention.minutes`` after

- its commit, in a group that never had members, or of the newer protocol in a topic that no member
  subscribes to;
- the moment its classic group became empty, where the group's record has that moment, or its
commit.

Positions of a classic group with members do not expire. A record of version 1 has its own time.

Source: Kafka 4.4 ``OffsetMetadataManager.cleanupExpiredOffsets``,
``OffsetExpirationConditionImpl``, ``ClassicGroup.offsetExpirationCondition``,
``ConsumerGroup.isSubscribedToTopic``; KIP-211.
"""

from __future__ import annotations

from collections.abc import Iterable

from lastwrite.kafka.cluster.commits import Commit, Place
from lastwrite.kafka.cluster.internal_topics import GROUPS_TOPIC, decode_internal_record
from lastwrite.kafka.format.batch_layout import Record

_CLASSIC, _CONSUMER_MEMBER = 2, 5  # types of keys


class GroupStates:
    """Replays the records of ``__consumer_offsets`` that describe groups and their members."""

    def __init__(self) -> None:
        self._classic: dict[bytes, bytes] = {}  # the newest value of each key
        self._members: dict[bytes, bytes] = {}

    def take(self, records: Iterable[Record]) -> None:
        """Take the records that follow."""
        for record in records:
            key = record.key or b""
            kind = int.from_bytes(key[:2], "big") if len(key) >= 2 else -1
            if kind in (_CLASSIC, _CONSUMER_MEMBER):
                there = self._classic if kind == _CLASSIC else self._members
                if record.value is None:
                    there.pop(key, None)
                else:
                    there[key] = record.value

    def expiry(self) -> Expiry:
        """The groups as the records that were taken leave them.

        The members of a group whose record cannot be read are unknown: none of its positions
        expires.
        """
        empty_since: dict[str, int | None] = {}
        held: set[str] = set()
        subscribed: set[tuple[str, str]] = set()
        for key, value in self._classic.items():
            found = decode_internal_record(GROUPS_TOPIC, key, value)
            group = (found.key or {}).get("group")
            if group is None:
                continue
            if found.value is None or found.problem or found.value["members"]:
                held.add(group)
            elif found.value["protocolType"]:
                since = found.value.get("currentStateTimestamp", -1)
                empty_since[group] = None if since < 0 else since
        for key, value in self._members.items():
            found = decode_internal_record(GROUPS_TOPIC, key, value)
            group = (found.key or {}).get("groupId")
            if group is None:
                continue
            if found.value is None or found.problem or found.value["subscribedTopicRegex"]:
                held.add(group)
            else:
                topics = found.value["subscribedTopicNames"] or []
                subscribed |= {(group, topic) for topic in topics}
        return Expiry(empty_since, frozenset(held), frozenset(subscribed))


class Expiry:
    """Decides which positions are expired; see the module."""

    def __init__(
        self,
        empty_since: dict[str, int | None],
        held: frozenset[str],
        subscribed: frozenset[tuple[str, str]],
    ) -> None:
        self._empty_since = empty_since
        self._held = held
        self._subscribed = subscribed

    def is_expired(self, place: Place, commit: Commit, now_ms: int, retention_ms: int) -> bool:
        """Whether a broker would remove the position at ``now_ms``."""
        if place.group in self._held or (place.group, place.topic) in self._subscribed:
            return False
        if commit.expires_ms >= 0:
            return now_ms >= commit.expires_ms
        since = self._empty_since.get(place.group)
        return now_ms - (commit.at_ms if since is None else since) >= retention_ms
