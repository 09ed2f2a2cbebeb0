"""One or two kills of a round, and the conditions that must hold afterwards."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from pathlib import Path

from lastwrite.storage import files
from lastwrite.storage.files import FaultPoints
from tests.crash.rounds import (
    Batches,
    Round,
    batches_at,
    batches_seen,
    files_of,
    from_start,
    odd_files,
)
from tests.support.kafka.logs import bases, read_checkpoint
from tests.support.kafka.oracle import Oracle

CLEANER_OFFSETS = "cleaner-offset-checkpoint"
KILLS_A_LOG = 20  # number of seeds that share one log


class Broken(AssertionError):
    """A condition does not hold."""


def drawn(round_: Round, seed: int) -> tuple[int, int | None]:
    """The operation before which the round is killed, and that of the second kill or None."""
    rng = random.Random(f"kill-{seed}")
    point = rng.randint(1, round_.operations)
    return point, rng.randint(1, round_.operations) if rng.random() < 0.35 else None


def run_trial(
    round_: Round, place: Path, point: int, again: int | None = None, oracle: Oracle | None = None
) -> Counter[str]:
    """Kill the round, look, run it again to its end, and look.

    With ``again`` the second run is killed, too, and a third one runs to its end. With ``oracle``
    Kafka's loader opens the files after each kill and at the end. Returns counts of what was done.

    Raises:
        Broken: a record was lost or duplicated, a temporary file is left, or the end differs from
            that of an undisturbed run.
    """
    root = place / "run"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(round_.origin, root)
    if not _kill(round_, root, point):
        raise Broken(f"it took fewer than {point} operations")
    met = Counter({"kills": 1})
    side = look(round_, root, place, oracle, met)
    if again is not None and _kill(round_, root, again):
        met["kills of the run after a kill"] += 1
        then = look(round_, root, place, oracle, met)
        for name in round_.folders:
            if side[name] > then[name]:
                raise Broken(
                    f"{name}: the new log counted, and after the second kill the old one did"
                )
    run_to_the_end(round_, root, place)
    if oracle is not None:
        load(round_, root, place, oracle, met)
    return met


def run_to_the_end(round_: Round, root: Path, place: Path) -> None:
    """Run the round once more. The result must have the bytes of an undisturbed run.

    Raises:
        Broken: it has not.
    """
    round_.settings.compact(root)
    odd = odd_files(root)
    if odd:
        raise Broken(f"left behind: {odd}")
    left = files_of(root)
    if left != round_.done:
        names = {
            name
            for name in left.keys() | round_.done.keys()
            if left.get(name) != round_.done.get(name)
        }
        if names != {CLEANER_OFFSETS} or not _is_a_round_more(
            root, read_checkpoint(place / "done", CLEANER_OFFSETS)
        ):
            raise Broken(f"not the bytes of a run that nobody killed: {sorted(names)}")


def _is_a_round_more(root: Path, done: dict[str, int]) -> bool:
    """Whether the checkpoints differ only because the kill came after retention rolled the log.

    The former active segment is closed then, so the next run compacts it and it expires later.
    """
    left = read_checkpoint(root, CLEANER_OFFSETS)
    further = [name for name in left if left[name] != done.get(name)]
    return left.keys() == done.keys() and all(
        bases(root / name) == [left[name]] for name in further
    )


def _kill(round_: Round, root: Path, point: int) -> bool:
    """Run the round in a child process that kills itself before operation ``point``.

    Returns False if the round ended before that operation.
    """
    child = os.fork()
    if child == 0:
        status = 1
        try:
            files.faults = FaultPoints(point)
            round_.settings.compact(root)
            status = 0
        except BaseException as error:
            print(f"in the child: {error!r}", flush=True)
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            raise Broken(f"the child ended by signal {os.WTERMSIG(status)}")
        return True
    if os.WEXITSTATUS(status):
        raise Broken("the child failed; its output says why")
    return False


def look(
    round_: Round, root: Path, place: Path, oracle: Oracle | None, met: Counter[str]
) -> dict[str, int]:
    """Check that each partition has the old log (0) or the new one (1), also by Kafka's loader."""
    sides = {}
    seen = {}
    for name in round_.folders:
        log, seen[name] = batches_seen(root / name)
        old = from_start(round_.before[name], log.log_start)
        new = from_start(round_.after[name], log.log_start)
        if seen[name] not in (old, new):
            raise Broken(
                f"{name}: neither the old log nor the new one: {_difference(seen[name], old, new)}"
            )
        sides[name] = int(seen[name] == new)
        met[
            "partitions seen as the new log" if sides[name] else "partitions seen as the old log"
        ] += 1
    if oracle is not None:
        load(round_, root, place, oracle, met, seen)
    return sides


def load(
    round_: Round,
    root: Path,
    place: Path,
    oracle: Oracle,
    met: Counter[str],
    seen: dict[str, Batches] | None = None,
) -> None:
    """Let Kafka's loader open a copy.

    Its batches and its log end must equal ours, and no temporary file may be left.
    """
    copy = place / "loaded"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    points = read_checkpoint(copy, "recovery-point-offset-checkpoint")
    starts = read_checkpoint(copy, "log-start-offset-checkpoint")
    for name in round_.folders:
        log, batches = batches_seen(root / name)
        answer = oracle.ask(
            "load",
            dir=str(copy / name),
            clean_shutdown=not round_.settings.was_killed,
            recovery_point=points.get(name, 0),
            log_start=starts.get(name, 0),
            now_ms=round_.settings.now_ms,
        )
        met["logs that Kafka's loader opened"] += 1
        if (answer["log_start"], answer["log_end"]) != (log.log_start, log.end_offset):
            raise Broken(
                f"{name}: Kafka's loader has {answer}, we {log.log_start} to {log.end_offset}"
            )
        if batches_at(copy / name, log.log_start) != batches:
            raise Broken(f"{name}: Kafka's loader came to other batches")
        if seen is not None and batches != seen[name]:
            raise Broken(f"{name}: looking changed it")
    odd = [name for name in odd_files(copy) if "/" in name]
    if odd:
        raise Broken(f"Kafka's loader left {odd}")


def _difference(seen: Batches, old: Batches, new: Batches) -> str:
    """The lost and duplicated offsets, compared with the old and with the new log."""
    found = [record.offset for batch in seen for record in batch.records]
    texts = []
    for side, batches in (("old", old), ("new", new)):
        wanted = [record.offset for batch in batches for record in batch.records]
        lost, more = sorted(set(wanted) - set(found)), sorted(set(found) - set(wanted))
        texts.append(
            f"against the {side} log {len(lost)} lost {lost[:5]}, {len(more)} too many {more[:5]}"
        )
    doubled = [offset for offset, count in Counter(found).items() if count > 1]
    return "; ".join([*texts, f"{len(doubled)} doubled {doubled[:5]}"])
