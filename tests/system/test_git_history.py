"""Tests that the changes of any git history fold to the tree that git shows."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from lastwrite.demo.git_history import GitHistory, PathChange, open_history
from lastwrite.errors import EnvironmentUnfit, LogError, NotALog
from tests.support.git_repository import Repository, needs_git

pytestmark = needs_git


def fold(history: GitHistory) -> dict[bytes, bytes]:
    table: dict[bytes, bytes] = {}
    for _, change in history.changes():
        if change.value is None:
            # the KeyError of deleting an absent path would reveal a wrong walk
            del table[change.path]
        else:
            table[change.path] = change.value
    return table


def check(repository: Repository, folder: Path | None = None) -> list[PathChange]:
    history = open_history(str(folder or repository.folder))
    assert fold(history) == history.tree() == repository.ls_tree()
    return [change for _, change in history.changes()]


def one_file(r: Repository) -> None:
    r.write("a")
    r.commit()


def rewritten_and_deleted(r: Repository) -> None:
    one_file(r)
    r.write("a", b"y")
    r.write("b")
    r.commit()
    r.remove("a")
    r.commit()


def everything_deleted(r: Repository) -> None:
    one_file(r)
    r.remove("a")
    r.commit()


def commits_that_change_nothing(r: Repository) -> None:
    r.commit()
    r.commit()
    one_file(r)
    r.commit()


def renamed(r: Repository) -> None:
    r.write("old", b"the same content, long enough to look like a rename\n" * 9)
    r.commit()
    r.git("mv", "old", "new")
    r.git("config", "diff.renames", "copies")
    r.commit()


def mode_and_type(r: Repository) -> None:
    r.write("run", b"#!/bin/sh\n")
    r.write("link", b"target")
    r.commit()
    os.chmod(r.folder / "run", 0o755)
    r.commit()
    r.remove("link")
    os.symlink("target", r.folder / "link")
    r.commit()
    r.remove("link")
    r.write("link", b"again a file")
    r.commit()


def file_and_folder_change_places(r: Repository) -> None:
    r.write("a")
    r.write("b/c")
    r.commit()
    r.remove("a")
    r.remove("b")
    r.write("a/x")
    r.write("a/y/z")
    r.write("b")
    r.commit()
    r.remove("a")
    r.write("a", b"back")
    r.commit()


def merged(r: Repository) -> None:
    r.write("base")
    r.write("both", b"0")
    r.commit()
    r.git("checkout", "--quiet", "-b", "side")
    r.write("side")
    r.write("both", b"side")
    r.commit()
    r.git("checkout", "--quiet", "main")
    r.write("main")
    r.remove("base")
    r.commit()
    r.git("merge", "--quiet", "--no-ff", "--message=m", "side")
    r.write("later")
    r.commit()
    r.git("checkout", "--quiet", "--orphan", "other")
    r.git("rm", "-rfq", ".")
    r.write("from elsewhere")
    r.commit()
    r.git("checkout", "--quiet", "main")
    r.git("merge", "--quiet", "--no-ff", "--allow-unrelated-histories", "--message=m", "other")
    r.git("checkout", "--quiet", "-b", "octopus", "main~1")
    r.write("arm")
    r.commit()
    r.git("checkout", "--quiet", "main")
    r.git("merge", "--quiet", "-s", "ours", "--message=m", "octopus", "side")


def an_evil_merge(r: Repository) -> None:
    """A merge whose tree has nothing from either parent."""
    merged(r)
    blob = r.git("hash-object", "-w", "--stdin", feed=b"evil").strip().decode()
    tree = r.git("mktree", feed=f"100644 blob {blob}\tnowhere else\n".encode()).strip().decode()
    commit = r.git("commit-tree", tree, "-p", "main", "-p", "other", "-m", "m").strip().decode()
    r.git("reset", "--hard", "--quiet", commit)


def paths_of_any_bytes(r: Repository) -> None:
    blob = r.git("hash-object", "-w", "--stdin", feed=b"x").strip()
    paths = [
        b"tab\there",
        b"new\nline",
        b"\xff\xfe not utf-8",
        b'"quoted"',
        b" ",
        b":100644 looks like a diff",
        b"back\\slash",
        "ü/ß".encode(),
        b"-n",
        b"x" * 3000,
        b"\x01",
        b"deep/" * 200 + b"end",
    ]
    for path in paths:
        r.git(
            "update-index",
            "--add",
            "-z",
            "--index-info",
            feed=b"100644 " + blob + b"\t" + path + b"\0",
        )
    r.git("commit", "--quiet", "--message=m")
    other = r.git("hash-object", "-w", "--stdin", feed=b"y").strip()
    for path in paths[::2]:
        r.git("update-index", "-z", "--index-info", feed=b"100755 " + other + b"\t" + path + b"\0")
    for path in paths[1::4]:
        r.git(
            "update-index",
            "-z",
            "--index-info",
            feed=b"0 " + b"0" * len(blob) + b"\t" + path + b"\0",
        )
    r.git("commit", "--quiet", "--message=m")


def submodules(r: Repository) -> None:
    r.write(".gitmodules", b'[submodule "s"]\n\tpath = sub\n\turl = ./x\n\tignore = all\n')
    for commit in ("1" * 40, "2" * 40):
        r.git("add", ".gitmodules")
        r.git("update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
        r.git("commit", "--quiet", "--message=m")
    r.git("config", "diff.ignoreSubmodules", "all")


def dates_run_backwards(r: Repository) -> None:
    for seconds in (1_600_000_000, 1_500_000_000, 1_700_000_000, 1):
        r.write("a", str(seconds).encode())
        r.write(f"b{seconds}")
        r.git("add", "--all")
        r.git("commit", "--quiet", "--message=m", GIT_COMMITTER_DATE=f"@{seconds} +0000")


def a_date_that_git_cannot_read(r: Repository) -> None:
    one_file(r)
    raw = r.git("cat-file", "commit", "HEAD").replace(b"> 1600000001 +0000", b"> soon")
    commit = (
        r.git("hash-object", "-t", "commit", "-w", "--stdin", "--literally", feed=raw)
        .strip()
        .decode()
    )
    r.git("reset", "--hard", "--quiet", commit)
    one_file(r)
    r.write("b")
    r.commit()


def a_date_at_the_end_of_time(r: Repository) -> None:
    r.write("a")
    r.git("add", "--all")
    r.git("commit", "--quiet", "--message=m", GIT_COMMITTER_DATE="@9223372036854775807 +0000")


def replaced_commit_and_blob(r: Repository) -> None:
    rewritten_and_deleted(r)
    r.write("c", b"1")
    second = r.commit().decode()
    r.write("c", b"2")
    third = r.commit().decode()
    r.write("d", b"3")
    r.commit()
    r.git("replace", third, second)
    r.git("replace", r.git("rev-parse", "HEAD").strip().decode(), second)


def a_graft(r: Repository) -> None:
    rewritten_and_deleted(r)
    r.write("c", b"1")
    commit = r.commit()
    r.write("d", b"1")
    r.commit()
    (r.folder / ".git/info").mkdir(exist_ok=True)
    (r.folder / ".git/info/grafts").write_bytes(commit + b"\n")


def detached_head(r: Repository) -> None:
    rewritten_and_deleted(r)
    r.git("checkout", "--quiet", "--detach", "HEAD~1")


def settings_that_change_what_git_prints(r: Repository) -> None:
    renamed(r)
    paths_of_any_bytes(r)
    for name, value in {
        "core.quotepath": "true",
        "diff.orderFile": "/does/not/exist",
        "log.showRoot": "false",
        "color.ui": "always",
        "core.abbrev": "4",
        "diff.relative": "true",
        "log.showSignature": "true",
        "diff.noprefix": "true",
        "core.filemode": "false",
        "log.follow": "true",
        "format.pretty": "fuller",
        "core.ignorecase": "true",
    }.items():
        r.git("config", name, value)


def an_old_mode(r: Repository) -> None:
    """Trees of git's first months contain mode 100664, which every git command prints as 100644."""
    blob = r.git("hash-object", "-w", "--stdin", feed=b"x").strip()
    blob_id = bytes.fromhex(blob.decode())
    tree = b"".join(entry + b"\0" + blob_id for entry in (b"100664 a", b"100644 b"))
    written = (
        r.git("hash-object", "-t", "tree", "-w", "--stdin", "--literally", feed=tree)
        .strip()
        .decode()
    )
    commit = r.git("commit-tree", written, "-m", "m").strip().decode()
    r.git("reset", "--soft", commit)


