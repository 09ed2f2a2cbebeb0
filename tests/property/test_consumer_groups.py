"""Properties of KIP-848 consumer groups under random member actions.

Each partition always has at most one reader, and in the end exactly one.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.server.consumer_groups import ConsumerGroup, Heartbeat
from lastwrite.server.errors import Code

TOPICS = {"a": range(3), "b": range(4)}


@dataclass
class Client:
    """A group member that reads its assignment and revokes partitions at once."""

    id: str
    topics: tuple[str, ...]
    epoch: int = 0
    reads: frozenset[tuple[str, int]] = frozenset()

    def beat(self, group: ConsumerGroup, now_s: float, *, hears: bool = True) -> None:
        told = group.beat(
            Heartbeat(
                self.id,
                self.epoch,
                None,
                "c",
                "h",
                60.0,
                self.topics if self.epoch == 0 else None,
                None,
                self.reads,
            ),
            now_s,
        )
        if not hears:
            return
        if told.error in (Code.UNKNOWN_MEMBER_ID, Code.FENCED_MEMBER_EPOCH):
            self.epoch, self.reads = 0, frozenset()
            return
        assert told.error == Code.NONE, told
        self.epoch = told.epoch
        if told.reads is not None:
            self.reads = told.reads


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["join", "beat", "unheard", "leave", "vanish", "wait"]),
        st.integers(0, 4),
        st.sampled_from([("a",), ("b",), ("a", "b")]),
    ),
    max_size=40,
)


@given(MOVES)
def test_partition_has_at_most_one_reader_and_finally_exactly_one(
    moves: list[tuple[str, int, tuple[str, ...]]],
) -> None:
    group = ConsumerGroup("g", lambda topic: list(TOPICS.get(topic, ())))
    clients: dict[int, Client] = {}
    now_s = 0.0
    for n, (move, number, topics) in enumerate(moves):
        now_s += 0.1
        client = clients.get(number)
        if move == "join" and client is None:
            clients[number] = Client(f"{number}-{n}", topics)
        elif move == "wait":
            now_s += 20.0
        elif client is not None and move in ("beat", "unheard"):
            client.beat(group, now_s, hears=move == "beat")
        elif client is not None and move == "leave":
            group.beat(Heartbeat(client.id, -1, None, "c", "h", None, None, None, None), now_s)
            del clients[number]
        elif client is not None and move == "vanish":
            del clients[number]
        promised = [
            part for each in group.members.values() for part in each.assigned | each.leaving
        ]
        assert len(promised) == len(set(promised))
    for _ in range(12):  # longer than the session timeout, so that vanished members are removed
        now_s += 5.0
        for client in clients.values():
            client.beat(group, now_s)
    read = sorted(part for client in clients.values() for part in client.reads)
    wanted = {topic for client in clients.values() for topic in client.topics}
    assert read == sorted((topic, number) for topic in wanted for number in TOPICS[topic])
    assert all(client.epoch == group.epoch for client in clients.values())
    if wanted == set(TOPICS) and all(len(c.topics) == 2 for c in clients.values()):
        loads = [len(client.reads) for client in clients.values()]
        assert max(loads) - min(loads) <= 1


def test_offset_fetch_validates_the_member_epoch() -> None:
    """The answers of Kafka 4.4 to ``OffsetFetch`` of version 9 and newer."""
    group = ConsumerGroup("g", lambda topic: TOPICS[topic])
    client = Client("m", ("a",))
    client.beat(group, 0.0)
    assert client.epoch == 2  # the first epoch of a 4.4.0 broker
    assert group.may_fetch("m", client.epoch) == Code.NONE
    assert group.may_fetch(None, -1) == Code.NONE  # an admin client, which has no member id
    assert group.may_fetch("m", client.epoch + 1) == Code.STALE_MEMBER_EPOCH
    assert group.may_fetch("other", client.epoch) == Code.UNKNOWN_MEMBER_ID
    assert group.may_fetch(None, 0) == Code.UNKNOWN_MEMBER_ID
