"""Every command that prints JSON, on the small real corpora, with its output in ``NAME.json``.

    python -m tests.golden --write

writes these files. ``tests/unit/test_golden.py`` compares them with the current output. The
commands run in a folder of copies with fixed file times, and all measured values are 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.cli import run
from lastwrite.spark.inline import INLINE
from tests.support.pulsar.corpus import TOPICS, unpack

HERE = Path(__file__).parent
CORPUS = HERE.parent / "corpus"
NOW_MS = 1_900_000_000_000  # years after all timestamps in the corpora
MODIFIED_S = 1_795_300_000
MEASURED = re.compile(r"(seconds|profile)$|^(time|since|next_try)_ms$|^checksum$")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}


def prepare(root: Path) -> None:
    """Copy the corpora below ``root``, in the state after their broker's end."""
    for name in ("stopped", "cleaned", "crashed"):
        shutil.copytree(CORPUS / "kafka-4.4.0" / name, root / name)
    for name in ("internal-topics", "old-formats"):
        shutil.copytree(CORPUS / name, root / name)
    for name in ("5.5.0", "4.9.3", "5.5.0-ipv6", "5.5.0-compacted"):
        shutil.copytree(CORPUS / "rocketmq" / name, root / f"rocketmq-{name}")
    unpack("bookies", root / "bookies")
    unpack("offloaded", root / "offloaded")
    for topic in TOPICS:
        shutil.copytree(CORPUS / "pulsar" / "topics" / topic, root / "said" / topic)
    for name in ("client-none-0", "empty-0"):
        shutil.copytree(root / "crashed" / name, root / "daemon" / name)
    for broken in (root / "broken-0", root / "daemon" / "broken-0"):
        shutil.copytree(root / "stopped" / "client-none-0", broken)
        log = (broken / f"{0:020}.log").read_bytes()
        (broken / f"{0:020}.log").write_bytes(log[:400] + b"\xff" + log[401:])
    _fix_times(root)


def _fix_times(root: Path) -> None:
    for place in root.rglob("*"):
        os.utime(place, (MODIFIED_S, MODIFIED_S))


Case = Callable[[Path], "tuple[int, list[Any]]"]


def printed(*arguments: str) -> Case:
    """The output of the command line: one document, or one document a line."""

    def case(root: Path) -> tuple[int, list[Any]]:
        with _descriptor_1() as out:
            status = run([*(each.replace("$", f"{root}/") for each in arguments), "--json"])
            text = out.read_text(encoding="utf-8")
        is_lines = arguments[0] in ("dump", "read")
        return status, [json.loads(each) for each in (text.splitlines() if is_lines else [text])]

    return case


def exported(*arguments: str) -> Case:
    """The output of ``dump --to``, without its size: each line written contains the
    random folder.
    """

    def case(root: Path) -> tuple[int, list[Any]]:
        status, (found,) = printed("dump", *arguments, "--format", "json")(root)
        return status, [found | {"bytes": 0}]

    return case


@contextlib.contextmanager
def _descriptor_1() -> Iterator[Path]:
    """Redirect standard output to a file by its descriptor, which the command line uses."""
    sys.stdout.flush()
    real = os.dup(1)
    with tempfile.NamedTemporaryFile() as file:
        os.dup2(file.fileno(), 1)
        try:
            yield Path(file.name)
        finally:
            os.dup2(real, 1)
            os.close(real)


def reported(name: str, *paths: str, **options: Any) -> Case:
    """The report of a function for which the command line starts Spark. Here it runs in this
    process.
    """

    def case(root: Path) -> tuple[int, list[Any]]:
        said: dict[str, Any] = {
            key: value.replace("$", f"{root}/") if isinstance(value, str) else value
            for key, value in options.items()
        }
        where = [path.replace("$", f"{root}/") for path in paths]
        report = getattr(lastwrite, name)(*where, now_ms=NOW_MS, spark=INLINE, **said)
        return report.exit_status, [json.loads(json.dumps(report.to_dict()))]

    return case


