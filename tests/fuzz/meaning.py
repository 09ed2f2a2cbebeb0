"""Fuzz tests of valid data with values at the limits of their types, through every command.

An input is 8 bytes, the seed of a small log root, store or topic folder. Its checksums and lengths
are correct. Its times, offsets, ids, epochs, counts and settings are 0, -1, or at the limits of an
int, a double, a calendar or a long. A few commands run on it as a user would run them. A finding is
an error that is not of ``errors.py``, a report with a number beyond a long, a broken promise after
a successful round, or a removed tombstone that must stay.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.cli import run
from lastwrite.encoding.compression import Codec
from lastwrite.errors import LogError
from lastwrite.kafka.cluster.commits import Commit, GroupPartition, key_of, value_of
from lastwrite.kafka.format.batch import ControlType, encode_batch
from lastwrite.kafka.format.batch_layout import Record
from lastwrite.kafka.format.text import LeaderEpoch, encode_leader_epochs
from lastwrite.kafka.producers.snapshot import ProducerEntry, encode_snapshot
from lastwrite.model.log import TopicPartition
from lastwrite.rocketmq.format import record as rocketmq_record
from lastwrite.rocketmq.format.properties import KEYS
from lastwrite.spark.inline import INLINE
from tests.fuzz.target import Target
from tests.support.kafka.logs import SCRATCH, write_checkpoint, write_segment
from tests.support.kafka.single import encode_control_record
from tests.support.pulsar.folders import batch as pulsar_batch
from tests.support.pulsar.folders import single, write_ledger
from tests.support.pulsar.topics import topic_folder
from tests.support.rocketmq.model import TOPIC, ModelPair, ModelQueue, message, write_store
from tests.support.rocketmq.stores import StoreWriter

LONG_MAX, LONG_MIN = 2**63 - 1, -(2**63)
INT_MAX = 2**31 - 1
START_MS = 1_700_000_000_000
YEAR_9999_MS = 253_402_300_799_999  # the last time that most programs' calendars can express
MEMORY = "1g"

TIMES = (
    *(START_MS, START_MS, START_MS, START_MS + 1, 0, 1, -1, -2),
    *(INT_MAX, 2**31, 2**32, 2**53, YEAR_9999_MS, YEAR_9999_MS + 1, -62_135_596_800_001),
    *(START_MS * 1000, LONG_MAX // 1000, LONG_MAX - 1, LONG_MAX, LONG_MIN, LONG_MIN + 1),
)
DURATIONS = (0, 1, 1000, INT_MAX, 2**31, 2**53, LONG_MAX - START_MS, LONG_MAX - 1, LONG_MAX)
OFFSETS = (0, 0, 0, 7, INT_MAX - 3, 2**31, 2**53, LONG_MAX - 40)
COUNTS = (0, 1, -1, INT_MAX, 2**53, LONG_MAX - 1, LONG_MAX)


def targets() -> list[Target]:
    """One target for each system."""
    makers = {"kafka": kafka_input, "rocketmq": rocketmq_input, "pulsar": pulsar_input}
    return [
        Target(
            f"meaning {system}",
            lambda rng: (rng.randbytes(8), None),
            lambda data, _, rng, draw=draw: check(data, draw),  # type: ignore[misc]
            share=0.004,
        )
        for system, draw in makers.items()
    ]


Step = Callable[[], None]
Draw = Callable[[random.Random, Path], Sequence[Step]]


def check(data: bytes, draw: Draw, most: int = 2) -> str:
    """Make the files for the seed ``data``, and run at most ``most`` commands on them."""
    rng = random.Random(data)
    folder = Path(tempfile.mkdtemp(prefix="lastwrite-fuzz-", dir=SCRATCH))
    try:
        steps = draw(rng, folder)
        for step in rng.sample(steps, min(most, len(steps))):
            step()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return "read"


# ---------------------------------------------------------------------- commands


def typed(*arguments: str) -> Step:
    """Run a command line, with text and with JSON output."""

    def step() -> None:
        for more in ((), ("--json",)):
            status, out, said = ran([*arguments, *more])
            what = f"{' '.join(arguments)} {more}: {status}\n{said}"
            assert "lastwrite: unexpected " not in said, what
            assert status in (0, 1, 2, 3, 5), what
            if more:
                for line in out.splitlines() if arguments[0] in ("dump", "read") else [out]:
                    if line.strip():
                        check_numbers(json.loads(line), what)

    return step


def ran(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a command in this process."""
    said = io.StringIO()
    sys.stdout.flush()
    real = os.dup(1)
    os.environ["LASTWRITE_DEBUG"] = "1"
    with tempfile.TemporaryFile(dir=SCRATCH) as file:
        os.dup2(file.fileno(), 1)
        try:
            with contextlib.redirect_stderr(said):
                status = run(list(arguments))
        finally:
            sys.stdout.flush()
            os.dup2(real, 1)
            os.close(real)
            del os.environ["LASTWRITE_DEBUG"]
        file.seek(0)
        return status, file.read().decode(), said.getvalue()


