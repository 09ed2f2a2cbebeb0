"""A cluster of three real brokers, each also a controller.

    with Trio(kafka_home(), tmp_path) as trio:
        Producer({"bootstrap.servers": trio.address})
        trio.broker_of("orders").kill()  # the leader

Two of the brokers go on without the third.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from unittest.mock import patch

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from lastwrite.kafka.network.connection import KafkaConnection
from lastwrite.kafka.network.messages import APIS, Api
from lastwrite.kafka.rules.live_settings import KafkaClientConfig
from tests.support.jars import free_ports
from tests.support.kafka.broker import Broker, new_cluster_id

NUMBERS = (1, 2, 3)


class Member(Broker):
    """One broker of the cluster."""

    def __init__(
        self, home: Path, data: Path, number: int, ports: Sequence[int], settings: Mapping[str, str]
    ) -> None:
        super().__init__(home, data, settings)
        self.number = number
        self._ports = list(ports)
        self.address = f"127.0.0.1:{ports[0]}"

    def _own_settings(self, port: int, controller: int) -> dict[str, str]:
        return super()._own_settings(port, controller) | {"node.id": str(self.number)}


class Trio:
    """The cluster, which ``with`` starts. ``brokers`` has its brokers by number."""

    def __init__(self, home: Path, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        ports = {number: free_ports(2) for number in NUMBERS}
        said = {
            "controller.quorum.voters": ",".join(
                f"{number}@127.0.0.1:{controller}" for number, (_, controller) in ports.items()
            ),
            "controller.quorum.election.timeout.ms": "500",
            "controller.quorum.fetch.timeout.ms": "1000",
            "replica.lag.time.max.ms": "3000",
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            **(settings or {}),
        }
        cluster = new_cluster_id()
        self.brokers = {
            number: Member(home, folder / f"broker-{number}", number, ports[number], said)
            for number in NUMBERS
        }
        for each in self.brokers.values():
            each.cluster_id = cluster
        self.address = ",".join(each.address for each in self.brokers.values())

    def __enter__(self) -> Trio:
        with ThreadPoolExecutor() as pool:  # a broker is only ready once a second one has started
            list(pool.map(lambda each: each.start(), self.brokers.values()))
        wait_for(lambda: len(self._metadata().brokers) == len(NUMBERS))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for each in self.brokers.values():
            each.kill()

    def _metadata(self):  # type: ignore[no-untyped-def]
        return AdminClient({"bootstrap.servers": self.address, "log_level": 0}).list_topics(
            timeout=10
        )

    def create_topic(
        self, topic: str, replicas: Sequence[int], settings: Mapping[str, str]
    ) -> None:
        """Create a topic with one partition. The first of ``replicas`` is the leader."""
        admin = AdminClient({"bootstrap.servers": self.address})
        made = NewTopic(topic, 1, replica_assignment=[list(replicas)], config=dict(settings))
        for done in admin.create_topics([made]).values():
            done.result(30)
        wait_for(lambda: self.leader(topic) == replicas[0])

    def leader(self, topic: str) -> int:
        """The number of the leader's broker, or -1 if there is no leader."""
        found = self._metadata().topics.get(topic)
        return found.partitions[0].leader if found and found.partitions else -1

    def in_sync(self, topic: str) -> set[int]:
        """The numbers of the in-sync replicas."""
        return set(self._metadata().topics[topic].partitions[0].isrs)

    def broker_of(self, topic: str) -> Member:
        """The broker that leads the topic."""
        return self.brokers[self.leader(topic)]

    def move(self, topic: str, replicas: Sequence[int]) -> None:
        """Reassign the topic's partition.

        Waits until the new replicas are in sync and one of them leads.
        """
        with patch.dict(APIS, {"alter_partition_reassignments": Api(45, 0, 0)}):
            connection = KafkaConnection(self.broker_of(topic).address, KafkaClientConfig())
            module = connection.schema("alter_partition_reassignments", "move")
            part = module.ReassignablePartition(partition_index=0, replicas=tuple(replicas))
            moved = module.ReassignableTopic(name=topic, partitions=(part,))
            answer = connection.request("alter_partition_reassignments", "move", topics=(moved,))
            connection.close()
        assert not answer.error_code, answer
        wait_for(lambda: self.in_sync(topic) == set(replicas) and self.leader(topic) in replicas)


def wait_for(is_so: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until ``is_so`` is true.

    Raises:
        RuntimeError: It is still false after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            if is_so():
                return
        except KafkaException:
            pass
        if time.monotonic() > deadline:
            raise RuntimeError(f"not so after {seconds} s")
        time.sleep(0.2)