def table_of(path: str, topic: str) -> Case:
    """The last writes and their end offsets, which no command prints."""

    def case(root: Path) -> tuple[int, list[Any]]:
        found = lastwrite.latest(path.replace("$", f"{root}/"), topic)
        table = {str(key): repr(value) for key, value in sorted(found.items())}
        return 0, [
            {"table": table, "end_offsets": {str(p): e for p, e in found.end_offsets.items()}}
        ]

    return case


def cleaned(*roots: str, **options: Any) -> Case:
    """The events of the daemon until no partition is due."""

    def case(root: Path) -> tuple[int, list[Any]]:
        events: list[Any] = []
        where = [path.replace("$", f"{root}/") for path in roots]
        status = lastwrite.clean(
            where,
            once=True,
            threads=1,
            spark=INLINE,
            tell=lambda event: events.append(json.loads(json.dumps(event.to_dict()))),
            **options,
        )
        return status, events

    return case


_NOW = ("--now", str(NOW_MS))
_KAFKA = ("--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0")
_FETCH = ("fetch", "$bookies/0", "$bookies/1", "$bookies/2", "--to", "$archive")


def _fetch(topic: str, number: int) -> Case:
    said = f"$said/{topic}/{number}"
    return printed(
        *_FETCH, "--topic", TOPICS[topic],
        "--metadata", f"{said}/managed-ledger", "--cursor", f"{said}/cursor",
    )  # fmt: skip


