"""A real Pulsar standalone (ZooKeeper, a bookie, a broker), which a test starts and stops.

    home = pulsar_home()  # 230 MB of jars, fetched once; raises Unavailable if they cannot be
    with Broker(home, tmp_path / "data") as broker:
        with Driver(broker) as driver:  # driver.py: Pulsar's own Java clients
            driver.create("persistent://public/default/orders")

A second ``Broker`` on the same folder opens the data in it. ``python -m tests.support.pulsar.broker
DATA [name=value ...]`` runs one in the foreground until Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from tests.support.jars import Unavailable as Unavailable
from tests.support.jars import fetch_jars, free_ports, need_java, run_until_stopped

VERSION = "4.2.4"
POM = Path(__file__).with_name("pom.xml")
NAMESPACE = "public/default"

# One ZooKeeper, bookie and broker on 127.0.0.1. Raw ledgers are not deleted, and only a test's
# request starts a compaction.
SETTINGS = {
    "clusterName": "standalone",
    "bindAddress": "127.0.0.1",
    "advertisedAddress": "127.0.0.1",
    "managedLedgerDefaultEnsembleSize": "1",
    "managedLedgerDefaultWriteQuorum": "1",
    "managedLedgerDefaultAckQuorum": "1",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "managedLedgerCacheSizeMB": "64",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "brokerServiceCompactionMonitorIntervalInSeconds": "3600",
    "loadBalancerEnabled": "false",
    "functionsWorkerEnabled": "false",
    "webSocketServiceEnabled": "false",
    # Thread counts for two cores. The bookie flushes every second.
    "numIOThreads": "2",
    "numHttpServerThreads": "8",
    "numExecutorThreadPoolSize": "2",
    "numCacheExecutorThreadPoolSize": "2",
    "numOrderedExecutorThreads": "2",
    "bookkeeperNumberOfChannelsPerBookie": "2",
    "managedLedgerNumWorkerThreads": "2",
    "managedLedgerNumSchedulerThreads": "2",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "journalMaxSizeMB": "64",
    "journalPreAllocSizeMB": "4",
    "flushInterval": "1000",
    "httpServerEnabled": "false",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.99",
    "allowLoopback": "true",
}

# Only the first compiler tier: it halves the start-up time, and tests are short.
SHORT = ("-Xmx768m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# The packages that Pulsar's launch script opens in Java 17.
JAVA_OPENS = [
    *(
        f"--add-opens={name}=ALL-UNNAMED"
        for name in (
            "java.base/java.nio",
            "java.base/java.lang",
            "java.base/java.util",
            "java.base/java.util.zip",
            "java.base/jdk.internal.misc",
            "java.base/sun.nio.ch",
            "java.base/java.net",
            "java.base/jdk.internal.platform",
            "java.management/sun.management",
            "jdk.management/com.sun.management.internal",
        )
    ),
    "-Dio.netty.tryReflectionSetAccessible=true",
]

LOG4J = """<Configuration status="ERROR">
  <Appenders><Console name="OUT" target="SYSTEM_ERR"><PatternLayout pattern="%d %p %c{1} - %m%n"/></Console></Appenders>
  <Loggers><Root level="WARN"><AppenderRef ref="OUT"/></Root></Loggers>
