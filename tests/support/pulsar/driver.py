"""Runs Pulsar's own Java clients (producer, reader, admin, BookKeeper). See ``Driver.java``.

Values, ordering keys and binary keys are sent as base64. ``Line`` and ``Message`` are the formats
of what is sent.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from tests.support.pulsar.broker import JAVA_OPENS, LOG4J, Broker, Unavailable

_SOURCE = Path(__file__).with_name("Driver.java")

# A message: {"key": text, "keyBytes": base64, "value": base64 or None, "eventTime": ms,
# "properties": {…}, "orderingKey": base64, "deliverAt": ms}. All fields are optional.
Message = dict[str, Any]

# A line: {"messages": [Message…], "batch": True, "codec": "LZ4", "encrypt": True, "chunk": bytes,
# "txn": name}, {"commit": name} or {"abort": name}. With "batch", all messages are one entry.
# Otherwise, each message is an entry.
Line = dict[str, Any]


class Horizon(NamedTuple):
    """The state of a topic's compaction, from the broker."""

    ledger: int  # ledger id of the horizon
    entry: int
    compacted_ledger: int


class RawLedger(NamedTuple):
    ledger: int
    last: int  # id of the last entry that the broker knows, also of an open ledger; -1 means none
    metadata: bytes  # from the metadata store, with its first line


class Driver:
    """A JVM with the clients of ``broker``'s release.

    ``transactions`` tells whether the broker has transactions enabled.

    Raises:
        Unavailable: The Java has no compiler.
    """

    def __init__(self, broker: Broker, *, transactions: bool = False) -> None:
        if shutil.which("javac") is None:
            raise Unavailable("Pulsar's clients need a JDK: no javac on PATH")
        log4j = broker.data / "driver-log4j2.xml"
        log4j.write_text(LOG4J)
        self._broker = broker
        self._said: IO[bytes] = (broker.data / "driver.out").open("wb")
        self._process = subprocess.Popen(
            [
                "java",
                *JAVA_OPENS,
                "-Xmx512m",
                "-XX:+UseSerialGC",
                "-XX:TieredStopAtLevel=1",
                f"-Dlog4j2.configurationFile={log4j}",
                "-cp",
                f"{broker.home}/lib/*",
                str(_SOURCE),
                broker.service_url,
                broker.admin_url,
                broker.metadata_store,
                json.dumps(transactions),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self._read()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a request, and return the answer.

        Raises:
            RuntimeError: Pulsar failed. The message has its error.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise RuntimeError(
                f"{do} {request.get('topic', '')}: {answer['error']}\n"
                f"the broker said:\n{self._broker.said()[-3000:]}"
            )
        return answer

    def create(self, topic: str, partitions: int = 0) -> None:
        self.ask("create", topic=topic, partitions=partitions)

    def fresh(self, name: str = "topic", partitions: int = 0) -> str:
        """Create a topic with a new random name."""
        topic = f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}"
        self.create(topic, partitions)
        return topic

    def send(self, topic: str, lines: Sequence[Line]) -> list[str]:
        """Send the lines in order. Returns the id of each message."""
        ids: list[str] = self.ask("send", topic=topic, lines=lines)["ids"]
        return ids

    def unload(self, topic: str) -> None:
        """Close the topic and its open ledger. The next use loads the topic again."""
        self.ask("unload", topic=topic)

    def compact(self, topic: str) -> dict[str, Any]:
        """Let the broker compact a topic.

        Returns ``status``, ``did`` (whether anything changed), ``removed`` and ``seconds``.
        """
        return self.ask("compact", topic=topic)

    def horizon(self, topic: str) -> Horizon | None:
        answer = self.ask("horizon", topic=topic)
        return Horizon(*answer["horizon"], answer["ledger"]) if answer else None

    def ledgers(self, topic: str) -> tuple[bytes, list[RawLedger]]:
        """The topic's ManagedLedgerInfo from the metadata store, and its raw ledgers in order."""
        answer = self.ask("ledgers", topic=topic)
        rows = [
            RawLedger(row["ledger"], row["last"], base64.b64decode(row["metadata"]))
            for row in answer["ledgers"]
        ]
        return base64.b64decode(answer["node"]), rows

    def dump(self, ledger: int, first: int = 0, last: int = -1) -> list[bytes]:
        """The entries of a ledger from id ``first``. ``last`` ends them in an open ledger."""
        return [
            base64.b64decode(text)
            for text in self.ask("dump", ledger=ledger, **{"from": first}, last=last)["entries"]
        ]

    def export(self, ledger: int, last: int, file: Path) -> list[bytes]:
        """All entries of a ledger of any size. They pass through ``file``, which is overwritten."""
        self.ask("export", ledger=ledger, last=last, file=str(file))
        data, entries, at = file.read_bytes(), [], 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            entries.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        return entries

    def read(
        self,
        topic: str,
        *,
        compacted: bool = False,
        first: str = "",
        patience_ms: int = 10_000,
        may_hang: bool = False,
    ) -> list[Mapping[str, Any]]:
        """The messages that a Java reader gets, from the start or from the id ``first``
        (``ledger:entry``).

        If the last entry is a chunk of an incomplete message, the reader waits for ever. With
        ``may_hang``, that counts as the end.
        """
        answer = self.ask(
            "read", topic=topic, compacted=compacted, patience=patience_ms, **{"from": first}
        )
        assert may_hang or "timeout" not in answer, (
            f"a reader of {topic} waits for a message that does not come"
        )
        messages: list[Mapping[str, Any]] = answer["messages"]
        return messages

    def attach(self, topic: str, records: Sequence[bytes], ledger: int, entry: int) -> int:
        """Write a new compacted ledger, and acknowledge it up to a horizon.

        Returns the ledger's id.
        """
        coded = [base64.b64encode(record).decode() for record in records]
        made: int = self.ask("attach", topic=topic, records=coded, horizon=[ledger, entry])[
            "ledger"
        ]
        return made

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                return answer
        raise RuntimeError(f"Pulsar's clients ended; see {self._said.name}")
