"""Read the history of a git repository as keyed changes, and the tree that results from them.

The walk follows the first parents from the root commit to HEAD, and records what each step does to
each path. Example: ``a`` written, ``a`` written again, ``b`` written, ``a`` deleted. The last
change of every path, without deletes, is the tree. So ``git ls-tree -r HEAD`` is the correct result
of compaction, computed independently.

Each step is the difference between two neighbours in that walk, so for any history the steps add up
to the tree. A merge is one step from its first parent. In a shallow clone, the first step writes
all files of the oldest commit. A rename is a delete and a write. If a file becomes a directory, its
path is deleted, and paths below it are written. A submodule is a path with mode 160000 whose id is
a commit. Grafts and replaced objects are followed as git does, in the walk and in the tree.

Only plumbing commands are called, because the user's settings (renames, order files, ignored
submodules, colours, quoted paths) do not change their output. Paths are bytes that end with NUL.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, NamedTuple

from lastwrite.errors import EnvironmentUnfit, LogError, NotALog

_READ_BYTES = 1 << 20
_GONE = b"000000"  # the mode that git prints if the path does not exist on one side
_LATEST_MS = (1 << 63) - 1

# In a git hook, these variables make git use another repository than the given folder.
_POINTS_ELSEWHERE = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_SHALLOW_FILE",
    "GIT_GRAFT_FILE",
)


class PathChange(NamedTuple):
    """The change of one path by one commit."""

    path: bytes
    value: bytes | None  # b"<mode> <blob id>"; None if the commit deletes the path
    commit: bytes  # id of the commit, in hex
    committed_ms: int


@dataclass(frozen=True, slots=True)
class GitHistory:
    """The history of a repository: the walk from the root commit to HEAD.

    HEAD is the commit at the time when the walk was opened.
    """

    repository: str  # folder of the work tree, or of a bare repository
    commits: Sequence[
        bytes
    ]  # commit ids in hex, oldest first; each is the first parent of the next; never empty
    committed_ms: Sequence[int]  # commit time of each commit
    is_shallow: bool

    @property
    def head(self) -> bytes:
        return self.commits[-1]

    def changes(self) -> Iterator[tuple[int, PathChange]]:
        """Every change of every step, oldest first, each with its commit's index in ``commits``.

        A path occurs at most once in a step.

        Raises:
            LogError: git cannot read its own objects.
        """
        at = 0
        commit = self.commits[0]
        tokens = _tokens(_Git(self.repository, *_DIFF_STEPS, feed=self._steps()))
        for token in tokens:
            if token.startswith(b":"):  # :<mode> <mode> <id> <id> <status>, then the path
                _, mode, _, blob, _ = token.split(b" ")
                path = next(tokens)
                value = None if mode == _GONE else mode + b" " + blob
                yield at, PathChange(path, value, commit, self.committed_ms[at])
            else:  # git prints no line for a step without changes
                while commit != token:
                    at += 1
                    commit = self.commits[at]

    def tree(self) -> dict[bytes, bytes]:
        """The content of the last commit according to git: path -> b"<mode> <blob id>".

        Raises:
            LogError: git cannot read its own objects, or the tree names a path twice.
        """
        tree: dict[bytes, bytes] = {}
        entries = 0
        for token in _tokens(
            _Git(self.repository, "ls-tree", "-r", "-z", "--full-tree", self.head.decode())
        ):
            entry, path = token.split(b"\t", 1)
            mode, _, blob = entry.split(b" ")
            tree[path] = mode + b" " + blob
            entries += 1
        if entries != len(tree):
            raise LogError(
                f"the tree of {self.head.decode()} contains a path twice",
                path=self.repository,
                remedy="check the repository with `git fsck`, or name another repository with "
                "--repo",
            )
        return tree

    def _steps(self) -> Iterator[bytes]:
        """A line per step of the history: a commit and its predecessor.

        The first line has only a commit.
        """
        before = b""
        for commit in self.commits:
            yield commit + b" " + before + b"\n" if before else commit + b"\n"
            before = commit


_DIFF_STEPS = (
    "diff-tree",
    "--stdin",
    "--root",
    "-r",
    "-z",
    "--raw",
    "--no-renames",
    "--ignore-submodules=none",
)


def open_history(folder: str) -> GitHistory:
    """Walk the first parents of HEAD in the repository of ``folder``. Uses 60 bytes per commit.

    Raises:
        EnvironmentUnfit: there is no git.
        NotALog: ``folder`` is in no git repository, or its HEAD names no commit yet.
        LogError: git cannot read its own objects.
    """
    if not os.path.isdir(folder):
        raise NotALog(
            "the path is not an existing folder",
            path=folder,
            remedy="name a git repository with --repo",
        )
    inside = _answer(folder, "rev-parse", "--is-inside-work-tree")
    if inside is None:
        complaint = _complaint(folder, "rev-parse", "--git-dir")
        remedy = "run the demo in a git clone, or name a repository with --repo"
        if "dubious ownership" in complaint:
            remedy = (
                "if you trust the repository, run git config --global --add safe.directory "
                f"{os.path.abspath(folder)}"
            )
        raise NotALog(
            f"git finds no repository in this folder: {complaint}", path=folder, remedy=remedy
        )
    where = "--show-toplevel" if inside == b"true" else "--absolute-git-dir"
    repository = os.fsdecode(
        _answer(folder, "rev-parse", where) or os.fsencode(os.path.abspath(folder))
    )
    head = _answer(folder, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head is None:
        branch = (_answer(folder, "symbolic-ref", "--quiet", "HEAD") or b"HEAD").decode(
            errors="replace"
        )
        raise NotALog(
            f"the repository has no commit on {branch}",
            path=repository,
            remedy="commit a file, check out a branch that has commits, or name another "
            "repository with --repo",
        )
    commits: list[bytes] = []
    committed_ms: list[int] = []
    walk = _Git(repository, "rev-list", "--first-parent", "--reverse", "--timestamp", head.decode())
    for line in _tokens(walk, ended_by=b"\n"):
        seconds, commit = line.split(b" ")
        commits.append(commit)
        # A date that git could not read is 0; a date that exceeds the log's range becomes the
        # latest.
        committed_ms.append(min(int(seconds) * 1000, _LATEST_MS))
    is_shallow = _answer(repository, "rev-parse", "--is-shallow-repository") == b"true"
    return GitHistory(repository, commits, committed_ms, is_shallow)


class _Git:
    """A git process whose output is read in chunks while ``feed`` is written to its input."""

    def __init__(self, folder: str, *arguments: str, feed: Iterable[bytes] = ()) -> None:
        self._folder = folder
        self._what = arguments[0]
        self._process = _start(folder, arguments)
        self._complaints: list[bytes] = []
        # git may fill one pipe while another is read, so each pipe has a thread.
        self._threads = [
            threading.Thread(target=self._write, args=(feed,), daemon=True),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def chunks(self) -> Iterator[bytes]:
        """The output of git in chunks. It is complete only if git succeeds."""
        out = _pipe(self._process.stdout)
        finished = False
        try:
            # read the available bytes without waiting for a full megabyte
            while chunk := os.read(out.fileno(), _READ_BYTES):
                yield chunk
            finished = True
        finally:
            if not finished:
                self._process.kill()
            status = self._process.wait()
            for thread in self._threads:
                thread.join()
            out.close()
        if status != 0:
            text = b"".join(self._complaints).decode(errors="replace").strip()
            raise LogError(
                f"git {self._what} failed with exit status {status}: "
                f"{text or 'no reason was given'}",
                path=self._folder,
                remedy="check the repository with `git fsck`, or name another repository with "
                "--repo",
            )

    def _write(self, feed: Iterable[bytes]) -> None:
        try:
            with _pipe(self._process.stdin) as stdin:
                for line in feed:
                    stdin.write(line)
        except OSError:
            pass  # git has ended early, and its exit status shows the error

    def _listen(self) -> None:
        with _pipe(self._process.stderr) as stderr:
            self._complaints.append(stderr.read(_READ_BYTES))
            while stderr.read(_READ_BYTES):
                pass


def _tokens(git: _Git, ended_by: bytes = b"\0") -> Iterator[bytes]:
    rest = b""
    for chunk in git.chunks():
        tokens = (rest + chunk).split(ended_by)
        rest = tokens.pop()
        yield from tokens


def _answer(folder: str, *arguments: str) -> bytes | None:
    """The single line that a git command prints. None if git fails."""
    process = _start(folder, arguments)
    out, _ = process.communicate()
    return out.removesuffix(b"\n") if process.returncode == 0 else None


def _complaint(folder: str, *arguments: str) -> str:
    process = _start(folder, arguments)
    _, complaint = process.communicate()
    lines = complaint.decode(errors="replace").strip().splitlines()
    return lines[0].removeprefix("fatal: ") if lines else "no reason was given"


def _start(folder: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    git = shutil.which("git")
    if git is None:
        raise EnvironmentUnfit(
            "the demo needs git, and git is not on the PATH",
            remedy="install git (Debian: apt-get install git; macOS: xcode-select --install)",
        )
    environment = {
        name: value for name, value in os.environ.items() if name not in _POINTS_ELSEWHERE
    }
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.Popen(
        [git, "-C", folder, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream
