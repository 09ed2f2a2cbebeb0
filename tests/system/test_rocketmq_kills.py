"""Tests of stores of a broker that is killed under load.

No command reports the leftovers as damage.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
from pathlib import Path

import pytest

from lastwrite.errors import LogError
from lastwrite.rocketmq.network.client import RocketmqClient
from tests.support.rocketmq.broker import (
    COMPACTED,
    SIZES,
    SMALL_FILES,
    Broker,
    Unavailable,
    rocketmq_home,
)
from tests.support.rocketmq.scenario import Topic
from tests.system.test_cli import lastwrite, one_document

pytestmark = [pytest.mark.broker, pytest.mark.slow]

QUEUES = 3
PATIENT = ("--unclean", "--json")
AT_ONCE = ("--config", "min.cleanable.dirty.ratio=0", "--config", "delete.retention.ms=0")


def load(broker: Broker, topic: Topic, rng: random.Random, begun: threading.Event) -> None:
    """Send messages until the broker is gone."""
    with contextlib.suppress(LogError, OSError), RocketmqClient(broker.name_server) as client:
        client.create_topic(topic.name, QUEUES, COMPACTED)
        while True:
            topic.produce(client, 40, rng, keys=60)
            if min(map(len, topic.messages.values())) > 50:  # several files of each queue
                begun.set()


def roll_half(store: Path) -> None:
    """Add to each queue the next log file without its index.

    A kill between the creations of both files leaves this state.
    """
    for folder in sorted((store / "compaction" / "compactionLog" / "t").iterdir()):
        last = max(path for path in folder.iterdir() if path.is_file())
        size = last.stat().st_size
        if (store / "compaction" / "compactionCq" / "t" / folder.name / last.name).exists():
            (folder / f"{int(last.name) + size:020d}").write_bytes(bytes(size))


@pytest.mark.long
def test_leftovers_of_a_kill_under_load_are_not_damage(tmp_path: Path) -> None:
    try:
        broker = Broker(rocketmq_home(), tmp_path / "store", SMALL_FILES)
    except Unavailable as reason:
        pytest.skip(str(reason))
    topic, begun, rng = Topic("t", QUEUES), threading.Event(), random.Random()
    try:
        broker.start()
        sending = threading.Thread(target=load, args=(broker, topic, rng, begun), daemon=True)
        sending.start()
        assert begun.wait(120)
        broker.crash()
        sending.join(120)
        assert not sending.is_alive()
    finally:
        broker.kill()
    killed, rolling = broker.store, Path(shutil.copytree(broker.store, tmp_path / "rolling"))
    assert (killed / "abort").exists()
    roll_half(rolling)
    sizes = [word for name, value in SIZES.items() for word in ("--config", f"{name}={value}")]
    for store in (killed, rolling):
        looked = one_document(lastwrite("inspect", store, "--json"))
        assert looked["totals"]["damaged"] == 0 and '"damaged"' not in str(looked["partitions"]), (
            looked
        )
        copy = Path(shutil.copytree(store, tmp_path / "copy"))
        for words in (("plan", *PATIENT, *AT_ONCE), ("compact", *PATIENT, *AT_ONCE)):
            done = lastwrite(words[0], copy, *words[1:])
            assert done.returncode == 0 and one_document(done)["totals"]["damaged"] == 0, (
                words,
                done.stdout,
            )
        done = lastwrite("dispatch", copy, *PATIENT, *sizes)
        assert done.returncode == 0 and one_document(done)["totals"]["damaged"] == 0, (
            done.stdout,
            done.stderr,
        )
        shutil.rmtree(copy)
