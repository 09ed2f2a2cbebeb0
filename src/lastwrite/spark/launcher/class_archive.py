"""Spark's classes as Java laid them out in an earlier run: half of a JVM's start is reading them
from 280 jars.

Java can write the classes that a run has loaded, parsed and checked, to a file, and map that file
in the next run: an archive of shared classes (17 and newer) or an ahead-of-time cache (25 and
newer). The first run on a machine writes it, into the user's cache folder and while it ends; a run
whose Java, Spark or options are others writes another. The file is 70 to 90 MB, may be deleted at
any time, and Java itself leaves it aside when it does not fit.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lastwrite.spark.launcher.java import JavaFound

_CACHED_AHEAD_OF_TIME = 25  # the Java that has it in one step
_KEPT = 3  # archives: of other Javas and Sparks
_LEAST_ROOM_BYTES = 512 << 20

# $1: what is written, $2: what it becomes when Java has ended well, the rest: Java and its options.
# Synced first: a name that outlives its content would be an archive of zeros. The status is Java's;
# that it was killed the driver says, and not the shell.
_WRITE = (
    'new=$1; final=$2; shift 2; exec 3>&2 2>/dev/null; ("$@") 2>&3; status=$?; '
    '[ $status = 0 ] && sync "$new" && mv -f "$new" "$final" || rm -f "$new" "$new.config"; exit $status'
)


def cache_folder() -> Path:
    """Where the user's programs keep what they can make anew."""
    told = os.environ.get("XDG_CACHE_HOME")
    if told:
        return Path(told) / "lastwrite"
    home = Path(os.path.expanduser("~"))
    return (
        home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    ) / "lastwrite"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """How the JVM is to be started: with an archive, to write one, or (the default) as ever."""

    options: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()  # before the command, where the archive is written
    marker: Path | None = None  # says that a run has begun to write it, or has written it
    taken: Path | None = None  # the archive itself
    new: Path | None = None  # what is being written
    # a second Java writes it, with much to say when the command has long ended
    is_talkative: bool = False

    @property
    def is_written(self) -> bool:
        """Whether the run writes one: the JVM must then end by itself."""
        return bool(self.shell)

    @property
    def unfinished(self) -> tuple[str, str]:
        """What goes when the run that writes it is killed, so that the next one writes it: the file
        and the marker.
        """
        return (str(self.new), str(self.marker)) if self.is_written else ("", "")

    def give_up(self) -> None:
        """Let the next run write it: this one is cut short, or the JVM that took it died."""
        for file in (self.taken, self.marker):
            if file is not None:
                with suppress(OSError):
                    file.unlink(missing_ok=True)


def class_archive(java: JavaFound, jars: Path, options: Sequence[str]) -> ClassArchive:
    """The archive of this Java for the classes in ``jars``, when started with ``options``."""
    try:
        home = Path(java.home)
        runtime, spark = (home / "lib" / "modules").stat(), jars.stat()
        is_cache = java.version >= _CACHED_AHEAD_OF_TIME
        if not is_cache and not list((home / "lib").glob("**/classes.jsa")):
            return ClassArchive()  # ours would stand on the runtime's own, which was left out
        said = (
            java.home,
            java.full_version,
            runtime.st_size,
            runtime.st_mtime_ns,
            str(jars),
            spark.st_mtime_ns,
            *(option for option in options if not option.startswith("-D")),
        )
        name = f"classes-{java.version}-{hashlib.blake2b(repr(said).encode(), digest_size=8).hexdigest()}"
        folder = cache_folder()
        archive = folder / f"{name}.{'aot' if is_cache else 'jsa'}"
        marker = folder / f"{name}.tried"
        use, write = (
            ("AOTCache", "AOTCacheOutput")
            if is_cache
            else ("SharedArchiveFile", "ArchiveClassesAtExit")
        )
        if archive.is_file():
            # Classes are code: from a file that others could have written they are not taken.
            if archive.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
                return ClassArchive()
            return ClassArchive(options=(f"-XX:{use}={archive}",), marker=marker, taken=archive)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o022 or shutil.disk_usage(folder).free < _LEAST_ROOM_BYTES:
            return ClassArchive()
        if not _is_first_to_try(marker):
            return ClassArchive()
        _forget_others(folder)
        new = f"{archive}.{os.getpid()}"
        shell = ("sh", "-c", _WRITE, "sh", new, str(archive))
        return ClassArchive(
            (f"-XX:{write}={new}",), shell, marker, new=Path(new), is_talkative=is_cache
        )
    except OSError:
        return ClassArchive()


def _is_first_to_try(marker: Path) -> bool:
    """Whether no run has tried to write this archive: one that cannot be written is not tried every
    time.
    """
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _forget_others(folder: Path) -> None:
    """Remove the oldest archives, with their markers; a JVM that uses one keeps its own hold of it."""
    found = sorted(
        (file for file in folder.glob("classes-*") if file.suffix in (".jsa", ".aot")), key=_age
    )
    for file in found[: max(0, len(found) - _KEPT + 1)]:
        with suppress(OSError):
            file.with_suffix(".tried").unlink(missing_ok=True)
            file.unlink(missing_ok=True)


def _age(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0