HISTORIES: list[Callable[[Repository], None]] = [
    one_file,
    rewritten_and_deleted,
    everything_deleted,
    commits_that_change_nothing,
    renamed,
    mode_and_type,
    file_and_folder_change_places,
    merged,
    an_evil_merge,
    paths_of_any_bytes,
    submodules,
    dates_run_backwards,
    a_date_that_git_cannot_read,
    a_date_at_the_end_of_time,
    replaced_commit_and_blob,
    a_graft,
    detached_head,
    settings_that_change_what_git_prints,
    an_old_mode,
]


@pytest.mark.parametrize("build", HISTORIES, ids=lambda build: build.__name__)
def test_changes_fold_to_the_tree(tmp_path: Path, build: Callable[[Repository], None]) -> None:
    repository = Repository(tmp_path / "r")
    build(repository)
    check(repository)


@pytest.mark.parametrize(
    "build", [rewritten_and_deleted, merged, paths_of_any_bytes], ids=lambda b: b.__name__
)
def test_sha256_repository_is_read(tmp_path: Path, build: Callable[[Repository], None]) -> None:
    try:
        repository = Repository(tmp_path / "r", "--object-format=sha256")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this git knows no sha256: {error}")
    build(repository)
    assert all(len(change.commit) == 64 for change in check(repository))


