"""Consumer groups of KIP-848, where the server assigns the partitions.

Each member sends heartbeats with its subscription and its current partitions, and receives its
assignment. When members or topics change, the group gets a new epoch and a new target assignment. A
partition moves in two steps: the old member has to confirm that it has revoked the partition before
the new one gets it. A member reaches the group's epoch once it has its whole target assignment.

    a: {0 1 2 3}    b joins, target a: {0 1}, b: {2 3}
    a sends a heartbeat → receives {0 1}      b sends a heartbeat → receives {}
    a confirms {0 1} → has the group's epoch  b sends a heartbeat → receives {2 3} and this epoch

Source: KIP-848; Kafka 4.4 ``ConsumerGroup``, ``CurrentAssignmentBuilder``;
docs/decisions/serving.md.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lastwrite.server.errors import Code

SESSION_S = 45.0
HEARTBEAT_S = 5.0
ASSIGNORS = ("uniform", "range")
_LEAVES, _LEAVES_FOR_A_WHILE = -1, -2
_MOST_MEMBERS = 1000

Partition = tuple[str, int]  # topic, number


class Heartbeat(NamedTuple):
    """A heartbeat request.

    A field is None if the member did not change it since its last heartbeat.
    """

    member: str
    epoch: int
    instance: str | None
    client: str
    host: str
    rebalance_s: float | None
    topics: Sequence[str] | None
    assignor: str | None
    reads: frozenset[Partition] | None


class HeartbeatResult(NamedTuple):
    """The response to a heartbeat. ``reads`` is the assignment, or None if it is unchanged."""

    error: int
    message: str | None = None
    member: str | None = None
    epoch: int = 0
    reads: frozenset[Partition] | None = None


@dataclass(eq=False)
class Reader:
    """A member of a consumer group: its subscription, its partitions and its epoch."""

    id: str
    instance: str | None
    client: str
    host: str
    last_heartbeat_s: float
    rebalance_s: float
    topics: tuple[str, ...] = ()
    assignor: str | None = None
    epoch: int = 0
    # the member's previous epoch, which is still accepted, because the last response may be lost
    before: int = -1
    target: frozenset[Partition] = frozenset()
    assigned: frozenset[Partition] = frozenset()  # partitions now assigned to the member
    leaving: frozenset[Partition] = frozenset()  # partitions that the member still has to revoke
    # time at which the server asked the member to revoke ``leaving``
    revoke_requested_s: float = 0.0


@dataclass(eq=False)
class ConsumerGroup:
    """A consumer group of KIP-848. Its lock guards all fields.

    ``numbers`` returns a topic's partition numbers.
    """

    name: str
    numbers: Callable[[str], Sequence[int]]
    # a new group has epoch 1, and its first target assignment epoch 2, as on a broker
    epoch: int = 1
    members: dict[str, Reader] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    # The topics and partition numbers from which the target assignment was computed. None means
    # that the assignment must be computed again.
    _target_topics: Mapping[str, Sequence[int]] | None = None

    @property
    def assignor(self) -> str:
        """The assignor that most members request."""
        asked = [each.assignor for each in self.members.values() if each.assignor]
        return max(set(asked), key=asked.count) if asked else ASSIGNORS[0]

    @property
    def is_stable(self) -> bool:
        return all(each.epoch == self.epoch for each in self.members.values())

    def beat(self, heartbeat: Heartbeat, now_s: float) -> HeartbeatResult:
        """Process a member's heartbeat, and return its assignment."""
        with self.lock:
            self.tick(now_s)
            if heartbeat.epoch in (_LEAVES, _LEAVES_FOR_A_WHILE):
                return self._leave_result(heartbeat)
            if heartbeat.assignor is not None and heartbeat.assignor not in ASSIGNORS:
                offered = ", ".join(ASSIGNORS)
                text = f"ServerAssignor {heartbeat.assignor} is not supported. "
                return HeartbeatResult(
                    Code.UNSUPPORTED_ASSIGNOR, f"{text}Supported assignors: {offered}."
                )
            reader, wrong = self._member(heartbeat, now_s)
            if reader is None:
                return wrong
            reader.last_heartbeat_s = now_s
            is_joining = heartbeat.epoch == 0
            self._take_over(reader, heartbeat)
            self._update_target()
            return self._heartbeat_result(reader, heartbeat, is_joining, now_s)

    def _member(self, heartbeat: Heartbeat, now_s: float) -> tuple[Reader | None, HeartbeatResult]:
        found = self.members.get(heartbeat.member)
        if heartbeat.epoch == 0:
            other = self._of_instance(heartbeat.instance)
            if other is not None and other.id != heartbeat.member:
                if other.epoch != _LEAVES_FOR_A_WHILE:
                    return None, HeartbeatResult(
                        Code.UNRELEASED_INSTANCE_ID, "Another member has this instance id."
                    )
                del self.members[other.id]
                other.id, found = heartbeat.member, other
                self.members[heartbeat.member] = other
            if found is None:
                if len(self.members) >= _MOST_MEMBERS:
                    return None, HeartbeatResult(
                        Code.GROUP_MAX_SIZE_REACHED, "The group has reached its maximum size."
                    )
                found = self.members[heartbeat.member] = Reader(
                    heartbeat.member,
                    heartbeat.instance,
                    heartbeat.client,
                    heartbeat.host,
                    now_s,
                    300.0,
                )
            found.epoch = 0
            return found, HeartbeatResult(Code.NONE)
        if found is None:
            return None, self._unknown(heartbeat)
        may_lag = (
            heartbeat.epoch == found.before and (heartbeat.reads or frozenset()) <= found.assigned
        )
        if heartbeat.epoch != found.epoch and not may_lag:
            order = "greater" if heartbeat.epoch > found.epoch else "smaller"
            text = (
                f"The consumer group member has a {order} member epoch "
                f"({heartbeat.epoch}) than the "
            )
            text += f"one known by the group coordinator ({found.epoch}). The member must abandon "
            return None, HeartbeatResult(
                Code.FENCED_MEMBER_EPOCH, f"{text}all its partitions and rejoin."
            )
        return found, HeartbeatResult(Code.NONE)

    def _unknown(self, heartbeat: Heartbeat) -> HeartbeatResult:
        text = f"Member {heartbeat.member} is not a member of group {self.name}."
        return HeartbeatResult(Code.UNKNOWN_MEMBER_ID, text)

    def _of_instance(self, instance: str | None) -> Reader | None:
        if instance is None:
            return None
        return next((each for each in self.members.values() if each.instance == instance), None)

    def _take_over(self, reader: Reader, heartbeat: Heartbeat) -> None:
        if heartbeat.rebalance_s is not None and heartbeat.rebalance_s > 0:
            reader.rebalance_s = heartbeat.rebalance_s
        if heartbeat.assignor is not None:
            reader.assignor = heartbeat.assignor
        topics = reader.topics if heartbeat.topics is None else tuple(sorted(set(heartbeat.topics)))
        if topics != reader.topics:
            reader.topics = topics
            self._target_topics = None
        if heartbeat.reads is not None:
            reader.leaving &= heartbeat.reads

    def _update_target(self) -> None:
        """Compute a new target assignment if members or partitions of their topics have changed."""
        wanted = {topic for each in self.members.values() for topic in each.topics}
        there = {topic: tuple(self.numbers(topic)) for topic in wanted}
        if there == self._target_topics:
            return
        self._target_topics = there
        self.epoch += 1
        assign = _ranges if self.assignor == "range" else _evenly
        targets = assign(
            {each.id: each.topics for each in self.members.values()},
            there,
            {each.id: each.target for each in self.members.values()},
        )
        for id, target in targets.items():
            self.members[id].target = target

    def _heartbeat_result(
        self, reader: Reader, heartbeat: Heartbeat, is_joining: bool, now_s: float
    ) -> HeartbeatResult:
        if is_joining:
            reader.assigned, reader.leaving = frozenset(), frozenset()
        before = reader.assigned
        gone = reader.assigned - reader.target
        if gone:
            reader.leaving |= gone
            reader.revoke_requested_s = now_s
            reader.assigned &= reader.target
        if not reader.leaving:
            taken: set[Partition] = set()
            for each in self.members.values():
                if each is not reader:
                    taken |= each.assigned | each.leaving
            reader.assigned |= reader.target - taken
            if reader.epoch != self.epoch:
                reader.before, reader.epoch = reader.epoch, self.epoch
        is_news = is_joining or reader.assigned != before or heartbeat.topics is not None
        is_news = is_news or heartbeat.epoch != reader.epoch
        return HeartbeatResult(
            Code.NONE, None, reader.id, reader.epoch, reader.assigned if is_news else None
        )

    def _leave_result(self, heartbeat: Heartbeat) -> HeartbeatResult:
        found = self.members.get(heartbeat.member) or self._of_instance(heartbeat.instance)
        if found is None and heartbeat.epoch == _LEAVES_FOR_A_WHILE:
            return HeartbeatResult(
                Code.UNKNOWN_MEMBER_ID, f"Instance id {heartbeat.instance} is unknown."
            )
        if found is None:
            return self._unknown(heartbeat)
        if heartbeat.epoch == _LEAVES_FOR_A_WHILE and found.instance is not None:
            found.epoch = _LEAVES_FOR_A_WHILE
        else:
            self._remove(found)
        return HeartbeatResult(Code.NONE, None, found.id, heartbeat.epoch)

    def may_commit(self, member: str, epoch: int) -> int:
        """The error code for a commit by ``member`` with ``epoch``.

        NONE if the commit is allowed.
        """
        with self.lock:
            found = self.members.get(member)
            if found is None:
                return Code.UNKNOWN_MEMBER_ID
            return Code.NONE if epoch == found.epoch else Code.STALE_MEMBER_EPOCH

    def may_fetch(self, member: str | None, epoch: int) -> int:
        """The error code for fetching committed offsets as ``member`` with this epoch.

        NONE if the member may fetch them. An administrator's request has no member and is allowed.

        Source: Kafka 4.4 ``ConsumerGroup.validateOffsetFetch``.
        """
        return Code.NONE if member is None and epoch < 0 else self.may_commit(member or "", epoch)

    def tick(self, now_s: float) -> None:
        """Remove members that sent no heartbeat or did not revoke partitions in time."""
        with self.lock:
            for each in list(self.members.values()):
                is_silent = now_s - each.last_heartbeat_s > SESSION_S
                clings = each.leaving and now_s - each.revoke_requested_s > each.rebalance_s
                if is_silent or clings:
                    self._remove(each)

    def _remove(self, reader: Reader) -> None:
        self.members.pop(reader.id, None)
        self._target_topics = None
        if self.members:
            self._update_target()


