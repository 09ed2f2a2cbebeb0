"""A real Kafka broker, fetched by Maven, which a test starts and stops.

    home = kafka_home()  # 43 MB of jars, fetched once; raises Unavailable if it cannot be
    with Broker(home, tmp_path / "data") as broker:
        Producer({"bootstrap.servers": broker.address})

A second ``Broker`` on the same folder loads the logs in it. In this way a test lets Kafka load a
compacted log. ``python -m tests.support.kafka.broker DATA [name=value ...]`` runs a broker in the
foreground until Ctrl-C.
"""

from __future__ import annotations

import base64
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.support.jars import Unavailable as Unavailable
from tests.support.jars import fetch_jars, free_ports, need_java, run_until_stopped

VERSION = "4.4.0"
POM = Path(__file__).with_name("pom.xml")

# A single node with its own controller, quick to stop and start. Its cleaner and its retention are
# off: tests run them when they need them.
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
    "log.cleaner.backoff.ms": "1000000000",
    "log.retention.check.interval.ms": "1000000000",
    "log.initial.task.delay.ms": "1000000000",
}


def kafka_home() -> Path:
    """The folder whose ``lib`` has Kafka's jars, fetched on first use.

    ``LASTWRITE_KAFKA_HOME`` names it. The default is ``~/.cache/lastwrite/kafka-<version>``.

    Raises:
        Unavailable: There is no Java 17 or newer, or there are no jars and no Maven to fetch them.
    """
    need_java()
    home = Path(
        os.environ.get("LASTWRITE_KAFKA_HOME")
        or Path.home() / ".cache" / "lastwrite" / f"kafka-{VERSION}"
    )
    fetch_jars(home, f"Kafka {VERSION}", POM, f"kafka_2.13-{VERSION}.jar")
    return home


def new_cluster_id() -> str:
    return base64.urlsafe_b64encode(b"\x01" + secrets.token_bytes(15)).decode().rstrip("=")


class Broker:
    """A broker on free ports of 127.0.0.1, which logs to ``<data>.log`` from level WARN.

    The first start formats the folder ``data``. A restart keeps the address, so that clients can go
    on.

    Args:
        settings: Override ``SETTINGS`` and Kafka's defaults.
        user: The uid and gid of the process. The data folder is given to that user. None means the
            user of the test.
        listeners: Additional listeners by name: protocol, port, and the port advertised to clients.
    """

    def __init__(
        self,
        home: Path,
        data: Path,
        settings: Mapping[str, str] | None = None,
        user: tuple[int, int] | None = None,
        listeners: Mapping[str, tuple[str, int, int]] | None = None,
    ) -> None:
        self._as_user = (
            {} if user is None else {"user": user[0], "group": user[1], "extra_groups": []}
        )
        self.home = home
        self.data = data
        self.output = data.with_name(data.name + ".log")
        self._properties = data.with_name(data.name + ".properties")
        self._settings = dict(settings or {})
        self._listeners = dict(listeners or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._output_seen = 0
        self._ports: list[int] = []
        self.address = ""
        self.cluster_id = new_cluster_id()

    def start(self, seconds: float = 120) -> Broker:
        """Start the broker, and return when it serves clients."""
        self.data.mkdir(parents=True, exist_ok=True)
        self._ports = self._ports or free_ports(2)
        port, controller = self._ports
        self.address = f"127.0.0.1:{port}"
        settings = self._own_settings(port, controller) | {"log.dirs": str(self.data)}
        settings |= self._settings
        for name, (protocol, own, told) in self._listeners.items():
            settings["listeners"] += f",{name}://127.0.0.1:{own}"
            settings["advertised.listeners"] += f",{name}://127.0.0.1:{told}"
            settings["listener.security.protocol.map"] += f",{name}:{protocol}"
        self._properties.write_text(
            "".join(f"{name}={value}\n" for name, value in settings.items())
        )
        self._output_seen = self.output.stat().st_size if self.output.exists() else 0
        self._make_ready(seconds)
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                **self._as_user,  # type: ignore[arg-type]
            )
        try:
            self._wait(time.monotonic() + seconds)
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self, seconds: float = 120) -> None:
        """Shut the broker down: it flushes its logs and writes the clean-shutdown file."""
        self._end(signal.SIGTERM, seconds)

    def kill(self) -> None:
        """Kill the broker, as in a crash."""
        self._end(signal.SIGKILL, 60)

    def said(self) -> list[str]:
        """The log lines since the last start, from level WARN."""
        with self.output.open("rb") as output:
            output.seek(self._output_seen)
            return output.read().decode(errors="replace").splitlines()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop() if kind is None else self.kill()

    def _own_settings(self, port: int, controller: int) -> dict[str, str]:
        """The settings that this kind of broker needs."""
        return SETTINGS | {
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        }

    def _make_ready(self, seconds: float) -> None:
        """Format the data folder if it is new."""
        if (self.data / "meta.properties").exists():
            return
        said = ("-t", self.cluster_id, "-c", str(self._properties))
        subprocess.run(
            self._java("kafka.tools.StorageTool", "format", *said),
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=seconds,
            **self._as_user,  # type: ignore[arg-type]
        )

    def _java(self, *arguments: str) -> Sequence[str]:
        # Only the first compiler tier: it halves the start-up time, and tests are short.
        return [
            "java",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-Djava.awt.headless=true",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-cp",
            f"{self.home}/lib/*",
            *arguments,
        ]

    def _wait(self, deadline: float) -> None:
        assert self._process is not None
        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0}, logger=None)
        while True:
            if self._process.poll() is not None:
                last = "\n".join(self.said()[-30:])
                raise RuntimeError(f"the broker ended with {self._process.returncode}:\n{last}")
            try:
                if client.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def _end(self, signal_number: int, seconds: float) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal_number)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process = None


if __name__ == "__main__":
    sys.exit(
        run_until_stopped(
            __doc__,
            lambda folder, settings: Broker(kafka_home(), folder, settings),
            lambda broker: broker.address,
        )
    )