def check_numbers(value: object, where: str) -> None:
    """Check that all integers of a report fit in a long."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name != "event_time":  # unsigned in Pulsar
                check_numbers(each, f"{where}: {name}")
    elif isinstance(value, list):
        for each in value:
            check_numbers(each, where)
    elif isinstance(value, int):
        assert LONG_MIN <= value <= LONG_MAX, f"{where}: {value}"


def called(what: str, call: Callable[[], object]) -> Step:
    """Call a function of the package.

    It must return a report that can be printed, or raise a LogError.
    """

    def step() -> None:
        try:
            report = call()
        except LogError:
            return
        to_dict = getattr(report, "to_dict", None)
        if to_dict is not None:
            check_numbers(json.loads(json.dumps(to_dict())), what)

    return step


def rounds(path: Path, config: dict[str, str], now_ms: int, **options: Any) -> Step:
    """Compact to a copy and verify it, then compact in place and read the result."""

    allowed = {name: value for name, value in options.items() if name == "drop_keyless"}

    def step() -> None:
        copy = path.with_name(f"{path.name}-copy")
        try:
            done = lastwrite.compact(
                str(path),
                to=str(copy),
                config=config,
                now_ms=now_ms,
                memory=MEMORY,
                spark=INLINE,
                **options,
            )
        except LogError:
            return
        check_numbers(json.loads(json.dumps(done.to_dict())), "compact")
        if done.exit_status == 0 and copy.exists():
            proof = lastwrite.verify(
                str(copy), before=str(path), config=config, now_ms=now_ms, spark=INLINE, **allowed
            )
            check_numbers(json.loads(json.dumps(proof.to_dict())), "verify")
            assert proof.exit_status != 5, proof.to_dict()
        called(
            "compact in place",
            lambda: lastwrite.compact(
                str(path),
                config=config,
                now_ms=now_ms,
                memory=MEMORY,
                spark=INLINE,
                drop_expired_deletes=True,
                **options,
            ),
        )()

    return step


def rows(path: Path, topic: str, folder: Path) -> list[Step]:
    """Read the last writes in memory, and write them to tables."""
    made = [
        called("latest", lambda: len(lastwrite.latest(str(path), topic))),
        called("table", lambda: lastwrite.table(str(path), topic).to_arrow().num_rows),
    ]
    return made + [
        called(
            f"table as {kind}",
            lambda kind=kind: lastwrite.table_to(  # type: ignore[misc]
                str(path), topic, to=str(folder / kind), format=kind
            ),
        )
        for kind in ("parquet", "iceberg", "delta")
    ]


def looks(path: Path, topic: str, key: str, config: dict[str, str], now_ms: int) -> list[Step]:
    """The commands that change nothing and work for all systems."""
    where = str(path)
    now = ("--now", str(now_ms))
    settings = [part for pair in config.items() for part in ("--config", "=".join(pair))]
    memory = ("--memory", MEMORY)
    return [
        typed("inspect", where, *now, *settings),
        typed("explain", where, *now, *settings, *memory),
        typed("explain", where, "--key", key, *now, *settings, *memory),
        typed("plan", where, *now, *settings, *memory, "--include-active"),
        typed("verify", where, *settings, *memory),
        typed("settings", where, *settings),
        typed("dump", where, "--limit", "50"),
        typed("dump", where, "--batches", "--limit", "50"),
        typed("dump", where, "--index", "--limit", "50"),
        typed("dump", where, "--topic", topic, "--last", "3"),
        typed("dump", where, "--topic", topic, "--time", str(max(now_ms, 0))),
        typed("dump", where, "--topic", topic, "--key", key),
        typed("read", where, "--topic", topic, "--limit", "50"),
        typed("read", where, "--topic", topic, "--time", str(max(now_ms, 0)), "--limit", "5"),
    ]


# ---------------------------------------------------------------------- Kafka


def kafka_input(rng: random.Random, folder: Path) -> list[Step]:
    root = folder / "root"
    end, checkpoints = kafka_log(rng, root / "t-0")
    kafka_groups(rng, root / "__consumer_offsets-0", end)
    for name in (
        "replication-offset",
        "log-start-offset",
        "cleaner-offset",
        "recovery-point-offset",
    ):
        if rng.random() < 0.4:
            value = rng.choice([0, *checkpoints, end, end + 1, LONG_MAX])
            write_checkpoint(root, f"{name}-checkpoint", {"t-0": value})
    (root / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    longest = rng.choice(DURATIONS[1:])
    config = {
        "cleanup.policy": rng.choice(["compact", "compact", "compact,delete"]),
        "delete.retention.ms": str(rng.choice(DURATIONS)),
        "min.cleanable.dirty.ratio": "0",
        "max.compaction.lag.ms": str(longest),
        "min.compaction.lag.ms": str(rng.choice([0, 0, 1, longest])),
        "retention.ms": str(rng.choice([-1, *DURATIONS])),
        "retention.bytes": str(rng.choice([-1, *DURATIONS])),
        "segment.ms": str(rng.choice(DURATIONS[1:])),
        "segment.jitter.ms": str(rng.choice(DURATIONS)),
        "file.delete.delay.ms": str(rng.choice(DURATIONS)),
        "segment.bytes": str(rng.choice([14, 1000, INT_MAX])),
        "segment.index.bytes": str(rng.choice([4, INT_MAX])),
        "index.interval.bytes": str(rng.choice([0, 1, INT_MAX])),
        "producer.id.expiration.ms": str(rng.choice([1, INT_MAX])),
    }
    if rng.random() < 0.4:
        config["hold.tombstones.for.groups"] = "g,unknown"
        config["hold.tombstones.max.ms"] = str(rng.choice([-1, *DURATIONS]))
    now_ms = rng.choice([START_MS, START_MS, 0, 1, YEAR_9999_MS + 1, LONG_MAX - 1, LONG_MAX])
    steps = looks(root, "t", "k1", config, now_ms)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    steps += [typed("dump", str(rng.choice(files))), typed("inspect", str(rng.choice(files)))]
    steps += [typed("groups", str(root)), typed("dump", str(root), "--decode", "--limit", "50")]
    steps += [
        typed(
            *("read", str(root), "--topic", "t", "--isolation-level", "read_committed"),
            *("--offset", str(rng.choice([0, end, LONG_MAX]))),
        )
    ]
    steps += rows(root, "t", folder)
    steps += 4 * [rounds(root, config, now_ms, drop_keyless=True, topic="t")]
    steps += [_kafka_archive(root, folder, config, now_ms)]
    return steps


def _kafka_archive(root: Path, folder: Path, config: dict[str, str], now_ms: int) -> Step:
    def step() -> None:
        archive, back = str(folder / "archive"), str(folder / "back")
        typed("fetch", str(root), "--to", archive, "--topic", "t", "--include-active")()
        if not Path(archive).exists():
            return
        for each in rng_of(config).sample(looks(Path(archive), "t", "k1", config, now_ms), 2):
            each()
        Path(back).mkdir()
        typed("restore", archive, "--to", back, "--memory", MEMORY)()

    return step


def rng_of(config: dict[str, str]) -> random.Random:
    return random.Random(repr(config))


def kafka_log(rng: random.Random, folder: Path) -> tuple[int, list[int]]:
    """Write a partition. Returns its log end offset and the base offsets of its segments."""
    offset = rng.choice(OFFSETS)
    bases = []
    producer = rng.choice([0, 1, 2**53, LONG_MAX])
    epoch = rng.choice([0, 1, 32767])
    for _ in range(rng.randrange(1, 4)):
        base, batches = offset, []
        for _ in range(rng.randrange(1, 4)):
            if offset > LONG_MAX - 10:
                break
            made, offset = kafka_batch(rng, offset, producer, epoch)
            batches.append(made)
            if offset < 2**60 and rng.random() < 0.1:
                offset += rng.choice([1, 1000, INT_MAX - 100])
        if not batches or batches and offset - base > INT_MAX:
            batches, offset = batches[:1], base + 1 if not batches else offset
        bases.append(base)
        modified = rng.choice([START_MS, START_MS, 0, 1, INT_MAX * 1000, YEAR_9999_MS])
        try:
            write_segment(folder, base, batches, rng.choice([0, 4096]), mtime_ms=modified)
        except OverflowError:  # no broker would write such an index
            continue
    write_side_files(rng, folder, bases, offset, producer, epoch)
    return offset, bases


def kafka_batch(rng: random.Random, offset: int, producer: int, epoch: int) -> tuple[bytes, int]:
    leader_epoch = rng.choice([-1, 0, 0, INT_MAX])
    if rng.random() < 0.15:
        kind = rng.choice([ControlType.ABORT, ControlType.COMMIT])
        marker = encode_control_record(offset, rng.choice(TIMES), kind)
        found = encode_batch(
            [marker],
            leader_epoch=leader_epoch,
            producer_id=producer,
            producer_epoch=epoch,
            transactional=True,
            control=True,
            delete_horizon_ms=rng.choice([None, None, *TIMES]),
        )
        return found, offset + 1
    records = []
    for _ in range(rng.randrange(1, 4)):
        key = rng.choice([b"k1", b"k2", b"k1", None, b""])
        value = rng.choice([b"v", None, b"", b'{"a":1}'])
        headers = ((b"h", rng.choice([None, b"", (LONG_MAX).to_bytes(8, "big")])),)
        records.append(
            Record(offset, rng.choice(TIMES), key, value, headers if rng.random() < 0.2 else ())
        )
        offset += 1
    has_producer = rng.random() < 0.3
    found = encode_batch(
        records,
        codec=rng.choice([Codec.NONE, Codec.NONE, *Codec]),
        append_time=rng.random() < 0.15,
        transactional=has_producer and rng.random() < 0.5,
        delete_horizon_ms=rng.choice([None, None, None, *TIMES]),
        leader_epoch=leader_epoch,
        producer_id=producer if has_producer else -1,
        producer_epoch=epoch if has_producer else -1,
        base_sequence=rng.choice([0, INT_MAX]) if has_producer else -1,
        max_timestamp_ms=rng.choice([None, None, *TIMES]),
    )
    return found, offset


def write_side_files(
    rng: random.Random, folder: Path, bases: list[int], end: int, producer: int, epoch: int
) -> None:
    if rng.random() < 0.4:
        known = ProducerEntry(
            producer_id=producer,
            producer_epoch=epoch,
            last_sequence=rng.choice([-1, 0, INT_MAX]),
            last_offset=rng.choice([-1, *bases, end - 1, LONG_MAX]),
            offset_delta=rng.choice([0, 1, INT_MAX]),
            timestamp_ms=rng.choice(TIMES),
            coordinator_epoch=rng.choice([-1, 0, INT_MAX]),
            current_txn_first_offset=rng.choice([-1, *bases, LONG_MAX]),
        )
        for offset in {end, rng.choice(bases)}:
            (folder / f"{offset:020d}.snapshot").write_bytes(encode_snapshot([known]))
    if rng.random() < 0.4:
        epochs = [LeaderEpoch(0, 0), LeaderEpoch(rng.choice([1, INT_MAX]), max(bases[0], 1))]
        (folder / "leader-epoch-checkpoint").write_bytes(encode_leader_epochs(epochs))


def kafka_groups(rng: random.Random, folder: Path, end: int) -> None:
    """Write the internal topic with committed offsets at the limits."""
    records = []
    for n, group in enumerate(["g", "h", "g", "i"]):
        name = TopicPartition("t", rng.choice([0, 0, 0, 1, INT_MAX]))
        commit = Commit(
            rng.choice([0, end, end + 1, -1, *COUNTS]),
            rng.choice([-1, 0, INT_MAX]),
            "",
            rng.choice(TIMES),
        )
        value = None if rng.random() < 0.1 else value_of(commit)
        records.append(Record(n, rng.choice(TIMES), key_of(GroupPartition.of(group, name)), value))
    write_segment(folder, 0, [encode_batch(records, leader_epoch=0)], mtime_ms=START_MS)


# ---------------------------------------------------------------------- RocketMQ


def rocketmq_input(rng: random.Random, folder: Path) -> list[Step]:
    store = folder / "store"
    if rng.random() < 0.5:
        rocketmq_compacted(rng, store)
        topic = TOPIC
    else:
        topic = "t"
        rocketmq_log(rng, store, topic)
    longest = rng.choice(DURATIONS[1:])
    config = {
        "delete.retention.ms": str(rng.choice(DURATIONS)),
        "min.cleanable.dirty.ratio": "0",
        "max.compaction.lag.ms": str(longest),
        "min.compaction.lag.ms": str(rng.choice([0, 0, 1, longest])),
        "keyless.messages": rng.choice(["drop", "keep"]),
    }
    now_ms = rng.choice([START_MS, START_MS, 0, 1, YEAR_9999_MS + 1, LONG_MAX])
    steps = looks(store, topic, "k1", config, now_ms)
    files = sorted(path for path in store.rglob("*") if path.is_file())
    steps += [typed("dump", str(rng.choice(files))), typed("inspect", str(rng.choice(files)))]
    steps += [
        typed("dump", str(store), "--topic", topic, "--offset", str(rng.choice([0, 1, LONG_MAX]))),
        typed("dump", str(store), "--commit-log-offset", str(rng.choice([0, 1, LONG_MAX]))),
        typed("dump", str(store), "--compacted"),
        typed("groups", str(store)),
        typed("cut", str(store), "--at", str(rng.choice([0, 1, 277, LONG_MAX])), "--dry-run"),
        called("dispatch", lambda: lastwrite.dispatch(str(store), whole_log=True, spark=INLINE)),
    ]
    steps += rows(store, topic, folder)
    steps += 4 * [rounds(store, config, now_ms)]
    steps += [typed("fetch", str(store), "--to", str(folder / "archive"), "--include-active")]
    return steps


def rocketmq_compacted(rng: random.Random, store: Path) -> None:
    """Write a store with one queue's compaction log."""
    offset = rng.choice(OFFSETS)
    queue = ModelQueue(4000, 46 * 20, position=rng.choice([-1, -1, offset, LONG_MAX]))
    for n in range(rng.randrange(1, 4)):
        made = []
        for _ in range(rng.randrange(1, 4)):
            body = rng.choice([b"", b"v", b'{"a":1}'])
            made.append(message(offset, rng.choice(["k1", "k2"]), body, rng.choice(TIMES[:-2])))
            offset += rng.choice([1, 1, 5])
        queue.pairs.append(ModelPair(4000 * n, tuple(made), is_closed=True))
    queue.pairs.append(ModelPair(queue.pairs[-1].start + 4000))
    write_store(store, [queue])