</Configuration>
"""


def pulsar_home() -> Path:
    """The folder whose ``lib`` has Pulsar's jars, fetched on first use.

    ``LASTWRITE_PULSAR_HOME`` names it. The default is ``~/.cache/lastwrite/pulsar-<version>``.

    Raises:
        Unavailable: There is no Java 17 or newer, or there are no jars and no Maven to fetch them.
    """
    need_java()
    given = os.environ.get("LASTWRITE_PULSAR_HOME")
    home = Path(given or Path.home() / ".cache" / "lastwrite" / f"pulsar-{VERSION}")
    fetch_jars(
        home,
        f"Pulsar {VERSION}",
        POM,
        f"pulsar-broker-{VERSION}.jar",
        f"-Dpulsar.version={VERSION}",
    )
    return home


class Broker:
    """A standalone on free ports of 127.0.0.1 over the folder ``data``.

    A restart keeps the addresses, so that clients can go on.

    Args:
        settings: Override ``SETTINGS`` and Pulsar's defaults, for the broker and the bookies.
        bookies: The number of bookies, which have consecutive ports.
        metadata: The metadata store. None means a ZooKeeper, "rocksdb" Pulsar's own store in
            RocksDB.
            Otherwise, the URL of a store, such as ``etcd:http://HOST:PORT``.
    """

    def __init__(
        self,
        home: Path,
        data: Path,
        settings: Mapping[str, str] | None = None,
        java: Sequence[str] = SHORT,
        bookies: int = 1,
        metadata: str | None = None,
    ) -> None:
        self._metadata = metadata
        self.home = home
        self.data = data
        self._settings = dict(settings or {})
        self._java = tuple(java)
        self._bookies = bookies
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """``host:port`` of the broker's binary protocol."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def service_url(self) -> str:
        return f"pulsar://{self.address}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def metadata_store(self) -> str:
        """``host:port`` of ZooKeeper."""
        return f"127.0.0.1:{self._ports[2]}"

    @property
    def metadata_url(self) -> str:
        """The URL of the metadata store, as brokers write it."""
        if self._metadata is None:
            return f"zk:{self.metadata_store}"
        return f"rocksdb://{self.data}/metadata" if self._metadata == "rocksdb" else self._metadata

    @property
    def bookie(self) -> str:
        return f"127.0.0.1:{self._ports[3]}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, seconds: float = 120) -> Broker:
        """Start the standalone, and return when it serves clients."""
        deadline = time.monotonic() + seconds
        self.data.mkdir(parents=True, exist_ok=True)
        self._ports = self._ports or free_ports(4)
        port, http, zookeeper, bookie = self._ports
        # the starter parses this file
        stored = "" if self._metadata == "rocksdb" else self.metadata_url
        settings = (
            SETTINGS
            | {
                "brokerServicePort": str(port),
                "webServicePort": str(http),
                "metadataStoreUrl": stored,
                "configurationMetadataStoreUrl": stored,
            }
            | self._settings
        )
        conf, log4j, output = (
            self.data / "broker.conf",
            self.data / "log4j2.xml",
            self.data / "broker.out",
        )
        conf.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        log4j.write_text(LOG4J)
        command = [
            "java",
            *JAVA_OPENS,
            *self._java,
            f"-Dlog4j2.configurationFile={log4j}",
            "-cp",
            f"{self.home}/lib/*",
            "org.apache.pulsar.PulsarStandaloneStarter",
            "-c",
            str(conf),
            "-nfw",
            "-nss",
            "-a",
            "127.0.0.1",
            "--bookkeeper-port",
            str(bookie),
            "--num-bookies",
            str(self._bookies),
            "--bookkeeper-dir",
            str(self.data / "bookkeeper"),
            *self._stores(zookeeper),
        ]
        environment = os.environ | {
            "PULSAR_STANDALONE_USE_ZOOKEEPER": "1" if self._metadata is None else "0"
        }
        with output.open("wb") as said:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment,
                cwd=self.data,
            )
        try:
            while not self._answers():
                if self._process.poll() is not None:
                    raise RuntimeError(
                        f"the standalone ended with {self._process.returncode}:\n{self.said()[-3000:]}"
                    )
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the standalone did not start:\n{self.said()[-3000:]}")
                time.sleep(0.1)
        except BaseException:
            self.kill()
            raise
        return self

    def _stores(self, zookeeper: int) -> list[str]:
        if self._metadata is None:
            return [
                "--zookeeper-port",
                str(zookeeper),
                "--zookeeper-dir",
                str(self.data / "zookeeper"),
            ]
        if self._metadata == "rocksdb":
            return ["--metadata-dir", str(self.data / "metadata")]
        return ["--metadata-url", self.metadata_url]

    def said(self) -> str:
        """The warnings and errors that were printed since the last start."""
        output = self.data / "broker.out"
        return output.read_text(errors="replace") if output.exists() else ""

    def stop(self) -> None:
        """Shut down: entry logs and cursors are flushed to disk."""
        self._end(signal.SIGTERM, 60)

    def kill(self) -> None:
        """Kill the process, as in a crash."""
        self._end(signal.SIGKILL, 60)

    def __enter__(self) -> Broker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.stop() if kind is None else self.kill()

    def _answers(self) -> bool:
        """Whether the broker serves the tests' namespace, the last step of its first start."""
        for path in (f"namespaces/{NAMESPACE}/topics", "brokers/ready"):
            try:
                with urllib.request.urlopen(f"{self.admin_url}/admin/v2/{path}", timeout=5):
                    pass
            except (OSError, urllib.error.HTTPError):
                return False
        return True

    def _end(self, signal_number: int, seconds: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal_number)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


if __name__ == "__main__":
    sys.exit(
        run_until_stopped(
            __doc__,
            lambda folder, settings: Broker(pulsar_home(), folder, settings),
            lambda broker: (
                f"{broker.service_url}, admin {broker.admin_url}, ZooKeeper {broker.metadata_store}, "
                f"bookie {broker.bookie}"
            ),
        )
    )
