"""Thousands of random logs, cleaned by their own cleaner and by Lastwrite:  python -m tests.proof
--seeds 2000

With ``--system rocketmq`` RocketMQ's; with ``--system pulsar`` topics of a real standalone (300
seeds, half an hour). A seed is a log with everything in its mix, several rounds under a moving
clock; ``tests/support/SYSTEM/judged.py`` says what has to agree. Seeds are independent:
``--start N`` goes on where a run was stopped. A seed that failed is named, with the place, and
played again alone by ``--start N --seeds 1``; one that found a fault is kept in the list of
``tests/conformance/test_real_cleaner.py``.

Needs what the tests marked ``oracle`` need: Java 17, and the peer that ``LASTWRITE_PEERS`` names.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.support.kafka import judged as kafka_judged
from tests.support.kafka.oracle import Oracle
from tests.support.pulsar import judged as pulsar_judged
from tests.support.pulsar.oracle import PulsarOracle
from tests.support.rocketmq import judged as rocketmq_judged
from tests.support.rocketmq.oracle import RocketmqOracle

PROGRESS_SECONDS = 30


def _play_pulsar(oracle: PulsarOracle, seed: int) -> Counter[str]:
    return pulsar_judged.check_seed(oracle.standalone(pulsar_judged.settings_of(seed)), seed)


_SYSTEMS: dict[str, tuple[Callable[[], Any], Callable[[Any, int], Counter[str]]]] = {
    "kafka": (Oracle, kafka_judged.check_seed),
    "rocketmq": (RocketmqOracle, rocketmq_judged.check_seed),
    "pulsar": (PulsarOracle, _play_pulsar),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=2000, help="how many logs")
    parser.add_argument("--start", type=int, default=1, help="the first seed")
    parser.add_argument("--system", choices=tuple(_SYSTEMS), default="kafka", help="whose logs")
    arguments = parser.parse_args()
    last = arguments.start + arguments.seeds - 1
    met: Counter[str] = Counter()
    failed: list[int] = []
    began = told = time.monotonic()
    seed = arguments.start
    make_oracle, play = _SYSTEMS[arguments.system]
    oracle = make_oracle()
    try:
        for seed in range(arguments.start, last + 1):
            try:
                met += play(oracle, seed)
            except Exception as error:
                failed.append(seed)
                print(f"seed {seed} FAILED: {_where(error)}", flush=True)
                if arguments.seeds == 1:
                    traceback.print_exc()
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                print(
                    f"seed {seed} of {last}, {len(failed)} failed, {told - began:.0f} s", flush=True
                )
    except KeyboardInterrupt:
        print(f"stopped; go on with --start {seed} --seeds {last - seed + 1}")
    finally:
        oracle.close()
    for what, count in sorted(met.items()):
        print(f"{count:8} {what}")
    print(
        f"{len(failed)} of {seed - arguments.start + 1} failed, {time.monotonic() - began:.0f} s",
        *failed,
    )
    return 1 if failed else 0


def _where(error: Exception) -> str:
    """The check that failed and its line, and what was said."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith("judged.py")
    ]
    frame = frames[-1]
    return f"{frame.name}, line {frame.lineno}: {frame.line}: {type(error).__name__}: {str(error)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
