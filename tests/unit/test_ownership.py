"""Tests that new files have the owner of the old files from their creation.

Otherwise nothing is written.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest

import lastwrite
from lastwrite.errors import LogError
from lastwrite.kafka.store import lock
from lastwrite.kafka.store.staging import StagedSegment
from lastwrite.reports.compaction import CompactionReport, Status
from lastwrite.spark.inline import INLINE
from lastwrite.storage import files, ownership
from lastwrite.storage.files import FaultPoints
from tests.support.foreign import (
    ACCESS_LIST,
    GROUP,
    OWNER,
    STRANGER,
    access_list,
    as_user,
    compact,
    give_all,
    needs_root,
    owned,
    owners,
    write_root,
)
from tests.support.foreign import place as place
from tests.support.kafka.crashing import run_until
from tests.support.pulsar.topics import put_ledger, topic_folder
from tests.unit.test_pulsar_cleaner import entries

ROCKETMQ = Path(__file__).resolve().parents[1] / "corpus" / "rocketmq" / "5.5.0"


def dress(root: Path) -> None:
    """Give each file of the partition different permissions and attributes."""
    for n, path in enumerate(sorted((root / "t-0").iterdir())):
        path.chmod((0o600, 0o640, 0o644)[n % 3])
        os.setxattr(path, "user.number", b"%d" % n)
        if n % 2:
            os.setxattr(path, ACCESS_LIST, access_list(n & 4, 0))


@needs_root
def test_round_keeps_owner_and_mode_of_each_file(place: Path) -> None:
    root = write_root(place / "data")
    dress(root)
    before = owners(root)
    with (
        patch("lastwrite.scan_cache.cache.LEAST_SEGMENT_BYTES", 1),
        patch("lastwrite.scan_cache.cache._LEAST_FILLED", 0),
    ):
        [report] = compact(root, keep_scans=True).partitions
    assert report.status is Status.CLEANED and report.bytes_after < report.bytes_before
    after = owners(root)
    assert {name: after[name] for name in before} == before
    new = after.keys() - before.keys()
    assert {".lock", "cleaner-offset-checkpoint", "t-0/lastwrite.secret"} <= new
    assert {after[name][:2] for name in new} == {(OWNER, GROUP)}
    assert after["cleaner-offset-checkpoint"].mode == after["meta.properties"].mode == 0o640
    assert after["t-0/lastwrite.secret"].mode == 0o600


@needs_root
def test_joined_segment_keeps_owner_and_mode(place: Path) -> None:
    root = write_root(place / "data")
    dress(root)
    before = owners(root)
    with (
        patch("lastwrite.engine.pieces._PIECE_BYTES", 200),
        patch("lastwrite.engine.shares._LEAST_PART_BYTES", 1),
        patch("lastwrite.spark.work.InlineRunner.workers", 4, create=True),
        patch.object(StagedSegment, "continued", side_effect=StagedSegment.continued) as joined,
    ):
        compact(root)
    assert joined.called
    assert {name: owners(root)[name] for name in before} == before


@needs_root
def test_kill_at_any_point_leaves_no_file_of_root(place: Path) -> None:
    """A recovery, by the broker or by us, takes over any file that it finds."""
    source = write_root(place / "source")
    for point in range(1, 200):
        root = place / "data"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(source, root)
        give_all(root)
        if not run_until(point, lambda root=root: compact(root)):
            break
        assert {each[:2] for each in owners(root).values()} == {(OWNER, GROUP)}, point
        if point % 5 == 0:
            assert not as_user(OWNER, GROUP, lambda root=root: _cleaned(compact(root))), point
    assert point > 30


def _cleaned(report: CompactionReport) -> None:
    statuses = {each.status for each in report.partitions}
    assert statuses <= {Status.CLEANED, Status.UNCHANGED, Status.SKIPPED}, report.partitions[
        0
    ].reason


class _Watch(FaultPoints):
    """Checks at each operation whether others can read what they could not read before."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.is_armed = True
        self.root = root
        self.wide: list[str] = []

    def reach(self, operation: str, path: str) -> None:
        self.wide += [
            f"{operation}: {name}"
            for name, each in owners(self.root).items()
            if each.mode & 0o077
            and (self.root / name).is_file()
            and (self.root / name).name[:8].isdigit()
        ]