def rocketmq_log(rng: random.Random, store: Path, topic: str) -> None:
    """Write a store with commit log, queues, indexes and compaction log."""
    writer = StoreWriter(store)
    for _ in range(rng.randrange(1, 12)):
        is_prepared = rng.random() < 0.1
        writer.send(
            topic,
            rng.choice([b"", b"v", b'{"a":1}']),
            {KEYS: rng.choice(["k1", "k2"]), **rng.choice(ODD_PROPERTIES)},
            born_time_ms=rng.choice(TIMES),
            store_time_ms=rng.choice([START_MS, START_MS, *TIMES]),
            reconsume_times=rng.choice([0, 0, -1, 16, INT_MAX]),
            prepared_offset=rng.choice([0, 0, -1, LONG_MAX]),
            flag=rng.choice([0, 0, -1, INT_MAX]),
            sys_flag=rocketmq_record.TRANSACTION_PREPARED if is_prepared else 0,
        )
    with contextlib.suppress(Exception):  # no broker could write such an index
        writer.write()
    if rng.random() < 0.5:
        writer.write_compaction(topic, 0, rng.choice([None, 0, LONG_MAX]))
    positions = {f"{topic}@g": {0: rng.choice(COUNTS)}, f"{topic}@h": {INT_MAX: LONG_MAX}}
    config = store / "config"
    config.mkdir(exist_ok=True)
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": positions}))


