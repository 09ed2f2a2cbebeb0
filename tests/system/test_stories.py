"""Tests that the pages in ``docs/stories`` run as written and print what they show."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from lastwrite.cli import run
from lastwrite.demo.sample_topic import SampleTopic
from lastwrite.model.progress import NoProgress
from tests.support.jars import free_ports
from tests.support.kafka.broker import Broker, Unavailable, kafka_home
from tests.support.kafka.clients import consume, create_topic
from tests.support.pages import Step, matches, read_steps, run_steps

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
STORIES = sorted((ROOT / "docs" / "stories").glob("*.md"))
START = "lastwrite demo --keep demo"  # tested in test_demo.py: takes longer than the page


def steps_of(page: Path) -> list[Step]:
    (port,) = free_ports(1)
    text = page.read_text("utf-8").replace(":9092", f":{port}")
    return list(read_steps(text.replace("tests/corpus", f"{ROOT}/tests/corpus")))


def write_sample(folder: Path) -> None:
    """``demo/before`` as the demo leaves it, and ``new``, the disk of a new broker with the same
    topic.
    """
    for name in ("demo/before", "new"):
        SampleTopic().write(str(folder / name), NoProgress())
    for file in [*(folder / "new" / "orders-0").glob("0*"), *(folder / "new").glob("*-checkpoint")]:
        file.unlink()


@pytest.mark.parametrize("page", STORIES, ids=lambda page: page.stem)
def test_page_runs_and_prints_the_shown_output(page: Path, tmp_path: Path) -> None:
    assert START in page.read_text("utf-8")
    write_sample(tmp_path)
    steps = steps_of(page)
    assert len(steps) > 1
    assert run_steps(steps, tmp_path) == []


@pytest.mark.broker
@pytest.mark.long
def test_lost_cluster_is_restored_to_real_brokers(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The page with what it leaves to Kafka's scripts: the new broker, its topic, its clients."""
    try:
        home = kafka_home()
    except Unavailable as reason:
        pytest.skip(str(reason))
    SampleTopic().write(str(tmp_path / "demo" / "before"), NoProgress())
    steps = steps_of(ROOT / "docs" / "stories" / "lost-cluster.md")
    at = [step.name for step in steps].index("lastwrite restore backup --to new")
    assert run_steps(steps[:at], tmp_path) == []
    restore = ["restore", str(tmp_path / "backup"), "--to"]

    with Broker(home, tmp_path / "new") as new:
        new.stop()
        capfd.readouterr()
        assert run([*restore, str(new.data)]) == 2
        printed = capfd.readouterr().err.partition("run again: ")[2].partition(" [LW-")[0]
        words = shlex.split(printed)
        assert words[3:8] == ["--create", "--topic", "orders", "--partitions", "1"]
        new.start()
        create_topic(new, "orders", dict(word.split("=", 1) for word in words[9::2]))
        new.stop()
        assert run_steps(steps[at:], tmp_path) == []
        new.start()
        check_last_writes(new)

    with Broker(home, tmp_path / "managed") as managed:
        assert run([*restore, f"kafka://{managed.address}"]) == 0
        check_last_writes(managed)


def check_last_writes(broker: Broker) -> None:
    """Compare the topic with the last writes that a consumer read in the lost cluster."""
    records = consume(broker, "orders")
    assert len(records) == 1388
    live = {record.key: record.value for record in records if record.value is not None}
    assert live == SampleTopic().live_keys()


def test_shown_output_matches_only_itself() -> None:
    shown = "a   b\n…\nin … s\n"
    assert matches(shown, "a   b  \nx\ny\nin 3.0 s\n")
    assert not matches(shown, "a   b\nin 3.0 m\n")
    assert not matches(shown, "a b\nin 3.0 s\n")


def test_changed_output_of_a_page_is_found(tmp_path: Path) -> None:
    page = "```console\n$ echo a\na\n$ echo b\nc\n```\n\n```python\nprint(1)\n```\n\n```\n2\n```\n"
    assert run_steps(list(read_steps(page)), tmp_path) == [
        "$ echo b\nb\n(exit status 0)",
        "$ print(1)\n\n1\n(exit status 0)",
    ]
