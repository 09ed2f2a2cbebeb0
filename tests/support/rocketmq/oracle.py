"""RocketMQ's own compaction classes, run by a peer program outside this repository.

``LASTWRITE_PEERS`` names the folder of peers (default: ``shared/peers`` beside the repository).
``LASTWRITE_ROCKETMQ_HOME`` names a folder that the peer's ``setup.sh`` has filled. Without one,
Maven fills a folder in the user's cache once. Tests that need the oracle are skipped with the
reason if it cannot run.
"""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.kafka.oracle import PEERS, peer_home

PEER = PEERS / "rocketmq"


@functools.cache
def oracle_home() -> Path:
    """The folder with RocketMQ's jars and the oracle's classes.

    Skips the test if it cannot be made.
    """
    return peer_home("RocketMQ", "CompactionOracle")


class RocketmqOracle:
    """The peer's CompactionOracle in its own JVM.

    It writes to the stores that it opens: pass copies.
    """

    def __init__(self) -> None:
        home = oracle_home()
        self._process = subprocess.Popen(
            [str(PEER / "oracle.sh"), str(home)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, do: str, store: Path, settings: Mapping[str, int], **more: Any) -> dict[str, Any]:
        """Send a request, and return the answer. ``lines`` has the records of a ``dump``.

        ``ok`` is false if RocketMQ threw an exception.
        """
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(
            json.dumps({"do": do, "store": str(store), "config": dict(settings), **more}) + "\n"
        )
        process.stdin.flush()
        lines: list[dict[str, Any]] = []
        while True:
            text = process.stdout.readline()
            assert text, "the oracle is gone"
            if not text.startswith("{"):
                continue  # a log line, not an answer
            answer: dict[str, Any] = json.loads(text)
            if "ok" in answer:
                return {**answer, "lines": lines}
            lines.append(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
