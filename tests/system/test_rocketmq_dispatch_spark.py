"""Tests of the command ``lastwrite dispatch`` on Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lastwrite import cli
from tests.support.rocketmq.dispatch import COMPACTED, Broker, read_dispatched, send, write_store


@pytest.mark.spark
def test_dispatch_command_runs_on_spark(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    broker = Broker()
    for n in range(60):
        send(broker, "plain", n % 2, n // 2, keys=f"k{n % 5}", body=b"v" * 50)
        send(broker, COMPACTED, n % 3, n // 3, keys=f"k{n % 5}")
    root = write_store(tmp_path / "store", broker)
    settings = [f"--config={name}={value}" for name, value in broker.sizes.config().items()]
    command = ["dispatch", str(root), "--json", "--master", "local[2]", *settings]
    assert cli.run(command) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["totals"]["records"] == 120 and found["totals"]["dispatched"] == 8
    assert read_dispatched(root) == broker.dispatched()
    (root / "abort").touch()
    assert cli.run(command) == 4
    assert json.loads(capfd.readouterr().out)["error"]["kind"] == "LogHeld"
