"""``lastwrite groups``: of a log directory, of serve's state and of an archive."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

import lastwrite
from lastwrite.archive.manifest import encode
from lastwrite.archive.place import MANIFEST, read_seen
from lastwrite.kafka.cluster.commits import Commit, Place
from lastwrite.kafka.store import archived
from lastwrite.kafka.store.archiving import successor
from lastwrite.reports.groups import GroupPosition
from lastwrite.server.offsets import Offsets
from tests.unit.test_dropped_tombstones import CONFIG, NOW_MS
from tests.unit.test_holding import commit, log


def brief(found: list[GroupPosition]) -> list[tuple[object, ...]]:
    return [(each.group, each.topic, each.position, each.end_offset, each.lag) for each in found]


def test_of_a_log_directory(tmp_path: Path) -> None:
    root = log(tmp_path / "root")
    commit(root, {"b": 4, "a": 7})
    commit(root, {"b": 1}, topic="gone")
    found = lastwrite.groups(str(root)).positions
    assert brief(found) == [
        ("a", "t", 7, 6, 0),
        ("b", "gone", 1, None, None),
        ("b", "t", 4, 6, 2),
    ]
    assert {each.committed_ms for each in found} == {NOW_MS}
    assert brief(lastwrite.groups(str(root), group="b", topic="t").positions) == [
        ("b", "t", 4, 6, 2)
    ]


def test_of_a_servers_state_and_what_it_serves(tmp_path: Path) -> None:
    root, state = log(tmp_path / "root"), tmp_path / "state"
    store = Offsets(str(state))  # of a server that runs
    store.commit([(Place("a", "t", 0), Commit(2, 0, "here"))], NOW_MS)
    [alone] = lastwrite.groups(str(state)).positions
    assert (alone.position, alone.lag, alone.metadata) == (2, None, "here")
    assert brief(lastwrite.groups([str(state), str(root)]).positions) == [("a", "t", 2, 6, 4)]
    store.close()


def test_of_an_archive(tmp_path: Path) -> None:
    root, archive = log(tmp_path / "root"), tmp_path / "archive"
    lastwrite.fetch([str(root)], to=str(archive), config=CONFIG, include_active=True)
    folder = str(archive / "kafka" / "t" / "0")
    seen = read_seen(folder).manifest
    after = structs.replace(archived.contents_of(seen, folder), groups=(("a", 3, -1, "x"),))
    Path(folder, MANIFEST).write_bytes(encode(successor(seen, after)))
    [found] = lastwrite.groups(str(archive)).positions
    assert (found.group, found.position, found.lag, found.committed_ms) == ("a", 3, 3, None)