@needs_root
@pytest.mark.parametrize("to", [False, True])
def test_new_file_is_never_readable_by_more_users_than_the_old_one(
    place: Path, to: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_root(place / "data")
    for path in (root / "t-0").iterdir():
        path.chmod(0o600)
    watch = _Watch(place)
    monkeypatch.setattr(files, "faults", watch)
    compact(root, **({"to": str(place / "copy")} if to else {}))
    assert not watch.wide


@needs_root
def test_copy_has_the_owner_of_the_source(place: Path) -> None:
    root, copy = write_root(place / "data"), place / "copy"
    dress(root)
    before = owners(root)
    compact(root, to=str(copy))
    after = owners(copy)
    assert {name: each for name, each in after.items() if name in before} == {
        name: each for name, each in before.items() if name in after
    }
    assert {each[:2] for each in after.values()} == {(OWNER, GROUP)}


@needs_root
def test_copy_by_another_user_belongs_to_the_caller_with_the_same_modes(place: Path) -> None:
    root = write_root(place / "data")
    give_all(root, 0o644, 0o755)
    (root / "t-0" / f"{0:020d}.log").chmod(0o664)
    (place / "his").mkdir()
    os.chown(place / "his", STRANGER, STRANGER)
    assert not as_user(
        STRANGER, STRANGER, lambda: _cleaned(compact(root, to=str(place / "his" / "copy")))
    )
    after = owners(place / "his" / "copy")
    assert {each[:2] for each in after.values()} == {(STRANGER, STRANGER)}
    assert after[f"t-0/{0:020d}.log"].mode == 0o664


@needs_root
def test_caller_without_the_right_to_chown_is_refused_before_any_write(place: Path) -> None:
    root = write_root(place / "data")
    give_all(root, 0o664, 0o2775)
    before = owners(root)

    def refused() -> None:
        with pytest.raises(
            LogError, match="cannot give files to another user.*sudo -u #61234"
        ) as told:
            compact(root)
        assert told.value.exit_status == 1 and told.value.path == str(root / "t-0")

    assert not as_user(STRANGER, GROUP, refused)
    assert owners(root) == before


@needs_root
def test_segment_of_another_user_fails_only_its_partition(place: Path) -> None:
    root = write_root(place / "data", "a-0", "b-0")
    os.chown(root / "b-0" / f"{0:020d}.log", STRANGER, GROUP)

    def work() -> None:
        a, b = compact(root).partitions
        assert (a.status, b.status) == (Status.CLEANED, Status.FAILED)
        assert b.reason is not None and f"b-0/{0:020d}.log: the file belongs to" in b.reason

    assert not as_user(OWNER, GROUP, work)


@needs_root
def test_owner_of_the_root_folder_is_ignored(place: Path) -> None:
    """``/data`` belongs to root and admits the broker by its group. Its files still belong to the
    broker.
    """
    root = write_root(place / "data")
    os.chown(root, 0, GROUP)
    root.chmod(0o770)
    compact(root)
    assert {owned(root / name)[:2] for name in (".lock", "cleaner-offset-checkpoint")} == {
        (OWNER, GROUP)
    }
    shutil.rmtree(root)
    write_root(place / "data")
    os.chown(root, 0, GROUP)
    root.chmod(0o770)
    assert not as_user(OWNER, GROUP, lambda: _cleaned(compact(root)))


@needs_root
def test_lock_file_of_an_earlier_release_gets_the_brokers_owner(place: Path) -> None:
    root = write_root(place / "data")
    (root / ".lock").touch(0o644)
    compact(root)
    assert owned(root / ".lock")[:3] == (OWNER, GROUP, 0o640)
    os.chown(root / ".lock", STRANGER, STRANGER)
    compact(root)
    assert owned(root / ".lock").uid == STRANGER, "somebody else's is his"


@needs_root
def test_lock_file_has_the_brokers_owner_from_its_creation(place: Path) -> None:
    """A starting broker can open the file at any moment."""
    root = write_root(place / "data")
    seen = []
    link = os.link

    def watched(source: str, target: str) -> None:
        seen.append(owned(Path(source)))
        link(source, target)

    with patch.object(os, "link", watched), lock.hold(str(root), []):
        pass
    assert [each[:3] for each in seen] == [(OWNER, GROUP, 0o640)]
    assert sorted(path.name for path in root.iterdir()) == [".lock", "meta.properties", "t-0"]


@needs_root
def test_default_acl_of_the_folder_does_not_change_a_rewritten_file(place: Path) -> None:
    root = write_root(place / "data")
    os.setxattr(root / "t-0", "system.posix_acl_default", access_list(4, 4))
    before = owners(root)
    compact(root)
    assert {name: owners(root)[name] for name in before} == before


@needs_root
def test_symbolic_link_in_place_of_a_new_file_is_not_followed(place: Path) -> None:
    secret = place / "secret"
    secret.write_bytes(b"root's own")
    target = place / "t.tmp"
    target.symlink_to(secret)
    files.write(str(target), b"new", like=ownership.Ownership(OWNER, GROUP, 0o644))
    assert owned(secret).uid == 0 and secret.read_bytes() == b"root's own"
    assert not target.is_symlink() and owned(target)[:3] == (OWNER, GROUP, 0o644)


@needs_root
def test_files_of_a_store_keep_their_owner(place: Path) -> None:
    root = Path(shutil.copytree(ROCKETMQ, place / "store"))
    give_all(root)
    (root / "compaction" / "position-checkpoint").chmod(0o600)
    for n, path in enumerate(sorted(root.rglob("compaction*/*/*/0*"))):
        path.chmod((0o600, 0o644)[n % 2])
    before = owners(root)
    report = lastwrite.compact(str(root), spark=INLINE)
    assert {each.status for each in report.partitions} == {Status.CLEANED}
    after = owners(root)
    assert {name: after[name] for name in before if name in after} == {
        name: before[name] for name in before if name in after
    }
    assert {each[:2] for each in after.values()} == {(OWNER, GROUP)}


@needs_root
def test_copy_of_a_store_has_its_owner(place: Path) -> None:
    root = Path(shutil.copytree(ROCKETMQ, place / "store"))
    give_all(root)
    lastwrite.compact(str(root), spark=INLINE, to=str(place / "copy"))
    after = owners(place / "copy")
    assert {each[:2] for each in after.values()} == {(OWNER, GROUP)}
    assert {each.mode for name, each in after.items() if (place / "copy" / name).is_file()} == {
        0o640
    }
    assert {each.mode for name, each in after.items() if (place / "copy" / name).is_dir()} == {
        0o750
    }


@needs_root
def test_dispatched_trees_have_the_owner_of_the_store(place: Path) -> None:
    root = Path(shutil.copytree(ROCKETMQ, place / "store"))
    for tree in ("consumequeue", "index"):
        shutil.rmtree(root / tree, ignore_errors=True)
    give_all(root)
    lastwrite.dispatch(str(root), spark=INLINE, unclean=True)
    after = owners(root)
    assert any(name.startswith("consumequeue/") for name in after)
    assert {each[:2] for each in after.values()} == {(OWNER, GROUP)}


@needs_root
@pytest.mark.parametrize("to", [False, True])
def test_new_ledger_has_the_owner_of_its_sources(place: Path, to: bool) -> None:
    folder = topic_folder(place / "archive", "persistent://public/default/a")
    put_ledger(folder, 10, entries(20))
    put_ledger(folder, 11, entries(20))
    give_all(place / "archive", 0o600, 0o700)
    arguments = {"to": str(place / "copy")} if to else {}
    for _ in range(1 if to else 2):
        [report] = lastwrite.compact(str(place / "archive"), spark=INLINE, **arguments).partitions  # type: ignore[arg-type]
        assert report.status is Status.CLEANED
        if not to:
            put_ledger(folder, 12, entries(5))
            give_all(place / "archive", 0o600, 0o700)
    made = place / ("copy" if to else "archive")
    after = owners(made)
    assert {each[:2] for each in after.values()} == {(OWNER, GROUP)}
    assert {each.mode for name, each in after.items() if (made / name).is_file()} == {0o600}
