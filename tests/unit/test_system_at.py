"""Which system a path holds."""

from __future__ import annotations

from pathlib import Path

from lastwrite.commands.systems import system_at

STORE = Path(__file__).resolve().parents[1] / "corpus" / "rocketmq" / "5.5.0"
ROOT = Path(__file__).resolve().parents[1] / "corpus" / "kafka-4.4.0" / "stopped"


def test_a_path_says_whose_it_is() -> None:
    assert system_at(str(STORE)).name == "rocketmq"
    assert system_at(str(ROOT)).name == "kafka"
    assert system_at(str(STORE), "kafka").name == "kafka"
