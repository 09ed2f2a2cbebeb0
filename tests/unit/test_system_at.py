"""Which system a path holds."""

from __future__ import annotations

from pathlib import Path

import pytest

import lastwrite
from lastwrite.cli import run
from lastwrite.commands.systems import system_at
from lastwrite.errors import InvalidConfig

STORE = Path(__file__).resolve().parents[1] / "corpus" / "rocketmq" / "5.5.0"
ROOT = Path(__file__).resolve().parents[1] / "corpus" / "kafka-4.4.0" / "stopped"


def test_a_path_says_whose_it_is() -> None:
    assert system_at(str(STORE)).name == "rocketmq"
    assert system_at(str(ROOT)).name == "kafka"
    assert system_at(str(STORE), "kafka").name == "kafka"


LIVE = "persistent://public/default/orders"


@pytest.mark.parametrize(
    "command",
    [
        ["inspect"],
        ["inspect", "--system", "pulsar"],
        ["settings"],
        ["release"],
        ["explain"],
        ["dump"],
        ["read"],
        ["verify"],
        ["verify", str(ROOT)],
    ],
    ids=" ".join,
)
def test_a_command_that_reads_files_says_to_fetch_a_live_topic_first(
    command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run([*command, LIVE]) == 2
    said = capfd.readouterr().err
    assert f"{LIVE}: a topic of a live cluster" in said
    assert f"lastwrite fetch {LIVE} --to ARCHIVE --config metadataStoreUrl=" in said


@pytest.mark.parametrize(
    "name", ["inspect", "settings", "release", "explain", "dump", "read", "verify", "latest"]
)
def test_so_do_the_functions(name: str) -> None:
    with pytest.raises(InvalidConfig, match="fetch it first"):
        list(getattr(lastwrite, name)(LIVE))


def test_what_is_not_persistent_can_nobody_fetch() -> None:
    with pytest.raises(InvalidConfig, match="is not persistent"):
        lastwrite.inspect(f"non-{LIVE}")
