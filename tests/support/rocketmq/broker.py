"""A real RocketMQ name server and broker, fetched by Maven, which a test starts and stops.

    home = rocketmq_home()  # 94 MB of jars, fetched once; raises Unavailable if they cannot be
    with Broker(home, tmp_path / "store", SMALL_FILES) as broker:
        with Client(broker.name_server) as client:
            client.create_topic("orders", queues=2, attributes=COMPACTED)

A second ``Broker`` on the same folder opens the store in it. In this way a test lets RocketMQ load
a compacted store. ``python -m tests.support.rocketmq.broker STORE [name=value ...]`` runs one in
the foreground until Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from lastwrite.errors import RemoteFailed
from lastwrite.rocketmq.network.access import RequestCredentials
from lastwrite.rocketmq.network.client import RequestCode, RocketmqClient
from lastwrite.rocketmq.network.connection import RocketmqConnection
from tests.support.jars import Unavailable as Unavailable
from tests.support.jars import fetch_jars, free_ports, need_java, run_until_stopped

VERSION = "5.5.0"
OLD_VERSION = "4.9.3"  # the last release before compression types, record format v2 and compaction
POM = Path(__file__).with_name("pom.xml")

# A cluster of one broker without compactions of its own. Its files have kilobytes instead of
# gigabytes.
SETTINGS = {
    "brokerClusterName": "tests",
    "brokerName": "tests",
    "brokerId": "0",
    "brokerRole": "ASYNC_MASTER",
    "flushDiskType": "ASYNC_FLUSH",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    "timerWheelEnable": "false",
    "diskMaxUsedSpaceRatio": "99",
    "maxHashSlotNum": "100",
    "maxIndexNum": "1000",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "20000",
    "compactionScheduleInternal": "86400000",
    "searchBcqByCacheEnable": "false",  # see docs/guide/rocketmq-operators.md
}

# Compaction log sizes: 5,060 bytes of log, and an index of 1,012 bytes for 21 messages.
SMALL_FILES = {"compactionMappedFileSize": "5060", "compactionCqMappedFileSize": "1024"}

# All file size settings, for tests that write files that a broker left out.
SIZES = {
    name: SETTINGS[name] for name in ("mappedFileSizeConsumeQueue", "maxHashSlotNum", "maxIndexNum")
} | SMALL_FILES

COMPACTED = {"cleanup.policy": "COMPACTION"}  # the attribute of a compacted topic

# The packages that 4.x needs in Java 17 to lock pages and to unmap buffers.
_OPENS = [
    f"--add-{how}=java.base/{name}=ALL-UNNAMED"
    for how, name in (
        ("opens", "java.nio"),
        ("opens", "sun.nio.ch"),
        ("opens", "jdk.internal.ref"),
        ("opens", "java.lang"),
        ("exports", "jdk.internal.ref"),
        ("exports", "sun.nio.ch"),
    )
]

# 4.x reads its log file's path from such a file, and does not start without it. 5.x has its own.
_LOGBACK = """<configuration>
  <appender name="FILE" class="ch.qos.logback.core.FileAppender"><file>{file}</file>
    <encoder><pattern>%d %p %t - %m%n</pattern></encoder></appender>
  <root level="WARN"><appender-ref ref="FILE"/></root>
