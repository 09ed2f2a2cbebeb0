"""Consumer groups of the classic protocol, whose leader assigns the partitions.

    join ──► preparing ──all have joined──► completing ──leader's assignment──► stable
              ▲  a member joins, leaves or times out, or the leader joins again   │
              └───────────────────────────────────────────────────────────────────┘

The first member to join is the leader. It receives the metadata of all members and assigns the
partitions; the server forwards the assignments without decoding them. A member without heartbeats
for its session timeout is removed. Groups are not stored: after a restart members get an error for
an unknown member and join again. Committed offsets are stored by ``offsets``.

Source: Kafka 4.4 ``ClassicGroup``, ``GroupMetadataManager.classicGroupJoin``; KIP-345 (static
members), KIP-394; docs/decisions/serving.md.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from lastwrite.errors import LogError
from lastwrite.kafka.cluster.group_states import GroupKind
from lastwrite.kafka.cluster.internal_topics import CONSUMER_SUBSCRIPTION
from lastwrite.server.consumer_groups import ConsumerGroup
from lastwrite.server.errors import Code

_LEAST_SESSION_S, _MOST_SESSION_S = 6.0, 1800.0
_MOST_MEMBERS, _MOST_GROUPS = 1000, 10_000


class GroupState(StrEnum):
    """The states of a classic group, by Kafka's names."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


# names of protocols, each with the member's metadata for it
Protocols = Sequence[tuple[str, bytes]]


class JoinRequest(NamedTuple):
    """A member's JoinGroup request."""

    group: str
    member: str
    instance: str | None
    client: str
    host: str
    session_s: float
    rebalance_s: float
    protocol_type: str
    protocols: Protocols
    # whether a member without an id gets an id and has to join again with this id (KIP-394)
    must_know_id: bool
    # whether the response to a rejoining leader may have the field ``skip_assignment`` (KIP-814)
    may_skip: bool


class JoinResponse(NamedTuple):
    """The response to a JoinGroup request."""

    error: int = Code.NONE
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member: str = ""
    # (id, instance id, metadata) of each member; empty except in the leader's response
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    skips: bool = False


class SyncResponse(NamedTuple):
    """The response to a SyncGroup request: the member's assignment."""

    error: int = Code.NONE
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


@dataclass(eq=False)
class Member:
    """A member of a classic group: one consumer."""

    id: str
    instance: str | None
    client: str
    host: str
    session_s: float
    rebalance_s: float
    protocols: Protocols
    last_heartbeat_s: float
    assignment: bytes = b""
    has_joined: bool = False  # whether the member has sent JoinGroup since the rebalance began
    # number of the member's requests that wait for a response; the session does not expire
    # meanwhile
    waits: int = 0

    def metadata(self, protocol: str | None) -> bytes:
        return next((data for name, data in self.protocols if name == protocol), b"")


