"""Tests that a store that does not answer is not reported as damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

import lastwrite
from lastwrite.errors import LogError
from lastwrite.spark.inline import Inline
from tests.support.objects import BUCKET, S3, FaultProxy

pytestmark = [pytest.mark.broker]
CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"
TOPIC = "transactional"
COMMANDS = {
    "inspect": lambda at, config: lastwrite.inspect(at, config=config),
    "explain": lambda at, config: lastwrite.explain(at, config=config),
    "verify": lambda at, config: lastwrite.verify(at, config=config, spark=Inline()),
    "compact": lambda at, config: lastwrite.compact(at, config=config, spark=Inline()),
    "dump": lambda at, config: list(lastwrite.dump(at, index=True, config=config)),
    "latest": lambda at, config: lastwrite.latest(at, config=config),
}


@pytest.fixture(scope="module", autouse=True)
def indexes_of_all_segments() -> Iterator[None]:
    """Give small segments index objects, too, so that requests for these can go unanswered."""
    with patch("lastwrite.kafka.store.archived_segment.LEAST_INDEXED_BYTES", -1):
        yield


@pytest.mark.parametrize("kind", ["index", "timeindex", "txnindex", "log", "manifest"])
@pytest.mark.parametrize("command", COMMANDS)
def test_missing_response_is_not_damage(
    s3: S3, proxy: FaultProxy, tmp_path: Path, command: str, kind: str
) -> None:
    address = f"s3://{BUCKET}/{tmp_path.name}"
    lastwrite.fetch([str(CORPUS)], address, topic=TOPIC, include_active=True, config=s3.config)
    path = "manifest[.]json" if kind == "manifest" else f"[.]{kind}$"
    proxy.spoil({"method": "GET", "path": path, "do": "503"})
    config = {**s3.config, "storage.endpoint": proxy.endpoint, "storage.retries": "0"}
    try:
        found = COMMANDS[command](address, config)
        said, status = repr(found), getattr(found, "exit_status", 0)
    except LogError as error:
        said, status = str(error), error.exit_status
    if proxy.used():
        assert "503" in said
        assert status == 1