def test_bare_repository_is_read(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    merged(repository)
    repository.git("clone", "--quiet", "--bare", ".", "../bare")
    check(repository, tmp_path / "bare")
    assert open_history(str(tmp_path / "bare")).repository == os.path.realpath(tmp_path / "bare")


def test_linked_work_tree_is_read(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    rewritten_and_deleted(repository)
    repository.git("worktree", "add", "--quiet", "--detach", "../w")
    check(repository, tmp_path / "w")


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_shallow_clone_is_read(tmp_path: Path, depth: int) -> None:
    repository = Repository(tmp_path / "r")
    merged(repository)
    repository.git("clone", "--quiet", f"--depth={depth}", (tmp_path / "r").as_uri(), "../shallow")
    check(repository, tmp_path / "shallow")
    history = open_history(str(tmp_path / "shallow"))
    assert history.is_shallow
    assert len(history.commits) == depth


def test_inner_folder_selects_its_repository(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    file_and_folder_change_places(repository)
    repository.write("inner/file")
    repository.commit()
    check(repository, tmp_path / "r" / "inner")
    check(repository, tmp_path / "r" / ".git")


def test_git_environment_variables_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_file(Repository(tmp_path / "elsewhere"))
    repository = Repository(tmp_path / "r")
    rewritten_and_deleted(repository)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere" / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", "index")
    check(repository)


def test_change_has_path_value_time_and_commit(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    repository.write("a", b"content", 0o644)
    first = repository.commit()
    repository.remove("a")
    repository.commit()
    last = repository.commit()
    history = open_history(str(repository.folder))
    blob = repository.git("rev-parse", "HEAD~2:a").strip()
    (_, write), (place, delete) = history.changes()
    assert write == PathChange(b"a", b"100644 " + blob, first, 1_600_000_001_000)
    assert (delete.path, delete.value, delete.committed_ms) == (b"a", None, 1_600_000_002_000)
    assert history.commits[place] == delete.commit
    assert history.head == last


def test_unfinished_iteration_leaves_no_git_process(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    merged(repository)
    changes = open_history(str(repository.folder)).changes()
    next(changes)
    changes.close()


def test_empty_repository_is_a_clear_error(tmp_path: Path) -> None:
    Repository(tmp_path / "r")
    with pytest.raises(NotALog, match="the repository has no commit on refs/heads/main") as caught:
        open_history(str(tmp_path / "r"))
    assert caught.value.exit_status == 2
    assert "--repo" in str(caught.value)


def test_missing_repository_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "d").mkdir()
    with pytest.raises(
        NotALog, match="git finds no repository in this folder: not a git repository"
    ):
        open_history(str(tmp_path / "d"))
    with pytest.raises(NotALog, match="the path is not an existing folder"):
        open_history(str(tmp_path / "nowhere"))


def test_missing_git_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentUnfit, match="apt-get install git"):
        open_history(str(tmp_path))


def test_missing_object_is_a_clear_error(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    rewritten_and_deleted(repository)
    tree = repository.git("rev-parse", "HEAD~1^{tree}").strip().decode()
    os.unlink(repository.folder / ".git/objects" / tree[:2] / tree[2:])
    history = open_history(str(repository.folder))
    with pytest.raises(LogError, match="git diff-tree failed with exit status 128.*git fsck"):
        list(history.changes())
