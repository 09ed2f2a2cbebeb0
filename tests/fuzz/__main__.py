"""Fuzz the formats and the engine:  python -m tests.fuzz --inputs 1000000 --seed 1

Every input goes through decode, scan (split, decompress, walk) and rewrite (judge, thin, seal) in memory, with the
slow decoder as the judge: both accept the same bytes, see the same records, and what is rewritten decodes to
exactly the records that were kept. Every ``--whole``-th goes through a whole ``compact`` on files as well: a
partition that is refused stays as it was to the byte, one that is cleaned keeps the table a reader ends with.
``--system pulsar``: the same for Pulsar, see ``tests.fuzz.pulsar``.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import lastwrite
from lastwrite.compaction.verdict import Verdict, judge
from lastwrite.errors import LogError
from lastwrite.formats.fingerprint import SECRET_WORDS, secret_from
from lastwrite.formats.kafka.batch import Batch, decode_batch
from lastwrite.formats.kafka.chunk import KafkaFormat
from lastwrite.formats.pulsar.chunk import PulsarFormat
from lastwrite.model.columns import CONTROL, IS_CONTROL, KEYLESS, SHADOWED, TOMBSTONE
from lastwrite.model.policy import Policy
from lastwrite.model.report import Status
from lastwrite.pipeline.inline import INLINE
from tests.fuzz import pulsar
from tests.fuzz.mutate import START, mutate, sound_segments

Check = Callable[[random.Random], list[str]]
Whole = Callable[[Path, random.Random], str]

PLAIN_LIMIT = 1 << 20
SECRET = secret_from(bytes(range(1, 9)) * SECRET_WORDS)


def decoded(data: bytes) -> list[Batch] | None:
    """All batches by the slow decoder, with offsets that rise; None where it refuses."""
    out: list[Batch] = []
    at, floor = 0, 0
    while at < len(data):
        try:
            batch = decode_batch(
                data, at, PLAIN_LIMIT if data[at + 16 : at + 17] == b"\2" else PLAIN_LIMIT // 2
            )
        except LogError:
            return None
        if batch.header.base_offset < floor:
            return None
        if batch.attributes.control and not all(
            record.key and is_control_key(record.key) for record in batch.records
        ):
            return None
        floor = batch.header.next_offset
        at += batch.header.size_bytes
        out.append(batch)
    return out


def is_control_key(key: bytes) -> bool:
    return len(key) >= 4 and key[0] < 128  # version and type


def check_in_memory(format: KafkaFormat, data: bytes, rng: random.Random) -> str:
    """Decode, scan and rewrite one input; returns what became of it."""
    expected = decoded(data)
    buffer = np.frombuffer(data, dtype=np.uint8).copy()
    at, floor = 0, 0
    seen: list[Batch] = []
    while at < len(buffer):
        try:
            table, consumed, wanted, held_in = format.split(buffer, at, len(buffer), floor)
            if not len(table):
                assert wanted >= 0
                assert expected is None, "split wants more where the decoder is content"
                return "refused"
            table = table.copy()
            records = int(table["records"].sum())
            held = min(records, PLAIN_LIMIT)  # more than that is a lie about a compressed batch
            states = np.zeros(held, np.uint8)
            entries = np.zeros((held, 2), np.uint64)
            filled = place = 0
            for run in format.opened(held_in, table):
                filled = format.walk(run, table, SECRET, place, states[place:], entries, filled)
                place += int(table["records"][run.first : run.last].sum())
            check_rewrite(format, data, held_in, table, states, entries[:filled], rng)
        except LogError:
            assert expected is None, "refused what the decoder accepts"
            return "refused"
        for row in table:
            seen.append(decode_batch(data, int(row["origin"]), PLAIN_LIMIT))
        floor = int(table["next_offset"][-1])
        at = consumed
    assert expected is not None, "accepted what the decoder refuses"
    assert seen == expected
    return "accepted"


def check_rewrite(
    format: KafkaFormat,
    data: bytes,
    buffer: np.ndarray,
    table: np.ndarray,
    states: np.ndarray,
    entries: np.ndarray,
    rng: random.Random,
) -> None:
    for ordinal in (entries[:, 1] & np.uint64(0xFFFFFFFF)).tolist():
        states[ordinal] |= SHADOWED * (rng.random() < 0.4)
    policy = Policy(
        now_ms=START + rng.choice([0, 50, 99]),
        tombstone_retention_ms=10,
        shell_offset=int(table["next_offset"][-1]),
    )
    keep, actions = np.zeros(len(states), np.uint8), np.zeros(len(table), np.uint8)
    horizons, counts = np.zeros(len(table), np.int64), np.zeros(len(Verdict), np.int64)
    judge(table, states, policy, 0, keep, actions, horizons, counts)
    out, rows = (
        np.zeros(format.rebuilt_size(table, len(states)), np.uint8),
        np.zeros((len(table), 5), np.int64),
    )
    out, size, filled = format.rebuild(buffer, table, actions, horizons, keep, out, rows)
    found = decoded(out[:size].tobytes())
    assert found is not None and len(found) == filled, "what was rewritten does not decode"
    want, place = [], 0
    for row in table:
        for record in decode_batch(data, int(row["origin"]), PLAIN_LIMIT).records:
            state = int(states[place])
            if row["flags"] & IS_CONTROL:
                assert state & CONTROL and not state & (KEYLESS | TOMBSTONE | SHADOWED)
            else:
                assert bool(state & KEYLESS) == (record.key is None)
                assert state & KEYLESS or bool(state & TOMBSTONE) == (record.value is None)
            if keep[place]:
                want.append(record)
            place += 1
    assert [record for batch in found for record in batch.records] == want


def check_whole(folder: Path, data: bytes, rng: random.Random) -> str:
    """A whole ``compact`` over a partition of this segment, a sound one behind it, and an active one."""
    shutil.rmtree(folder, ignore_errors=True)
    partition = folder / "t-0"
    partition.mkdir(parents=True)
    (partition / f"{0:020d}.log").write_bytes(data)
    for kind in ("index", "timeindex"):
        (partition / f"{0:020d}.{kind}").write_bytes(b"")
    (partition / f"{2**40:020d}.log").write_bytes(b"")
    before = {file.name: file.read_bytes() for file in partition.iterdir()}
    report = lastwrite.compact(
        str(folder),
        now_ms=START + rng.choice([0, 99]),
        config={"delete.retention.ms": 10},
        spark=INLINE,
    )
    after = {file.name: file.read_bytes() for file in partition.iterdir()}
    status = report.partitions[0].status
    if status in (Status.DAMAGED, Status.SKIPPED, Status.UNCHANGED):
        assert after == before, f"{status}, yet changed"
        return str(status)
    assert status is Status.CLEANED, report.partitions[0].reason
    # Offsets far from the base of their segment begin further ones.
    old, new = (
        decoded(data),
        decoded(b"".join(after[name] for name in sorted(after) if name.endswith(".log"))),
    )
    assert old is not None and new is not None
    if any(batch.attributes.transactional for batch in old):
        return f"{status}, with transactions"  # whose aborted records go: other tests know which
    keyed = {r.key: r for batch in old for r in batch.records if r.key is not None}
    left = {r.key: r for batch in new for r in batch.records}
    horizons = {r.offset: batch.header.delete_horizon_ms for batch in old for r in batch.records}
    for key, record in keyed.items():
        if key not in left:
            horizon = horizons[record.offset]
            assert record.value is None and horizon is not None and horizon <= report.now_ms, (
                "a last write is lost"
            )
        else:
            assert left[key] == record
    return str(status)


def kafka_checks() -> tuple[Check, Whole]:
    """What is done with one input, and with the whole of one; as ``main`` calls them."""
    segments = sound_segments(random.Random(0))
    format = KafkaFormat(PLAIN_LIMIT)

    def check(rng: random.Random) -> list[str]:
        return [check_in_memory(format, mutate(rng, segments), rng)]

    def whole(folder: Path, rng: random.Random) -> str:
        return "whole: " + check_whole(folder, mutate(rng, segments), rng)

    return check, whole


def pulsar_checks() -> tuple[Check, Whole]:
    """The same for Pulsar."""
    found = pulsar.sound()
    others = [data for data, _ in found.objects]
    format = PulsarFormat(pulsar.PLAIN_LIMIT)

    def check(rng: random.Random) -> list[str]:
        data, lowest = rng.choice(found.objects)
        harmed = pulsar.mutate_object(rng, data, others)
        return [
            pulsar.check_in_memory(format, harmed, lowest, rng),
            pulsar.check_file(found.files, rng),
        ]

    return check, pulsar.check_whole


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--system", choices=("kafka", "pulsar"), default="kafka")
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument(
        "--whole", type=int, default=50, help="every so many inputs, a whole compact on files"
    )
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))  # an allocation by a lie shows
    check, whole = {"kafka": kafka_checks, "pulsar": pulsar_checks}[given.system]()
    outcomes: dict[str, int] = {}
    slowest, begin = 0.0, time.monotonic()
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="lastwrite-fuzz-", dir=shm) as work:
        for n in range(given.first, given.first + given.inputs):
            rng = random.Random(given.seed * 1_000_000_007 + n)
            start = time.monotonic()
            try:
                found = check(rng)
                if given.whole and n % given.whole == 0:
                    found.append(whole(Path(work) / "log", rng))
            except BaseException:
                print(
                    f"--system {given.system} --seed {given.seed} --first {n} --inputs 1",
                    file=sys.stderr,
                )
                raise
            for outcome in found:
                outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if n > given.first + 100:
                slowest = max(slowest, time.monotonic() - start)
    print(
        {
            "inputs": given.inputs,
            "seed": given.seed,
            "seconds": round(time.monotonic() - begin, 1),
            "slowest_input_seconds": round(slowest, 3),
            **outcomes,
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
