"""Tests of the Prometheus metrics of ``serve`` after a Kafka client has read."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

import lastwrite

CORPUS = Path(__file__).parents[1] / "corpus" / "kafka-4.4.0" / "stopped"
TOPIC = "client-zstd"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CORPUS, tmp_path / "log"))


def _read(address: str) -> int:
    """Read as a group and commit the offset after ten records. Returns how many records
    there are.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "app",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found = 0
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            break
        found += 1
        if found == 10:
            consumer.commit(message, asynchronous=False)
    consumer.close()
    return found


def test_metrics_page_has_requests_bytes_and_lag(root: Path, tmp_path: Path) -> None:
    told: list[str] = []
    with lastwrite.serve(
        str(root),
        listen="127.0.0.1:0",
        state=str(tmp_path / "state"),
        metrics_port=0,
        tell=told.append,
    ) as serving:
        assert _read(serving.address) > 10
        host, _, port = serving.address.rpartition(":")
        with socket.create_connection((host, int(port))) as it, suppress(ConnectionResetError):
            it.sendall(b"GET / HTTP/1.1\r\n\r\n")
            it.recv(1)  # the server closes the connection
        (url,) = (text.rpartition(" ")[2] for text in told if text.startswith("metrics: "))
        with urllib.request.urlopen(url) as answer:
            lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines()[:-1])
    assert float(lines['lastwrite_server_requests_total{request="fetch"}']) >= 1
    log = sum(file.stat().st_size for file in (root / f"{TOPIC}-0").glob("*.log"))
    assert float(lines[f'lastwrite_server_bytes_out_total{{topic="{TOPIC}"}}']) >= log
    lag = lines[f'lastwrite_server_group_lag{{group="app",partition="0",topic="{TOPIC}"}}']
    assert float(lag) > 0
    assert float(lines['lastwrite_server_hangups_total{why="protocol"}']) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_cleanly(root: Path, tmp_path: Path, number: int) -> None:
    words = ["serve", str(root), "--listen", "127.0.0.1:0", "--state", str(tmp_path / "state")]
    with subprocess.Popen(
        [sys.executable, "-m", "lastwrite", *words], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("serving ")
        server.send_signal(number)
        assert server.wait(60) == 0
