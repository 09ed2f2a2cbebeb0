"""RocketMQ's own compaction classes as a judge, from the peer outside this repository.

``LASTWRITE_PEERS`` names the folder of peers (default: ``shared/peers`` beside the repository), and
``LASTWRITE_ROCKETMQ_HOME`` a folder that its ``setup.sh`` has filled; without one Maven fills it
once, in the user's cache folder. Tests that need the oracle skip with the reason where it cannot
run.
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
    """The folder with RocketMQ's jars and the oracle's classes; skips the test where there can be
    none.
    """
    return peer_home("RocketMQ", "CompactionOracle")


class RocketmqOracle:
    """CompactionOracle in its own JVM. It writes to the stores that it opens: give it copies."""

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
        """The answer to a request; ``lines`` has the records of a ``dump``. ``ok`` is false where
        the classes threw.
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
                continue  # a line of somebody's log
            answer: dict[str, Any] = json.loads(text)
            if "ok" in answer:
                return {**answer, "lines": lines}
            lines.append(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
