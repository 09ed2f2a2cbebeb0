"""Kafka's console tools in one JVM, because each takes seconds to start.

with ConsoleTools(kafka_home()) as tools:
    tools.run("kafka-topics", "127.0.0.1:9092", "--list")
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.support.jars import Unavailable, fetch_jars

VERSION = "4.3.1"  # the newest published version
_POM = Path(__file__).with_name("tools-pom.xml")
_PROGRAM = Path(__file__).with_name("RunTools.java")
_PACKAGE = "org.apache.kafka.tools."
_CLASSES = {
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": _PACKAGE + "consumer.group.ConsumerGroupCommand",
    "kafka-dump-log": _PACKAGE + "DumpLogSegments",
    "kafka-features": _PACKAGE + "FeatureCommand",
    "kafka-get-offsets": _PACKAGE + "GetOffsetShell",
    "kafka-groups": _PACKAGE + "GroupsCommand",
    "kafka-log-dirs": _PACKAGE + "LogDirsCommand",
    "kafka-metadata-quorum": _PACKAGE + "MetadataQuorumCommand",
    "kafka-topics": _PACKAGE + "TopicCommand",
    "kafka-transactions": _PACKAGE + "TransactionsCommand",
}


class Printed(NamedTuple):
    """The result of a tool: its exit status, and the lines of stdout and stderr."""

    status: int
    lines: tuple[str, ...]


class ConsoleTools:
    """The console tools, with the libraries of the broker in ``home``.

    Raises:
        Unavailable: There is no JDK, or there are no jars and no Maven to fetch them.
    """

    def __init__(self, home: Path) -> None:
        if shutil.which("javac") is None:
            raise Unavailable("no JDK")
        jars = home.with_name(f"kafka-tools-{VERSION}")
        marker = f"kafka-tools-{VERSION}.jar"
        more = f"-Dkafka={VERSION}", "-DexcludeTransitive=true"
        fetch_jars(jars, f"Kafka's console tools {VERSION}", _POM, marker, *more)
        self._process = subprocess.Popen(
            [
                "java",
                "-Xmx256m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
                "-cp",
                f"{jars}/lib/*:{home}/lib/*",
                str(_PROGRAM),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tool: str, address: str, *arguments: str) -> Printed:
        return self.run_offline(tool, "--bootstrap-server", address, *arguments)

    def run_offline(self, tool: str, *arguments: str) -> Printed:
        """Run a tool that needs no broker."""
        assert self._process.stdin is not None and self._process.stdout is not None
        words = (_CLASSES[tool], *arguments)
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()
        status, count = map(int, self._process.stdout.readline().split())
        lines = [self._process.stdout.readline().rstrip("\n") for _ in range(count)]
        return Printed(status, tuple(lines))

    def __enter__(self) -> ConsoleTools:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