Topics = Mapping[str, Sequence[str]]  # subscribed topics by member id


def _evenly(
    members: Topics, there: Mapping[str, Sequence[int]], before: Mapping[str, frozenset[Partition]]
) -> dict[str, frozenset[Partition]]:
    """Assign equally many partitions to each member, keeping current owners where possible."""
    owners: dict[Partition, str] = {}
    had = {part: id for id, parts in before.items() for part in parts}
    loads = dict.fromkeys(members, 0)
    parts = [(topic, number) for topic in sorted(there) for number in there[topic]]
    with_more = 0  # number of members that have one partition more than the others so far
    for part in parts:
        able = [id for id in members if part[0] in members[id]]
        least, more = divmod(len(parts), max(len(able), 1))
        keeper = had.get(part)
        if keeper not in able or loads[keeper] > least:
            continue
        if loads[keeper] == least:
            if with_more == more:
                continue
            with_more += 1
        owners[part] = keeper
        loads[keeper] += 1
    for part in parts:
        able = [id for id in members if part[0] in members[id]]
        if part not in owners and able:
            owner = min(able, key=lambda id: (loads[id], id))
            owners[part] = owner
            loads[owner] += 1
    return _by_owner(members, owners)


def _ranges(
    members: Topics, there: Mapping[str, Sequence[int]], before: Mapping[str, frozenset[Partition]]
) -> dict[str, frozenset[Partition]]:
    """Assign a contiguous range of each topic's partitions to each subscribed member."""
    owners: dict[Partition, str] = {}
    for topic, numbers in there.items():
        able = sorted(id for id in members if topic in members[id])
        for n, number in enumerate(numbers):
            owners[topic, number] = able[n * len(able) // len(numbers)]
    return _by_owner(members, owners)


def _by_owner(members: Topics, owners: Mapping[Partition, str]) -> dict[str, frozenset[Partition]]:
    return {id: frozenset(part for part, owner in owners.items() if owner == id) for id in members}
