"""Which system a path holds, and commands that know one of them only."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastwrite
from lastwrite.commands.systems import system_at
from lastwrite.errors import InvalidConfig

STORE = Path(__file__).resolve().parents[1] / "corpus" / "rocketmq" / "5.5.0"
ROOT = Path(__file__).resolve().parents[1] / "corpus" / "kafka-4.4.0" / "stopped"


def test_a_path_says_whose_it_is() -> None:
    assert system_at(str(STORE)).name == "rocketmq"
    assert system_at(str(ROOT)).name == "kafka"
    assert system_at(str(STORE), "kafka").name == "kafka"


@pytest.mark.parametrize("command", ["explain"])
def test_what_knows_kafka_alone_says_so(command: str) -> None:
    with pytest.raises(InvalidConfig, match=f"{command} knows Kafka's logs only"):
        getattr(lastwrite, command)(str(STORE))