ODD_PROPERTIES: tuple[dict[str, str], ...] = (
    {},
    {},
    {"DELAY": "99999999999"},
    {"TIMER_DELIVER_MS": str(LONG_MAX)},
    {"TIMER_OUT_MS": "-1", "TIMER_DELAY_SEC": str(LONG_MAX)},
    {"CONSUME_START_TIME": str(LONG_MAX)},
    {"INNER_NUM": str(INT_MAX), "INNER_BASE": str(LONG_MAX)},
    {"PGROUP": "g", "TRAN_MSG": "true", "CHECK_IMMUNITY_TIME_IN_SECONDS": str(LONG_MAX)},
)


# ---------------------------------------------------------------------- Pulsar


def pulsar_input(rng: random.Random, folder: Path) -> list[Step]:
    archive = folder / "archive"
    topic = topic_folder(archive, "persistent://public/default/t")
    ledger = rng.choice([0, 1, 10, INT_MAX - 5, INT_MAX])
    for _ in range(rng.randrange(1, 4)):
        write_ledger(topic, ledger, [pulsar_entry(rng) for _ in range(rng.randrange(1, 5))])
        ledger += 1
    if rng.random() < 0.4:
        called("compact", lambda: lastwrite.compact(str(archive), memory=MEMORY, spark=INLINE))()
        write_ledger(topic, ledger, [pulsar_entry(rng)])
    config = {
        "topicCompactionRetainNullKey": rng.choice(["true", "false"]),
        "compactionThreshold": str(rng.choice(DURATIONS)),
        "retentionTimeInMinutes": str(rng.choice([-1, 0, 1, INT_MAX])),
        "retentionSizeInMB": str(rng.choice([-1, 0, 1, LONG_MAX >> 20])),
    }
    if rng.random() < 0.4:
        config["compactionServiceFactoryClassName"] = (
            "org.apache.pulsar.compaction.EventTimeCompactionServiceFactory"
        )
    now_ms = rng.choice([START_MS, START_MS, 0, 1, YEAR_9999_MS + 1, LONG_MAX])
    steps = looks(archive, "t", "k1", config, now_ms)
    files = sorted(path for path in archive.rglob("*") if path.is_file())
    steps += [typed("dump", str(rng.choice(files))), typed("inspect", str(rng.choice(files)))]
    start = f"{rng.choice([0, INT_MAX, LONG_MAX])}:{rng.choice([0, LONG_MAX])}"
    steps += [
        typed("dump", str(archive), "--compacted"),
        typed("dump", str(archive), "--from", start),
        typed("read", str(archive), "--topic", "t", "--read-compacted"),
    ]
    steps += rows(archive, "t", folder)
    steps += 4 * [rounds(archive, config, now_ms)]
    return steps


def pulsar_entry(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        keys = [rng.choice(["k1", "k2", None]) for _ in range(rng.randrange(1, 4))]
        return pulsar_batch(
            [(key, rng.choice(["v", None])) for key in keys], rng.choice([0, INT_MAX])
        )
    unsigned = [each for each in TIMES if each >= 0]
    made = single(
        rng.choice(["k1", "k2", None]),
        rng.choice(["v", "", None, '{"a":1}']),
        0,
        event_time=rng.choice([0, *unsigned, 2**64 - 1]),
        properties=(("p", str(LONG_MAX)),),
    )
    return made