# The order matters: later cases read the results of earlier ones.
CASES: dict[str, Case] = {
    "kafka-inspect": printed("inspect", "$stopped", *_NOW, *_KAFKA),
    "kafka-inspect-cleaned": printed("inspect", "$cleaned", *_NOW),
    "kafka-inspect-crashed": printed("inspect", "$crashed", *_NOW),
    "kafka-inspect-old": printed("inspect", "$old-formats", *_NOW),
    "kafka-inspect-file": printed("inspect", f"$stopped/client-none-0/{0:020}.log", *_NOW),
    "kafka-inspect-index": printed("inspect", f"$stopped/client-none-0/{0:020}.timeindex", *_NOW),
    "kafka-inspect-damaged": printed("inspect", "$broken-0", *_NOW),
    "kafka-settings": printed(
        "settings", "$stopped", "--topic-config", "keyless:cleanup.policy=compact",
        "--config", "delete.retention.ms=1",
    ),
    "kafka-error": printed("inspect", "$nowhere"),
    "kafka-read": printed("read", "$stopped", "--topic", "client-none", "--limit", "5"),
    "kafka-read-committed": printed(
        "read", "$stopped", "--topic", "transactional", "--isolation-level", "read_committed"
    ),
    "kafka-latest": table_of("$stopped", topic="client-none"),
    "kafka-dump": printed("dump", "$stopped", "--topic", "transactional", "--limit", "20"),
    "kafka-dump-batches": printed("dump", "$stopped", "--batches", "--limit", "20"),
    "kafka-dump-index": printed("dump", "$stopped/client-none-0", "--index", "--limit", "20"),
    "kafka-dump-old": printed("dump", "$old-formats/mixed-0", "--limit", "20"),
    "kafka-dump-decoded": printed("dump", "$internal-topics", "--decode"),
    "kafka-dump-last": printed(
        "dump", "$stopped", "--time", "1700000010000", "--last", "2", "--key", "user-1"
    ),
    "kafka-dump-metadata": printed(
        "dump", "$stopped", "--topic", "__cluster_metadata", "--decode", "--limit", "50"
    ),
    "kafka-dump-snapshot": printed("dump", f"$stopped/transactional-0/{31:020}.snapshot"),
    "kafka-dump-aborted": printed(
        "dump", f"$internal-topics/__consumer_offsets-0/{0:020}.txnindex"
    ),
    "kafka-dump-epochs": printed("dump", "$stopped/client-none-0/leader-epoch-checkpoint"),
    "kafka-dump-offsets": printed("dump", "$stopped/recovery-point-offset-checkpoint"),
    "kafka-dump-topic-id": printed("dump", "$stopped/client-none-0/partition.metadata"),
    "kafka-dump-shutdown": printed("dump", "$stopped/.kafka_cleanshutdown"),
    "kafka-dump-root": printed("dump", "$stopped/meta.properties"),
    "kafka-inspect-snapshot": printed(
        "inspect", f"$stopped/transactional-0/{31:020}.snapshot", *_NOW
    ),
    "kafka-plan": reported("plan", "$stopped", config=COMPACT),
    "kafka-plan-unsaid": reported("plan", "$stopped"),
    "kafka-plan-damaged": reported("plan", "$broken-0", config=COMPACT),
    "kafka-explain": printed("explain", "$stopped", *_NOW, *_KAFKA),
    "kafka-explain-key": printed(
        "explain", "$stopped", "--topic", "client-none", "--key", "user-10", *_NOW, *_KAFKA
    ),
    "kafka-compact": reported("compact", "$stopped", to="$after", config=COMPACT),
    "kafka-compact-retention": reported(
        "compact", "$stopped", to="$retained",
        config={"cleanup.policy": "compact,delete", "retention.ms": "1"},
    ),
    "kafka-verify": reported("verify", "$after"),
    "kafka-verify-before": reported("verify", "$after", before="$stopped"),
    "kafka-verify-broken": reported("verify", "$cleaned", before="$after"),
    "kafka-verify-damaged": reported("verify", "$broken-0"),
    "kafka-clean": cleaned("$daemon", config=COMPACT),
    "kafka-inspect-quarantined": printed("inspect", "$daemon", "--topic", "broken", *_NOW),
    "kafka-release": printed("release", "$daemon"),
    "rocketmq-inspect": printed("inspect", "$rocketmq-5.5.0", *_NOW),
    "rocketmq-inspect-old": printed("inspect", "$rocketmq-4.9.3", *_NOW),
    "rocketmq-inspect-ipv6": printed("inspect", "$rocketmq-5.5.0-ipv6", *_NOW),
    "rocketmq-inspect-compacted": printed("inspect", "$rocketmq-5.5.0-compacted", *_NOW),
    "rocketmq-inspect-file": printed("inspect", "$rocketmq-5.5.0/checkpoint", *_NOW),
    "rocketmq-settings": printed("settings", "$rocketmq-5.5.0"),
    "rocketmq-dump": printed("dump", "$rocketmq-5.5.0", "--limit", "20"),
    "rocketmq-dump-queue": printed(
        "dump", "$rocketmq-5.5.0", "--topic", "btopic", "--limit", "5"
    ),
    "rocketmq-dump-last": printed("dump", "$rocketmq-5.5.0", "--topic", "ctopic", "--last", "2"),
    "rocketmq-dump-index": printed("dump", "$rocketmq-5.5.0", "--index", "--limit", "20"),
    "rocketmq-dump-compacted": printed("dump", "$rocketmq-5.5.0", "--compacted", "--limit", "9"),
    "rocketmq-dump-checkpoint": printed("dump", "$rocketmq-5.5.0/checkpoint"),
    "rocketmq-dump-topics": printed("dump", "$rocketmq-5.5.0/config/topics.json", "--limit", "5"),
    "rocketmq-dump-groups": printed("dump", "$rocketmq-5.5.0/config/consumerOffset.json"),
    "rocketmq-dump-positions": printed(
        "dump", "$rocketmq-5.5.0/compaction/position-checkpoint"
    ),
    "rocketmq-dump-lock": printed("dump", "$rocketmq-5.5.0/lock"),
    "rocketmq-dump-to": exported("$rocketmq-5.5.0", "--topic", "ctopic", "--to", "$exported"),
    "rocketmq-read": printed(
        "read", "$rocketmq-5.5.0", "--topic", "ctopic", "--queue", "1", "--limit", "5"
    ),
    "rocketmq-explain": printed("explain", "$rocketmq-5.5.0", *_NOW),
    "rocketmq-explain-key": printed(
        "explain", "$rocketmq-5.5.0-compacted", "--key", "k5", "--include-active", *_NOW
    ),
    "rocketmq-plan": reported("plan", "$rocketmq-5.5.0"),
    "rocketmq-compact": reported("compact", "$rocketmq-5.5.0", to="$rocketmq-after"),
    "rocketmq-verify": reported("verify", "$rocketmq-after"),
    "rocketmq-verify-before": reported("verify", "$rocketmq-after", before="$rocketmq-5.5.0"),
    "rocketmq-latest": table_of("$rocketmq-after", topic="ctopic"),
    "rocketmq-dispatch": reported("dispatch", "$rocketmq-5.5.0", whole_log=True),
    "rocketmq-dispatch-again": reported("dispatch", "$rocketmq-5.5.0"),
    "rocketmq-cut-planned": printed("cut", "$rocketmq-5.5.0", "--at", "277", "--dry-run"),
    "rocketmq-cut": printed("cut", "$rocketmq-5.5.0", "--at", "277"),
    "rocketmq-cut-undone": printed("cut", "$rocketmq-5.5.0", "--undo"),
    "pulsar-fetch": _fetch("shapes", 1),
    "pulsar-fetch-parts": _fetch("parts-partition-1", 2),
    "pulsar-fetch-offloaded": printed(
        "fetch", "$offloaded", "--to", "$archive",
        "--topic", TOPICS["shapes"], "--metadata", "$said/shapes/2/managed-ledger",
        "--cursor", "$said/shapes/2/cursor",
    ),
    "pulsar-inspect": printed("inspect", "$archive", *_NOW),
    "pulsar-inspect-file": printed("inspect", "$bookies/0/current/0.log", *_NOW),
    "pulsar-settings": printed("settings", "$archive"),
    "pulsar-dump": printed("dump", "$archive", "--limit", "30"),
    "pulsar-dump-batches": printed("dump", "$archive", "--batches", "--limit", "10"),
    "pulsar-dump-compacted": printed("dump", "$archive", "--compacted", "--limit", "10"),
    "pulsar-dump-log": printed("dump", "$bookies/0/current/0.log", "--limit", "10"),
    "pulsar-dump-ledgers": printed(
        "dump", "$archive/public/default/persistent/shapes/managed-ledger"
    ),
    "pulsar-read": printed("read", "$archive", "--topic", "shapes", "--limit", "5"),
    "pulsar-read-compacted": printed(
        "read", "$archive", "--topic", "shapes", "--read-compacted", "--limit", "5"
    ),
    "pulsar-explain": printed("explain", "$archive", *_NOW),
    "pulsar-explain-key": printed(
        "explain", "$archive", "--topic", "shapes", "--key", "k1", *_NOW
    ),
    "pulsar-plan": reported("plan", "$archive"),
    "pulsar-compact": reported("compact", "$archive", to="$archive-after"),
    "pulsar-dump-manifest": printed(
        "dump", "$archive-after/public/default/persistent/shapes/compacted.json"
    ),
    "pulsar-inspect-after": printed("inspect", "$archive-after", *_NOW),
    "pulsar-latest": table_of("$archive-after", topic="parts"),
    "pulsar-verify": reported("verify", "$archive-after"),
    "pulsar-verify-before": reported("verify", "$archive-after", before="$archive"),
}  # fmt: skip


def results(root: Path) -> Iterator[tuple[str, str]]:
    """Run all cases below the empty folder ``root``. Yields each name and the content
    of its file.
    """
    prepare(root)
    for name, case in CASES.items():
        status, documents = case(root)
        _fix_times(root)
        found = {"exit_status": status, "documents": [_steady(each, root) for each in documents]}
        yield name, json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _steady(value: Any, root: Path) -> Any:
    """Replace what differs between runs: the folder's name, and measured values."""
    match value:
        case dict():
            return {
                _steady(name, root): _zero(found) if MEASURED.search(name) else _steady(found, root)
                for name, found in value.items()
            }
        case list():
            return [_steady(each, root) for each in value]
        case str():
            return UUID.sub("UUID", value.replace(str(root), "$"))
        case _:
            return value


def _zero(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _zero(each) for name, each in value.items()}
    return "" if isinstance(value, str) else 0
