"""Real brokers of older releases, from 2.1 on.

    with broker_of("2.8.2", tmp_path / "data") as broker:
        Producer({"bootstrap.servers": broker.address})

A broker before 3.3 runs with a ZooKeeper of its own. A later one is its own controller.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.support.jars import fetch_jars
from tests.support.kafka.broker import SETTINGS, Broker, kafka_home

POM = Path(__file__).with_name("versions-pom.xml")
VERSIONS = ("2.1.1", "2.4.1", "2.8.2", "3.3.2", "3.9.1", "4.0.0")


def number_of(version: str) -> tuple[int, ...]:
    """The version as a number that can be compared."""
    return tuple(map(int, version.split(".")))


def broker_of(version: str, data: Path) -> Broker:
    """A broker of a release.

    Raises:
        Unavailable: There is no Java, or there are no jars and no Maven to fetch them.
    """
    home = kafka_home().with_name(f"kafka-{version}")
    scala = "2.13" if number_of(version) >= (2, 4) else "2.12"
    marker = f"kafka_{scala}-{version}.jar"
    fetch_jars(home, f"Kafka {version}", POM, marker, f"-Dkafka={version}", f"-Dscala={scala}")
    kind = Broker if number_of(version) >= (3, 3) else ZooKeeperBroker
    return kind(home, data, {"log.cleaner.enable": "false"})


class ZooKeeperBroker(Broker):
    """A broker with its own ZooKeeper, started and stopped with it."""

    _zookeeper: subprocess.Popen[bytes] | None = None

    def _own_settings(self, port: int, controller: int) -> dict[str, str]:
        of_kraft = ("process.roles", "node.id", "controller.listener.names")
        return {
            **{name: value for name, value in SETTINGS.items() if name not in of_kraft},
            "broker.id": "1",
            "zookeeper.connect": f"127.0.0.1:{controller}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        }

    def _make_ready(self, seconds: float) -> None:
        port = self._ports[1]
        properties = self.data.with_name(f"{self.data.name}-zookeeper.properties")
        folder = self.data.with_name(f"{self.data.name}-zookeeper")
        said = {"dataDir": folder, "clientPort": port, "clientPortAddress": "127.0.0.1"}
        said |= {"admin.enableServer": "false"}
        properties.write_text("".join(f"{name}={value}\n" for name, value in said.items()))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        with self.output.open("ab") as output:
            self._zookeeper = subprocess.Popen(
                self._java(main, str(properties)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            except ConnectionRefusedError:
                if self._zookeeper.poll() is not None or time.monotonic() > deadline:
                    self._end_zookeeper()
                    raise
                time.sleep(0.1)

    def _end(self, signal_number: int, seconds: float) -> None:
        try:
            super()._end(signal_number, seconds)
        finally:
            self._end_zookeeper()

    def _end_zookeeper(self) -> None:
        if self._zookeeper is not None:
            self._zookeeper.send_signal(signal.SIGKILL)
            self._zookeeper.wait()
            self._zookeeper = None
