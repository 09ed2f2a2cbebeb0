"""The files of a store that a command does not change, with reasons.

Source: RocketMQ 5.5.0 ``StorePathConfigHelper``, ``BrokerPathConfigHelper``.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from lastwrite.reports.untouched import UNKNOWN, UntouchedFile
from lastwrite.rocketmq.format import names
from lastwrite.rocketmq.store import queues
from lastwrite.rocketmq.store.topic_copies import OF_OTHER_QUEUES
from lastwrite.storage.files import list_names

_SETTINGS: Final = "settings without physical or queue offsets"
_COUNTS: Final = "statistics; a broker continues them"
_ROCKSDB: Final = (
    "RocksDB files, which Lastwrite does not change; consume queues, indexes, timers or half "
    "messages in them may refer to later records than the commit log has"
)
_WITHIN: Final = "it has no reference to a removed record"

# Reasons by path below the store.
_ALWAYS: Final = {
    names.LOCK: "locked by Lastwrite during the command",
    names.ABORT: "shows that the broker was killed",
    f"{names.CONFIG}/topics.json": _SETTINGS,
    f"{names.CONFIG}/subscriptionGroup.json": _SETTINGS,
    f"{names.CONFIG}/topicQueueMapping.json": "queue offsets of static topics; check them",
    f"{names.CONFIG}/consumerFilter.json": _SETTINGS,
    f"{names.CONFIG}/messageRequestMode.json": _SETTINGS,
    f"{names.CONFIG}/consumerOrderInfo.json": (
        "messages that consumers received in order with pop and have not acknowledged"
    ),
    f"{names.CONFIG}/timermetrics": _COUNTS,
    f"{names.CONFIG}/transactionMetrics": _COUNTS,
    f"{names.CONFIG}/tieredStoreMetadata.json": (
        "references to tiered storage, which Lastwrite does not change; they may refer to "
        "later records than the commit log has"
    ),
    "rocksdbstore": _ROCKSDB,
    "consumequeue_rocksdb": _ROCKSDB,
    f"{names.CONFIG}/rdb": _ROCKSDB,
    "epochFileCheckpoint": (
        "replication epochs, which may refer to offsets after the log's end; if the broker's "
        "master has more records, let the broker join as a slave with an empty store"
    ),
    "dledger": "a DLedger commit log, which Lastwrite does not change",
}
_POSITIONS: Final = tuple(
    f"{names.CONFIG}/{name}"
    for name in (
        names.CONSUMER_OFFSETS,
        names.LIGHT_OFFSETS,
        names.DELAY_OFFSETS,
        names.TIMER_CHECKPOINT,
    )
)
_TREES: Final = (names.CONSUME_QUEUES, names.BATCH_CONSUME_QUEUES, names.INDEX, names.COMPACTION)
_TIMER: Final = (names.TIMER_LOG, names.TIMER_WHEEL)
BY_CUT: Final = {
    **dict.fromkeys((*_TREES, *_TIMER, names.CHECKPOINT, *_POSITIONS), _WITHIN),
    names.CONSUME_QUEUE_EXTENSIONS: (
        "the broker's next start truncates it to the end of the consume queues"
    ),
}
BY_DISPATCH: Final = {
    names.COMMIT_LOG: "dispatch only reads the commit log",
    **dict.fromkeys(_TREES, "it already has every record"),
    names.CONSUME_QUEUE_EXTENSIONS: (
        "dispatch adds no extension units; consume queue units contain the tags code"
    ),
    **dict.fromkeys(_TIMER, "the broker's timer fills it from its consume queue"),
    names.CHECKPOINT: "a broker rewrites it",
    **dict.fromkeys(_POSITIONS, "offsets, which dispatch does not change"),
}
BY_ROUND: Final = {
    **dict.fromkeys(
        (names.COMMIT_LOG, *_TREES, *_TIMER, names.CHECKPOINT, names.CONSUME_QUEUE_EXTENSIONS),
        "it has no address of a compaction log",
    ),
    **dict.fromkeys(_POSITIONS, "offsets, which compaction does not change"),
}
_BY_COPY: Final = {
    **dict.fromkeys(
        (names.COMMIT_LOG, *_TREES, *_TIMER, names.CHECKPOINT, names.CONSUME_QUEUE_EXTENSIONS),
        "the copy has only compaction logs and settings",
    ),
    **dict.fromkeys(
        (f"{names.CONFIG}/{name}" for name in OF_OTHER_QUEUES),
        "offsets and counts of queues that the copy does not have; with this file a broker on "
        "the copy would skip delayed messages",
    ),
}


def untouched_by_round(folders: Iterable[str], to: str | None) -> list[UntouchedFile]:
    """The files that compaction does not change, or that it does not copy to ``to`` if given.

    Raises:
        LogError: a folder cannot be listed.
    """
    found = []
    for root in sorted({queues.root_of(folder) for folder in folders}):
        if to is None:
            found += list_untouched(root, {names.COMPACTION}, BY_ROUND)
            continue
        copied = {f"{names.CONFIG}/{name}" for name in list_names(os.path.join(to, names.CONFIG))}
        found += list_untouched(root, {names.COMPACTION, names.LOCK, *copied}, _BY_COPY)
    return found


def list_untouched(
    root: str, changed: Collection[str], reasons: Mapping[str, str]
) -> list[UntouchedFile]:
    """The files and folders of the store, and the files in ``config``, that are not ``changed``.

    ``changed`` has paths below the store; ``reasons`` has the reason by path.

    Raises:
        LogError: a folder cannot be listed.
    """
    known = {**_ALWAYS, **reasons}
    found = []
    for folder in ("", names.CONFIG):
        for name in list_names(os.path.join(root, folder)):
            path = os.path.join(folder, name)
            if path == names.CONFIG or path in changed:
                continue
            found.append(UntouchedFile(os.path.join(root, path), _reason(path, known)))
    return found


def _reason(path: str, known: Mapping[str, str]) -> str:
    """The reason for a path, a backup ``NAME.bak``, or a snapshot ``NAME.312``."""
    if os.path.basename(path).startswith("lastwrite-"):
        return "written by Lastwrite"
    stem = path
    while stem not in known and "." in os.path.basename(stem):
        stem = stem.rpartition(".")[0]
    is_flag = stem in (names.ABORT, names.LOCK)  # a file whose existence is its only content
    return UNKNOWN if is_flag and stem != path else known.get(stem, UNKNOWN)