@dataclass(eq=False)
class ClassicGroup:
    """A consumer group of the classic protocol. Its lock guards all fields."""

    name: str
    state: GroupState = GroupState.EMPTY
    generation: int = 0
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    # Deadlines of members that got an id and have not joined with it yet, by id.
    pending: dict[str, float] = field(default_factory=dict)
    due_s: float = 0.0  # deadline of the rebalance in progress, by which members must rejoin
    changed: threading.Condition = field(default_factory=threading.Condition)

    # ------------------------------------------------------------------ joining

    def join(self, request: JoinRequest, now_s: Callable[[], float]) -> JoinResponse:
        """Process a JoinGroup request. Waits until all members have joined."""
        with self.changed:
            self.tick(now_s())
            wrong = self._join_error(request)
            if wrong:
                return JoinResponse(wrong, member=request.member)
            member = self._member_of(request, now_s())
            if isinstance(member, JoinResponse):
                return member
            is_same = list(member.protocols) == list(request.protocols)
            member.protocols, member.last_heartbeat_s = request.protocols, now_s()
            member.session_s, member.rebalance_s = request.session_s, request.rebalance_s
            is_new = not member.has_joined and member.assignment == b"" and self.generation == 0
            settled = self.state in (GroupState.STABLE, GroupState.COMPLETING)
            stays = self.state is GroupState.COMPLETING or member.id != self.leader
            if settled and is_same and stays and not is_new and member.has_joined:
                return self._joined(member)
            self._prepare(now_s())
            member.has_joined = True
            return self._until_joined(member, now_s)

    def _join_error(self, request: JoinRequest) -> int:
        if not request.group:
            return Code.INVALID_GROUP_ID
        if not _LEAST_SESSION_S <= request.session_s <= _MOST_SESSION_S:
            return Code.INVALID_SESSION_TIMEOUT
        if not request.protocol_type or not request.protocols:
            return Code.INCONSISTENT_GROUP_PROTOCOL
        others = [each for each in self.members.values() if each.id != request.member]
        if request.instance is not None:
            others = [each for each in others if each.instance != request.instance]
        if others:
            if request.protocol_type != self.protocol_type:
                return Code.INCONSISTENT_GROUP_PROTOCOL
            common = set.intersection(*({name for name, _ in each.protocols} for each in others))
            if common.isdisjoint(name for name, _ in request.protocols):
                return Code.INCONSISTENT_GROUP_PROTOCOL
        is_known = request.member in self.members or request.member in self.pending
        if not is_known and len(self.members) + len(self.pending) >= _MOST_MEMBERS:
            return Code.GROUP_MAX_SIZE_REACHED
        return Code.NONE

    def _member_of(self, request: JoinRequest, now_s: float) -> Member | JoinResponse:
        """The member that sent a JoinGroup request. A new member is created.

        If the request is refused or must be repeated, returns the response to send instead.
        """
        before = self._of_instance(request.instance)
        if request.member:
            if before is not None and before.id != request.member:
                return JoinResponse(Code.FENCED_INSTANCE_ID, member=request.member)
            if request.member in self.members:
                return self.members[request.member]
            if self.pending.pop(request.member, None) is None:
                return JoinResponse(Code.UNKNOWN_MEMBER_ID, member=request.member)
            return self._added(request, request.member, now_s)
        made = f"{request.instance or request.client}-{uuid.uuid4()}"
        if before is not None:
            return self._replaced(before, made, request, now_s)
        if request.instance is None and request.must_know_id:
            self.pending[made] = now_s + request.session_s
            return JoinResponse(Code.MEMBER_ID_REQUIRED, member=made)
        return self._added(request, made, now_s)

    def _added(self, request: JoinRequest, id: str, now_s: float) -> Member:
        member = Member(
            id,
            request.instance,
            request.client,
            request.host,
            request.session_s,
            request.rebalance_s,
            request.protocols,
            now_s,
        )
        self.members[id] = member
        self.protocol_type = request.protocol_type
        if self.leader is None:
            self.leader = id
        self._prepare(now_s)
        return member

    def _replaced(
        self, before: Member, id: str, request: JoinRequest, now_s: float
    ) -> Member | JoinResponse:
        """Replace a static member that rejoins with a new id.

        A stable group stays stable if the member's protocols are the same.
        """
        was_leader = self.leader == before.id
        del self.members[before.id]
        # For clients without KIP-814, the response names the old member id as the leader. The
        # member then does not assign partitions again.
        told = self.leader or ""
        before.id, before.last_heartbeat_s, before.client = id, now_s, request.client
        self.members[id] = before
        if was_leader:
            self.leader = id
        self.changed.notify_all()
        is_same = list(before.protocols) == list(request.protocols)
        if self.state is not GroupState.STABLE or not is_same:
            before.has_joined = False
            self._prepare(now_s)
            return before
        found = self._joined(before)
        if was_leader and not request.may_skip:
            return found._replace(leader=told, members=())
        return found._replace(skips=was_leader)

    def _of_instance(self, instance: str | None) -> Member | None:
        if instance is None:
            return None
        return next((each for each in self.members.values() if each.instance == instance), None)

    def _prepare(self, now_s: float) -> None:
        if self.state is GroupState.PREPARING:
            return
        self.state = GroupState.PREPARING
        for member in self.members.values():
            member.has_joined = False
        self.due_s = now_s + max((each.rebalance_s for each in self.members.values()), default=0.0)
        self.changed.notify_all()

    def _until_joined(self, member: Member, now_s: Callable[[], float]) -> JoinResponse:
        id, generation = member.id, self.generation
        member.waits += 1
        try:
            while True:
                self._complete(now_s())
                if member.id != id or self.members.get(id) is not member:
                    code = Code.FENCED_INSTANCE_ID if member.id != id else Code.UNKNOWN_MEMBER_ID
                    return JoinResponse(code, member=id)
                if self.generation > generation:
                    return self._joined(member)
                self.changed.wait(max(min(self.due_s - now_s(), 1.0), 0.01))
                self.tick(now_s())
        finally:
            member.waits -= 1
            member.last_heartbeat_s = now_s()

    def _complete(self, now_s: float) -> None:
        """Complete the rebalance if all members have joined or the deadline has passed."""
        if self.state is not GroupState.PREPARING:
            return
        late = [each for each in self.members.values() if not each.has_joined]
        if late and now_s < self.due_s:
            return
        for member in late:
            if member.instance is None or not any(m.has_joined for m in self.members.values()):
                self._remove(member)
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader = GroupState.EMPTY, None, None
        else:
            self.state = GroupState.COMPLETING
            self.protocol = self._elected()
            if self.leader not in self.members:
                self.leader = next(iter(self.members))
        self.changed.notify_all()

    def _elected(self) -> str:
        """The protocol that most members prefer, among the protocols that all members support."""
        known = [{name for name, _ in each.protocols} for each in self.members.values()]
        common = set.intersection(*known)
        votes = Counter(
            next(name for name, _ in each.protocols if name in common)
            for each in self.members.values()
        )
        return votes.most_common(1)[0][0]

    def _joined(self, member: Member) -> JoinResponse:
        members: tuple[tuple[str, str | None, bytes], ...] = ()
        if member.id == self.leader:
            members = tuple(
                (each.id, each.instance, each.metadata(self.protocol))
                for each in self.members.values()
            )
        return JoinResponse(
            Code.NONE,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            member.id,
            members,
        )

    # ------------------------------------------------------------------ membership

    def sync(
        self,
        asked: tuple[str, str | None, int],
        assignments: Mapping[str, bytes],
        protocol: tuple[str | None, str | None],
        now_s: Callable[[], float],
    ) -> SyncResponse:
        """Process a SyncGroup request. Waits for the leader's assignments.

        Returns the member's assignment. ``asked`` is the member's id, instance id and generation.
        ``protocol`` is the protocol type and name in the request. ``assignments`` is empty unless
        the member is the leader.
        """
        with self.changed:
            self.tick(now_s())
            wrong = self.is_member(*asked)
            ours = self.protocol_type, self.protocol
            for said, known in zip(protocol, ours, strict=True):
                if not wrong and said is not None and said != known:
                    wrong = Code.INCONSISTENT_GROUP_PROTOCOL
            if wrong:
                return SyncResponse(wrong)
            member, generation = self.members[asked[0]], self.generation
            member.last_heartbeat_s = now_s()
            if self.state is GroupState.COMPLETING and member.id == self.leader:
                for each in self.members.values():
                    each.assignment = assignments.get(each.id, b"")
                    each.last_heartbeat_s = now_s()
                self.state = GroupState.STABLE
                self.changed.notify_all()
            member.waits += 1
            try:
                while self.state is GroupState.COMPLETING and self.generation == generation:
                    self.changed.wait(1.0)
                    self.tick(now_s())
            finally:
                member.waits -= 1
            if self.members.get(asked[0]) is not member:
                return SyncResponse(Code.UNKNOWN_MEMBER_ID)
            if self.state is not GroupState.STABLE or self.generation != generation:
                return SyncResponse(Code.REBALANCE_IN_PROGRESS)
            return SyncResponse(Code.NONE, member.assignment, self.protocol_type, self.protocol)

    def heartbeat(self, member: str, instance: str | None, generation: int, now_s: float) -> int:
        with self.changed:
            self.tick(now_s)
            wrong = self.is_member(member, instance, generation)
            if wrong:
                return wrong
            self.members[member].last_heartbeat_s = now_s
            is_preparing = self.state is GroupState.PREPARING
            return Code.REBALANCE_IN_PROGRESS if is_preparing else Code.NONE

    def leave(self, member: str, instance: str | None, now_s: float) -> int:
        with self.changed:
            found = self._of_instance(instance) if instance is not None else None
            if instance is not None:
                if found is None:
                    return Code.UNKNOWN_MEMBER_ID
                if member and found.id != member:
                    return Code.FENCED_INSTANCE_ID
            elif self.pending.pop(member, None) is not None:
                return Code.NONE
            else:
                found = self.members.get(member)
                if found is None:
                    return Code.UNKNOWN_MEMBER_ID
            self._remove(found)
            self._prepare(now_s)
            self._complete(now_s)
            return Code.NONE

    def may_commit(self, member: str, instance: str | None, generation: int, now_s: float) -> int:
        """The error code for committing offsets. Without members, any client may commit."""
        with self.changed:
            self.tick(now_s)
            if generation < 0 and not self.members:
                return Code.NONE
            wrong = self.is_member(member, instance, generation)
            if wrong:
                return wrong
            self.members[member].last_heartbeat_s = now_s
            is_completing = self.state is GroupState.COMPLETING
            return Code.REBALANCE_IN_PROGRESS if is_completing else Code.NONE

    def subscribed(self) -> set[str] | None:
        """The topics of all members. None if a subscription does not decode.

        The caller holds the lock.
        """
        found: set[str] = set()
        for each in self.members.values():
            topics = _topics_of(each.metadata(self.protocol))
            if topics is None:
                return None
            found |= topics
        return found

    def is_member(self, member: str, instance: str | None, generation: int) -> int:
        """The error code if a request is not of a current member, else NONE.

        The caller holds the lock.
        """
        found = self._of_instance(instance)
        if found is not None and found.id != member:
            return Code.FENCED_INSTANCE_ID
        if member not in self.members:
            return Code.UNKNOWN_MEMBER_ID
        return Code.NONE if generation == self.generation else Code.ILLEGAL_GENERATION

    # ------------------------------------------------------------------ the clock

    def tick(self, now_s: float) -> None:
        """Remove members whose session has timed out. The caller holds the lock."""
        for id, until in list(self.pending.items()):
            if now_s > until:
                del self.pending[id]
        silent = [
            each
            for each in self.members.values()
            if not each.waits and now_s - each.last_heartbeat_s > each.session_s
        ]
        for member in silent:
            self._remove(member)
        if silent:
            self._prepare(now_s)
        self._complete(now_s)

    def _remove(self, member: Member) -> None:
        self.members.pop(member.id, None)
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)
        self.changed.notify_all()