</configuration>
"""


def rocketmq_home(version: str = VERSION) -> Path:
    """The folder whose ``lib`` has RocketMQ's jars, fetched on first use.

    ``LASTWRITE_ROCKETMQ_HOME`` names the folder for ``VERSION``, and
    ``LASTWRITE_ROCKETMQ_OLD_HOME`` for ``OLD_VERSION``. The default is
    ``~/.cache/lastwrite/rocketmq-<version>``.

    Raises:
        Unavailable: There is no Java 17 or newer, or there are no jars and no Maven to fetch them.
    """
    need_java()
    variable = "LASTWRITE_ROCKETMQ_HOME" if version == VERSION else "LASTWRITE_ROCKETMQ_OLD_HOME"
    home = Path(
        os.environ.get(variable) or Path.home() / ".cache" / "lastwrite" / f"rocketmq-{version}"
    )
    marker = f"rocketmq-broker-{version}.jar"
    fetch_jars(home, f"RocketMQ {version}", POM, marker, f"-Drocketmq.version={version}")
    return home


class Broker:
    """A name server and a broker on free ports of 127.0.0.1, over the folder ``store``.

    All other files are in ``<store>.run``. A restart keeps the addresses, so that clients can go
    on.

    Args:
        settings: Override ``SETTINGS`` and RocketMQ's defaults. A broker ignores unknown names.
        user: The uid and gid of both processes. Both folders are given to that user. None means the
            user of the test.
    """

    def __init__(
        self,
        home: Path,
        store: Path,
        settings: Mapping[str, str] | None = None,
        user: tuple[int, int] | None = None,
    ) -> None:
        self._user = user
        self.home = home
        self.store = store
        self.run = store.with_name(store.name + ".run")
        self.name_server = ""
        self.address = ""
        self._settings = dict(settings or {})
        self._ports: list[int] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pid(self) -> int:
        """The process id of the broker."""
        return self._running["broker"].pid

    def start(self, seconds: float = 120) -> Broker:
        """Start the name server and the broker, and return when clients can be served."""
        deadline = time.monotonic() + seconds
        self.store.mkdir(parents=True, exist_ok=True)
        (self.run / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker"):
            log = self.run / "logs" / f"{name}.log"
            (self.run / "conf" / f"logback_{name}.xml").write_text(_LOGBACK.format(file=log))
        if self._user is not None:
            for path in (self.store, self.run, *self.run.rglob("*")):
                os.chown(path, *self._user)
        self._ports = self._ports or [*free_ports(1), _broker_port()]
        namesrv, broker = self._ports
        self.name_server, self.address = f"127.0.0.1:{namesrv}", f"127.0.0.1:{broker}"
        settings = (
            SETTINGS
            | {
                "namesrvAddr": self.name_server,
                "listenPort": str(broker),
                "storePathRootDir": str(self.store),
                "storePathCommitLog": str(self.store / "commitlog"),
            }
            | self._settings
        )
        try:
            self._launch(
                "namesrv",
                "org.apache.rocketmq.namesrv.NamesrvStartup",
                "128m",
                {"listenPort": str(namesrv), "bindAddress": "127.0.0.1"},
            )
            self._launch("broker", "org.apache.rocketmq.broker.BrokerStartup", "512m", settings)
            for name in self._running:
                self._await(name, deadline)
            self._register()
            with RocketmqClient(self.name_server) as client:
                while not client.masters():  # the broker registers itself and all its topics
                    if time.monotonic() > deadline:
                        raise TimeoutError(
                            f"the name server does not hear of the broker:\n{self.said()[-3000:]}"
                        )
                    time.sleep(0.05)
        except BaseException:
            self.kill()
            raise
        return self

    def _register(self) -> None:
        """Register the broker at the name server at once.

        A starting broker registers before it knows the name server, and again after ten seconds.
        Changing its permission makes it register immediately.
        """
        connection = RocketmqConnection(self.address, 10, RequestCredentials())
        try:
            body = b"brokerPermission=6\n"
            connection.call(RequestCode.SET_BROKER_CONFIG, {}, body, doing="registering the broker")
        except RemoteFailed:
            pass  # The broker refuses unauthenticated requests. It registers after ten seconds.
        finally:
            connection.close()

    def stop(self, seconds: float = 120) -> None:
        """Shut down in about ten seconds: everything is flushed, and ``abort`` is removed."""
        self._end(signal.SIGTERM, seconds)

    def kill(self) -> None:
        """Kill both processes, as in a crash."""
        self._end(signal.SIGKILL, 60)

    def crash(self) -> None:
        """Kill only the broker. The name server keeps its routes until ``kill``."""
        process = self._running["broker"]
        process.kill()
        process.wait()

    def said(self, name: str = "broker") -> str:
        """The output of ``broker`` or ``namesrv`` since its last start."""
        output = self.run / f"{name}.out"
        return output.read_text(errors="replace") if output.exists() else ""

    def logged(self, name: str) -> str:
        """The log file ``name`` (such as ``store.log``) of a 5.x broker, from all starts.

        Empty if there is none.
        """
        found = sorted(self.run.glob(f"logs/**/{name}"))
        return "".join(file.read_text(errors="replace") for file in found)

    @contextmanager
    def disposable(self) -> Iterator[Broker]:
        """A broker that is started, and killed at the end, which saves the time of a shutdown.

        For stores that are not used afterwards.
        """
        try:
            yield self.start()
        finally:
            self.kill()

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop() if kind is None else self.kill()

    def _launch(self, name: str, main: str, heap: str, settings: Mapping[str, str]) -> None:
        conf, output = self.run / f"{name}.conf", self.run / f"{name}.out"
        conf.write_text("".join(f"{setting}={value}\n" for setting, value in settings.items()))
        # Only the first compiler tier: it halves the start-up time, and tests are short.
        command = [
            "java",
            *_OPENS,
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            f"-Duser.home={self.run}",
            f"-Drocketmq.home.dir={self.run}",
            "-Drocketmq.broker.diskSpaceWarningLevelRatio=0.99",  # 4.x refuses writes above 0.9
            "-cp",
            f"{self.home}/lib/*",
            main,
            "-c",
            str(conf),
        ]
        environment = os.environ | {"ROCKETMQ_HOME": str(self.run)}
        as_user = (
            {}
            if self._user is None
            else {"user": self._user[0], "group": self._user[1], "extra_groups": []}
        )
        with output.open("wb") as said:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                **as_user,  # type: ignore[arg-type]
            )

    def _await(self, name: str, deadline: float) -> None:
        process = self._running[name]
        while "boot success" not in self.said(name):
            if process.poll() is not None:
                raise RuntimeError(
                    f"the {name} ended with {process.returncode}:\n{self.said(name)[-3000:]}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(f"the {name} did not start:\n{self.said(name)[-3000:]}")
            time.sleep(0.05)

    def _end(self, signal_number: int, seconds: float) -> None:
        # the broker first, because it unregisters at the name server
        for name in ("broker", "namesrv"):
            process = self._running.pop(name, None)
            if process is None:
                continue
            # a name server has nothing to flush
            process.send_signal(signal_number if name == "broker" else signal.SIGKILL)
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self._end(signal.SIGKILL, 60)
                raise


def _broker_port() -> int:
    """A free port, with a free port two below it and one above it, which a broker uses, too."""
    for _ in range(1000):
        (port,) = free_ports(1)
        held: list[socket.socket] = []
        try:
            held += [socket.create_server(("127.0.0.1", port + step)) for step in (-2, 0, 1)]
            return port
        except OSError:
            continue
        finally:
            for server in held:
                server.close()
    raise RuntimeError("no three free ports")


def _addresses(broker: Broker) -> str:
    return f"name server {broker.name_server}, broker {broker.address}"


if __name__ == "__main__":
    sys.exit(
        run_until_stopped(
            __doc__, lambda folder, settings: Broker(rocketmq_home(), folder, settings), _addresses
        )
    )
