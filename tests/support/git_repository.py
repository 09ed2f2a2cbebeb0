"""Tiny real git repositories for tests, made in a folder with fixed names and dates."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not on the PATH")


class Repository:
    """A repository to which a test commits; every commit is a second later than the one before."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._seconds = 1_600_000_000
        folder.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main", *options)

    def git(self, *arguments: str | bytes, feed: bytes = b"", **environment: str) -> bytes:
        named = {
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@example.org",
            "GIT_COMMITTER_NAME": "c",
            "GIT_COMMITTER_EMAIL": "c@example.org",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_DATE": f"{self._seconds} +0000",
            "GIT_COMMITTER_DATE": f"{self._seconds} +0000",
        }
        outer = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        return subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *arguments],
            cwd=self.folder,
            input=feed,
            env=outer | named | environment,
            check=True,
            capture_output=True,
        ).stdout

    def write(self, path: str | bytes, content: bytes = b"x", mode: int | None = None) -> None:
        target = os.path.join(os.fsencode(self.folder), os.fsencode(path))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(content)
        if mode is not None:
            os.chmod(target, mode)

    def remove(self, path: str | bytes) -> None:
        target = os.path.join(os.fsencode(self.folder), os.fsencode(path))
        if os.path.isdir(target) and not os.path.islink(target):
            shutil.rmtree(target)
        else:
            os.unlink(target)

    def commit(self, *options: str) -> bytes:
        self._seconds += 1
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message=m", *options)
        return self.git("rev-parse", "HEAD").strip()

    def ls_tree(self) -> dict[bytes, bytes]:
        """The answer: path -> b"<mode> <id>"."""
        tree = {}
        for line in self.git("ls-tree", "-r", "-z", "HEAD").split(b"\0")[:-1]:
            entry, path = line.split(b"\t", 1)
            mode, _, name = entry.split(b" ")
            tree[path] = mode + b" " + name
        return tree
