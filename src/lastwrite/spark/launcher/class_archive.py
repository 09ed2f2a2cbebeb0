"""Spark's classes in a Java archive from an earlier run, which halves the start of a JVM.

Without an archive, half of the start is spent on reading classes from 280 jars. Java can write its
loaded, parsed and checked classes to a file, and map that file in the next run. The file is an
archive of shared classes (Java 17 and newer) or an ahead-of-time cache (25 and newer). The first
run on a machine writes this file to the user's cache folder when it ends. A run with another Java,
another Spark or other options writes another file. A file has 70 to 90 MB and may be deleted at any
time. Java ignores a file that does not match its version or options.
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

from lastwrite.spark.launcher.java import JavaRuntime

_CACHED_AHEAD_OF_TIME = 25  # the first Java version that writes an ahead-of-time cache in one step
_KEPT = 3  # maximum number of archives, for different versions of Java and Spark
_LEAST_ROOM_BYTES = 512 << 20

# A shell script that runs Java, and renames the archive that Java has written. $1 is the new file
# and $2 its final name; the other arguments are Java and its options. The file is synced before the
# rename, so that a power failure leaves no archive of zeros. The exit status is Java's. The shell's
# message about a killed process is suppressed, because the driver reports it.
_WRITE = (
    'new=$1; final=$2; shift 2; exec 3>&2 2>/dev/null; ("$@") 2>&3; status=$?; '
    '[ $status = 0 ] && sync "$new" && mv -f "$new" "$final" || rm -f "$new" "$new.config"; '
    "exit $status"
)


def cache_folder() -> Path:
    """The user's folder for caches: files that programs can create again."""
    told = os.environ.get("XDG_CACHE_HOME")
    if told:
        return Path(told) / "lastwrite"
    home = Path(os.path.expanduser("~"))
    return (
        home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    ) / "lastwrite"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """How a JVM uses class archives: it reads one, it writes one, or (the default) neither."""

    options: tuple[str, ...] = ()
    shell: tuple[str, ...] = ()  # shell command that runs Java, if an archive is written
    # file that exists once a run has begun to write the archive
    marker: Path | None = None
    used: Path | None = None  # the archive that the JVM uses
    new: Path | None = None  # temporary path of the archive that the JVM writes
    # whether a second Java process writes the archive; it prints many lines after the command's end
    is_talkative: bool = False

    @property
    def is_written(self) -> bool:
        """Whether this run writes an archive. The JVM is then not killed, but ends by itself."""
        return bool(self.shell)

    @property
    def unfinished(self) -> tuple[str, str]:
        """The new archive file and its marker, which are removed if the run is killed.

        The next run then writes the archive.
        """
        return (str(self.new), str(self.marker)) if self.is_written else ("", "")

    def discard(self) -> None:
        """Remove the archive files, so that the next run writes the archive.

        Called if this run is interrupted, or if its JVM died.
        """
        for file in (self.used, self.marker):
            if file is not None:
                with suppress(OSError):
                    file.unlink(missing_ok=True)


def class_archive(java: JavaRuntime, jars: Path, options: Sequence[str]) -> ClassArchive:
    """The archive for the classes in ``jars`` and for this Java with ``options``."""
    try:
        home = Path(java.home)
        runtime, spark = (home / "lib" / "modules").stat(), jars.stat()
        is_cache = java.version >= _CACHED_AHEAD_OF_TIME
        if not is_cache and not list((home / "lib").glob("**/classes.jsa")):
            # no archive, because Java would base it on the archive of Java's own classes, which
            # this runtime lacks
            return ClassArchive()
        said = (
            java.home,
            java.full_version,
            runtime.st_size,
            runtime.st_mtime_ns,
            str(jars),
            spark.st_mtime_ns,
            *(option for option in options if not option.startswith("-D")),
        )
        digest = hashlib.blake2b(repr(said).encode(), digest_size=8).hexdigest()
        name = f"classes-{java.version}-{digest}"
        folder = cache_folder()
        archive = folder / f"{name}.{'aot' if is_cache else 'jsa'}"
        marker = folder / f"{name}.tried"
        use, write = (
            ("AOTCache", "AOTCacheOutput")
            if is_cache
            else ("SharedArchiveFile", "ArchiveClassesAtExit")
        )
        if archive.is_file():
            # A file that other users could have written is not used, because it contains code.
            if archive.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
                return ClassArchive()
            return ClassArchive(options=(f"-XX:{use}={archive}",), marker=marker, used=archive)
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
    """Create the marker, so that no other run writes this archive.

    False if an earlier run has created it: even a failed attempt is not repeated.
    """
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _forget_others(folder: Path) -> None:
    """Remove the oldest archives and their markers.

    A JVM that uses such an archive is not affected, because it keeps the file open.
    """
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
