"""Random queues, compacted by RocketMQ's classes and by Lastwrite, compared by round.

A seed is a store of two queues and some rounds. In each round, messages are appended as a broker
appends them. Then

- ``like_broker`` and the real ``CompactionLog`` work on copies of the store: log, index and
position files are equal byte for byte; - in the default mode the files are the model's. A broker
reads exactly the messages that the model keeps, and its own next run leaves what its rules keep of
them.
"""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from lastwrite.reports.compaction import Status
from lastwrite.rocketmq.format.names import log_sizes
from lastwrite.rocketmq.format.sides import decode_positions
from tests.support.engine import compact
from tests.support.kafka.logs import SCRATCH
from tests.support.rocketmq import model
from tests.support.rocketmq.oracle import RocketmqOracle

POSITIONS = "compaction/position-checkpoint"


def check_seed(oracle: RocketmqOracle, seed: int) -> Counter[str]:
    """Run a seed.

    Returns how often each case occurred. Fails with an AssertionError on a difference.
    """
    rng = random.Random(f"rocketmq-{seed}")
    settings = {
        "compactionCqMappedFileSize": 46 * rng.randrange(6, 40),
        "compactionMappedFileSize": rng.randrange(1_000, 12_000),
    }
    with tempfile.TemporaryDirectory(prefix="lastwrite-rmq-", dir=SCRATCH) as folder:
        return _Rounds(oracle, rng, Path(folder), settings).play()


class _Rounds:
    def __init__(
        self, oracle: RocketmqOracle, rng: random.Random, folder: Path, settings: dict[str, int]
    ) -> None:
        self._oracle, self._rng, self._folder, self._settings = oracle, rng, folder, settings
        sizes = log_sizes(
            settings["compactionMappedFileSize"], settings["compactionCqMappedFileSize"]
        )
        self._queues = [
            model.ModelQueue(*sizes, number) for number in range(2)
        ]  # compacted like the broker
        self._own = copy.deepcopy(self._queues)  # compacted in the default mode
        self._keys = rng.randrange(1, 40)
        self._clock = model.START_MS
        self._met: Counter[str] = Counter()

    def play(self) -> Counter[str]:
        for _ in range(self._rng.randrange(1, 5)):
            self._append()
            self._like_broker()
            self._by_default()
            self._met["rounds"] += 1
        return self._met

    def _append(self) -> None:
        for queue, own in zip(self._queues, self._own, strict=True):
            end = max(queue.end_offset, own.end_offset)
            for _ in range(self._rng.randrange(0, 120)):
                self._clock += self._rng.randrange(0, 500)
                new = model.random_message(self._rng, end, self._keys, self._clock, queue.number)
                end += self._rng.choice((1, 1, 1, 3))
                self._met["deletes"] += new.is_delete
                queue.append(new)
                own.append(new)

    def _store(self, name: str, queues: list[model.ModelQueue]) -> Path:
        root = self._folder / name
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        model.write_store(root, queues)
        return root

    def _copy(self, root: Path, name: str) -> Path:
        target = self._folder / name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(root, target)
        return target

    def _like_broker(self) -> None:
        live = [queue for queue in self._queues if queue.pairs]
        if not live:
            return
        ours = self._store("ours", live)
        theirs = self._copy(ours, "theirs")
        told = compact(ours, {}, self._clock, like_broker=True).partitions
        for queue, report in zip(live, told, strict=True):
            answer = self._oracle.ask("compact", theirs, self._settings, queue=queue.number)
            was_done = bool(answer["ok"] and answer["compacted"])
            assert (report.status is Status.CLEANED) == was_done, (report.reason, answer)
            self._met["runs of the broker"] += was_done
            self._met["runs that the broker could not end"] += not answer["ok"]
            assert was_done == model.compact_like_broker(queue)
        assert model.read_files(ours) == model.read_files(theirs)
        assert model.read_files(ours) == {
            p: c for queue in live for p, c in model.files_of(queue).items()
        }
        known, wanted = ours / POSITIONS, theirs / POSITIONS
        if known.exists():
            assert known.read_bytes() == wanted.read_bytes()
        else:  # a stopping broker writes a file without positions
            assert not decode_positions(wanted.read_bytes())

    def _by_default(self) -> None:
        live = [queue for queue in self._own if queue.pairs]
        if not live:
            return
        root = self._store("default", live)
        retention, include_active = self._rng.choice((0, 2_000, 10**12)), self._rng.random() < 0.2
        compact(
            root, {"delete.retention.ms": retention}, self._clock, include_active=include_active
        )
        for queue in live:
            before = len(queue.messages)
            model.compact(queue, self._clock, retention, include_active=include_active)
            self._met["messages that went"] += before - len(queue.messages)
        assert model.read_files(root) == {
            p: c for queue in live for p, c in model.files_of(queue).items()
        }
        served = self._copy(root, "served")
        # If the position file is lost, a broker compacts Lastwrite's result again.
        forgets = self._rng.random() < 0.7
        if forgets:
            for name in (POSITIONS, f"{POSITIONS}.bak"):
                (served / name).unlink(missing_ok=True)
        for queue in live:
            self._check_served(served, queue)
            after = copy.deepcopy(queue)
            after.position = -1 if forgets else after.position
            answer = self._oracle.ask("compact", served, self._settings, queue=queue.number)
            was_done = model.compact_like_broker(after)
            assert bool(answer["ok"] and answer["compacted"]) == was_done, answer
            self._met["runs of the broker on our files"] += was_done
            self._check_served(served, after)

    def _check_served(self, root: Path, queue: model.ModelQueue) -> None:
        answer = self._oracle.ask("dump", root, self._settings, queue=queue.number)
        assert answer["ok"], answer
        served = [
            (
                line["queueOffset"],
                line["properties"]["KEYS"],
                line["bodyHex"],
                line["storeTimestamp"],
            )
            for line in answer["lines"]
        ]
        assert served == [
            (each.offset, each.key, each.body.hex(), each.store_ms) for each in queue.messages
        ]
        self._met["messages served"] += len(served)
