"""Tests of Java's class archive: when it is written, when it is used, and when neither."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lastwrite.spark.launcher.class_archive import ClassArchive, cache_folder, class_archive
from lastwrite.spark.launcher.java import JavaRuntime


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lastwrite"


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    (tmp_path / "jars").mkdir()
    return tmp_path / "jars"


def make_java(home: Path, version: int = 17, *, is_trimmed: bool = False) -> JavaRuntime:
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "modules").write_bytes(b"classes")
    if not is_trimmed:
        (home / "lib" / "server" / "classes.jsa").write_bytes(b"laid out")
    return JavaRuntime(str(home / "bin" / "java"), version, "PATH", f"{version}.0.1", str(home))


def write(archive: ClassArchive, program: str) -> int:
    """Run ``program`` in place of Java, which writes the file that its option names."""
    path = archive.options[0].partition("=")[2]
    return subprocess.run(
        [*archive.shell, "sh", "-c", program, "java", path], check=False
    ).returncode


@pytest.mark.parametrize(
    ("version", "is_trimmed", "use"),
    [
        (17, False, "SharedArchiveFile"),
        (24, False, "SharedArchiveFile"),
        (25, False, "AOTCache"),
        (25, True, "AOTCache"),
    ],
)
def test_first_run_writes_the_archive_and_the_next_uses_it(
    tmp_path: Path, jars: Path, cache: Path, version: int, is_trimmed: bool, use: str
) -> None:
    java = make_java(tmp_path / "jdk", version, is_trimmed=is_trimmed)
    first = class_archive(java, jars, ["-Xmx1m"])
    assert first.is_written and not list(cache.glob("*.jsa")) and not list(cache.glob("*.aot"))
    # A second run gets no options while the first one writes.
    assert class_archive(java, jars, ["-Xmx1m"]) == ClassArchive()
    write(first, 'echo classes > "$1"')
    taken = class_archive(java, jars, ["-Xmx1m"])
    assert not taken.is_written
    name, _, path = taken.options[0].partition("=")
    assert (
        name == f"-XX:{use}"
        and Path(path).parent == cache
        and Path(path).read_text() == "classes\n"
    )
    assert class_archive(java, jars, ["-Xmx2m"]).is_written  # other options need another archive
    os.utime(jars, ns=(1, 1))
    assert class_archive(java, jars, ["-Xmx1m"]).is_written  # so does another Spark


def test_failed_java_leaves_no_archive_and_is_not_retried(
    tmp_path: Path, jars: Path, cache: Path
) -> None:
    java = make_java(tmp_path / "jdk")
    write(class_archive(java, jars, ()), 'echo half > "$1"; exit 1')
    assert [file.suffix for file in cache.iterdir()] == [".tried"]
    assert class_archive(java, jars, ()) == ClassArchive()


def test_interrupted_run_leaves_the_writing_to_the_next(tmp_path: Path, jars: Path) -> None:
    java = make_java(tmp_path / "jdk")
    class_archive(java, jars, ()).discard()
    assert class_archive(java, jars, ()).is_written


def test_java_without_its_own_archive_starts_without_options(tmp_path: Path, jars: Path) -> None:
    assert (
        class_archive(make_java(tmp_path / "jdk", 17, is_trimmed=True), jars, ()) == ClassArchive()
    )


def test_unwritable_cache_is_ignored(
    tmp_path: Path, jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert class_archive(make_java(tmp_path / "jdk"), jars, ()) == ClassArchive()


def test_archive_in_a_world_writable_cache_is_not_used(
    tmp_path: Path, jars: Path, cache: Path
) -> None:
    java = make_java(tmp_path / "jdk")
    write(class_archive(java, jars, ()), 'echo classes > "$1"')
    assert class_archive(java, jars, ()).options
    cache.chmod(0o777)
    assert class_archive(java, jars, ()) == ClassArchive()
    assert class_archive(java, jars, ["-Xother"]) == ClassArchive()


def test_only_the_newest_archives_are_kept(tmp_path: Path, jars: Path, cache: Path) -> None:
    java = make_java(tmp_path / "jdk")
    for n in range(6):
        write(class_archive(java, jars, [f"-Xmx{n}m"]), 'echo classes > "$1"')
        newest = max(cache.glob("*.jsa"), key=lambda file: file.stat().st_mtime_ns)
        os.utime(newest, ns=(n, n))
    assert len(list(cache.glob("*.jsa"))) == len(list(cache.glob("*.tried"))) == 3
    assert class_archive(java, jars, ["-Xmx5m"]).options
    assert class_archive(java, jars, ["-Xmx0m"]).is_written


def test_cache_is_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache_folder().parts[-3:] == ("Library", "Caches", "lastwrite")
    monkeypatch.setattr("sys.platform", "linux")
    assert cache_folder().parts[-2:] == (".cache", "lastwrite")