def _topics_of(metadata: bytes) -> set[str] | None:
    """The topics of a member's subscription. None if the subscription does not decode."""
    version = int.from_bytes(metadata[:2], "big", signed=True)
    try:
        # decode newer versions too, because they only add fields at the end
        known = min(version, CONSUMER_SUBSCRIPTION.last)
        found, _ = CONSUMER_SUBSCRIPTION.decode(metadata, known, at=2)
    except LogError:
        return None
    return set(found["topics"])


class Groups:
    """All groups of a server, created on first use."""

    def __init__(self, now_s: Callable[[], float], numbers: Callable[[str], Sequence[int]]) -> None:
        self.now_s = now_s
        self._numbers = numbers
        self._groups: dict[str, ClassicGroup] = {}
        self._newer: dict[str, ConsumerGroup] = {}
        self._lock = threading.Lock()

    def newer(self, name: str) -> ConsumerGroup:
        """The KIP-848 group with this name, created if missing."""
        with self._lock:
            found = self._newer.get(name)
            if found is None:
                if len(self._newer) >= _MOST_GROUPS:
                    self._forget_empty()
                found = self._newer[name] = ConsumerGroup(name, self._numbers)
            return found

    def consumer(self, name: str) -> ConsumerGroup | None:
        """The KIP-848 group with this name. None if it is missing or has no members."""
        found = self._newer.get(name)
        return found if found is not None and found.members else None

    def of(self, name: str) -> ClassicGroup:
        """The classic group with this name, created if missing."""
        with self._lock:
            found = self._groups.get(name)
            if found is None:
                if len(self._groups) >= _MOST_GROUPS:
                    self._forget_empty()
                found = self._groups[name] = ClassicGroup(name)
            return found

    def classic(self, name: str) -> ClassicGroup | None:
        return self._groups.get(name)

    def kind_of(self, name: str) -> GroupKind | None:
        """The protocol of a group's last members.

        None if no client has joined since the server's start.
        """
        group, newer = self._groups.get(name), self._newer.get(name)
        if group is not None and group.protocol_type is not None:
            return GroupKind(group.protocol_type)
        if newer is not None and newer.epoch > ConsumerGroup.epoch:
            return GroupKind("consumer", True, newer.epoch, newer.epoch)
        return None

    @contextmanager
    def locked(self, name: str) -> Iterator[tuple[ClassicGroup, ConsumerGroup]]:
        """A context that locks a group's objects for both protocols, and returns them.

        No member can join or leave within the context.
        """
        group, newer = self.of(name), self.newer(name)
        with group.changed, newer.lock:
            group.tick(self.now_s())
            newer.tick(self.now_s())
            yield group, newer

    def names(self) -> list[str]:
        return sorted({*self._groups, *self._newer})

    def tick(self) -> None:
        """Remove members whose session has timed out. Called about once a second."""
        for group in list(self._groups.values()):
            with group.changed:
                group.tick(self.now_s())
        for newer in list(self._newer.values()):
            newer.tick(self.now_s())

    def _forget_empty(self) -> None:
        for name, group in list(self._groups.items()):
            if not group.members and not group.pending:
                del self._groups[name]
        for name, newer in list(self._newer.items()):
            if not newer.members:
                del self._newer[name]
