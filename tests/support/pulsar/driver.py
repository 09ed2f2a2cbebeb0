"""Pulsar's own Java clients (producer, reader, admin, BookKeeper), as a test asks them; see
``Driver.java``.

Values, ordering keys and byte keys travel as base64; ``Line`` and ``Message`` say what is sent.
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
# "properties": {…}, "orderingKey": base64, "deliverAt": ms}; what is not set is left out.
Message = dict[str, Any]

# {"messages": [Message…], "batch": True, "codec": "LZ4", "encrypt": True, "chunk": bytes, "txn":
# name}, or {"commit": name}, {"abort": name}. With "batch" all messages are one entry, else each is
# one.
Line = dict[str, Any]


class Horizon(NamedTuple):
    """What the broker says of a topic's compaction."""

    ledger: int  # of the horizon's entry
    entry: int
    compacted_ledger: int


class RawLedger(NamedTuple):
    ledger: int
    last: int  # the last entry's id as the broker knows it, also of an open ledger; -1: none
    metadata: bytes  # as the metadata store holds it, with its first line


class Driver:
    """A JVM with the clients of ``broker``'s release; ``transactions``: the broker has them
    enabled.

    Raises:
        Unavailable: a Java without its compiler.
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
        """The answer to a request.

        Raises:
            RuntimeError: Pulsar refused; what it said.
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
        """A topic that no test has used, nor an earlier try of one."""
        topic = f"persistent://public/default/{name}-{uuid.uuid4().hex[:8]}"
        self.create(topic, partitions)
        return topic

    def send(self, topic: str, lines: Sequence[Line]) -> list[str]:
        """Send what the lines say, in this order; the id of each message."""
        ids: list[str] = self.ask("send", topic=topic, lines=lines)["ids"]
        return ids

    def unload(self, topic: str) -> None:
        """Close the topic, and with it its open ledger; the next use loads it again."""
        self.ask("unload", topic=topic)

    def compact(self, topic: str) -> dict[str, Any]:
        """Have the broker compact a topic: ``status``, ``did`` (anything changed), ``removed``,
        ``seconds``.
        """
        return self.ask("compact", topic=topic)

    def horizon(self, topic: str) -> Horizon | None:
        answer = self.ask("horizon", topic=topic)
        return Horizon(*answer["horizon"], answer["ledger"]) if answer else None

    def ledgers(self, topic: str) -> tuple[bytes, list[RawLedger]]:
        """The ManagedLedgerInfo of a topic as the metadata store holds it, and its raw ledgers in
        order.
        """
        answer = self.ask("ledgers", topic=topic)
        rows = [
            RawLedger(row["ledger"], row["last"], base64.b64decode(row["metadata"]))
            for row in answer["ledgers"]
        ]
        return base64.b64decode(answer["node"]), rows

    def dump(self, ledger: int, first: int = 0, last: int = -1) -> list[bytes]:
        """The entries of a ledger from ``first``; of an open one up to ``last``."""
        return [
            base64.b64decode(text)
            for text in self.ask("dump", ledger=ledger, **{"from": first}, last=last)["entries"]
        ]

    def export(self, ledger: int, last: int, file: Path) -> list[bytes]:
        """As ``dump``, for ledgers of any size: by way of ``file``, which is overwritten."""
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
        """The messages as a Java reader gets them, from the start or from the id ``first``
        (``ledger:entry``) on.

        Where the last entry is a chunk whose fellows are compacted away, a reader waits for a
        message that never comes: ``may_hang`` takes that for the end.
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
        """Write records into a new ledger and acknowledge it as the compacted one up to a horizon;
        its id.
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
