"""Clean thousands of random logs by their own cleaner and by Lastwrite:  python -m tests.proof

``--seeds 2000`` plays that many seeds. With ``--system rocketmq`` RocketMQ cleans them, and with
``--system pulsar`` a real Pulsar standalone (300 seeds take half an hour). A seed is a log with all
features and several rounds under an advancing clock. ``tests/support/SYSTEM/judged.py`` describes
what must agree. Seeds are independent: ``--start N`` continues a stopped run. A failed seed is
printed with the failed check, and ``--start N --seeds 1`` plays it again. Seeds that found a fault
are listed in ``tests/conformance/test_real_cleaner.py``.

Needs the same as tests marked ``oracle``: Java 17, and the peer in ``LASTWRITE_PEERS``.
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
    """The failed check with its line, and the error."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.endswith("judged.py")
    ]
    frame = frames[-1]
    return f"{frame.name}, line {frame.lineno}: {frame.line}: {type(error).__name__}: {str(error)[:300]}"


if __name__ == "__main__":
    sys.exit(main())
