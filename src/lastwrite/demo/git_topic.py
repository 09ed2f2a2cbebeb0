"""A git history as a topic, with a record per change and a delete per deleted path."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, islice

from lastwrite.demo.demo_topic import WrittenTopic
from lastwrite.demo.git_history import GitHistory, PathChange, open_history
from lastwrite.demo.topic_writer import TopicWriter
from lastwrite.errors import NotALog
from lastwrite.model.log import TopicPartition
from lastwrite.model.progress import Progress

_HEADER = b"commit"

# number of changes that are read before the first is written, to choose the segment size
_SIZED_CHANGES = 100_000
_SEGMENTS = 12  # approximate number of segments, of equal size
_LEAST_SEGMENT_BYTES = 2048
_MOST_SEGMENT_BYTES = 64 << 20
_MOST_BATCH_BYTES = 16_384  # default batch.size of producers
_ADVANCE_CHANGES = 2048
# segment.bytes during compaction, in multiples of the size at which the segments were rolled.
# Compaction groups segments up to segment.bytes, so with a multiple of 1 it would group none.
_MERGED_SEGMENTS = 4
_SQL = """\
SELECT if(contains(key, '/'), split_part(key, '/', 1), '.') AS folder, count(*) AS files,
       date(max(timestamp)) AS last_write, sum(count(*)) OVER () AS of
FROM topic GROUP BY folder ORDER BY files DESC, folder LIMIT 5"""


class GitTopic:
    """A topic from the history of a git repository. ``git ls-tree`` prints its last writes."""

    name = TopicPartition("git-history", 0)
    write_stage = "git to topic"
    compare_stage = "prove by git"
    sql = _SQL

    def __init__(self, repository: str) -> None:
        """Open the git history.

        Raises:
            NotALog: there is no git repository, or it has no commit.
            EnvironmentUnfit: git is missing.
        """
        self.history = open_history(repository)
        self.settings: Mapping[str, object] = {"cleanup.policy": "compact"}

    def write(self, root: str, progress: Progress) -> WrittenTopic:
        topic = write_topic(self.history, root, progress)
        merged_bytes = _MERGED_SEGMENTS * topic.segment_bytes
        self.settings = {**self.settings, "internal.segment.bytes": merged_bytes}
        return topic

    def live_keys(self) -> Mapping[bytes, bytes]:
        return self.history.tree()


def write_topic(history: GitHistory, root: str, progress: Progress) -> WrittenTopic:
    """Write the topic of ``history`` below the log root ``root``.

    The size of the segments depends on the number of changes, so that a small history has several,
    too. The last one is rolled at the end, because a broker does not clean the segment that it
    appends to. At most 100,000 changes and all paths are in memory.

    Raises:
        NotALog: no commit ever changed a path.
        CommitConflict: the topic exists already.
        LogError: git cannot read its own objects.
    """
    progress.stage(f"read {len(history.commits):,} commits", 0)
    changes = history.changes()
    held = list(islice(changes, _SIZED_CHANGES))
    if not held:
        raise NotALog(
            f"none of the {len(history.commits)} commits has a file",
            path=history.repository,
            remedy="commit a file, or name another repository with --repo",
        )
    total_bytes = _estimate_bytes(held, len(history.commits))
    largest = max(_record_bytes(change) for _, change in held)
    segment_bytes = min(
        _MOST_SEGMENT_BYTES, max(_LEAST_SEGMENT_BYTES, 2 * largest, total_bytes // _SEGMENTS)
    )
    batch_bytes = min(_MOST_BATCH_BYTES, segment_bytes // 4)
    progress.stage("write topic", total_bytes)
    paths: set[bytes] = set()
    deletes = 0
    with TopicWriter(
        root, GitTopic.name, segment_bytes=segment_bytes, batch_bytes=batch_bytes
    ) as writer:
        told = 0
        for _, change in chain(held, changes):
            writer.append(
                change.path, change.value, change.committed_ms, [(_HEADER, change.commit)]
            )
            paths.add(change.path)
            deletes += change.value is None
            if writer.end_offset % _ADVANCE_CHANGES == 0:
                progress.advance(writer.log_bytes - told)
                told = writer.log_bytes
        writer.roll()
        progress.advance(writer.log_bytes - told)
    return WrittenTopic(
        writer.folder,
        writer.end_offset,
        deletes,
        len(paths),
        writer.log_bytes,
        writer.segment_count,
        segment_bytes,
    )


def _estimate_bytes(held: list[tuple[int, PathChange]], commits: int) -> int:
    """The size of the topic in bytes. It is estimated if ``held`` has only the first changes."""
    known = sum(_record_bytes(change) for _, change in held)
    if len(held) < _SIZED_CHANGES:
        return known
    return known * commits // (held[-1][0] + 1)


def _record_bytes(change: PathChange) -> int:
    return 24 + len(change.path) + len(change.value or b"") + len(_HEADER) + len(change.commit)
