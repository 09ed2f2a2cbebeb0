"""Delete outdated compiled kernels before they are used.

Numba stores compiled code beside the sources. Before Numba uses the code, it checks only the source
file of the kernel, not the files of functions that are compiled into it. After an upgrade, a kernel
could thus contain code of two releases. A digest of all sources is therefore stored beside the
cache. If it does not match, the compiled code is deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = (
    "model",
    "encoding",
    "engine/rules",
    "verification",
    "scan_cache",
    "rows",
    "decoding",
    "tables",
    "kafka/automq",
    "kafka/format",
    "kafka/look",
    "kafka/old_format",
    "kafka/producers",
    "kafka/recovery",
    "rocketmq/format",
    "pulsar/format",
)
_STAMP = "kernels.digest"
_LOCK = "kernels.lock"  # lock file; one byte is locked for each kernel that is being compiled
_KINDS = ("*.nbi", "*.nbc", "*.code")
COMPILING = "compiling kernels (once)"
_is_told = False


def kernel_folders() -> list[Path]:
    """The folders with kernels, or with functions and constants that are compiled into kernels."""
    return [_PACKAGE / name for name in _FOLDERS]


def drop_stale_kernels(folders: Iterable[Path] | None = None) -> bool:
    """Delete kernels that were compiled from other sources, and return whether there were any.

    By default ``folders`` are ``kernel_folders()``. If they cannot be written, nothing is done:
    Numba then stores its cache elsewhere, and checks the times of the sources.
    """
    now = _digest() if folders is None else _digest_of(folders := tuple(folders))
    folders = kernel_folders() if folders is None else folders
    stale = False
    for folder in folders:
        cache = folder / "__pycache__"
        with contextlib.suppress(OSError):
            stamp = cache / _STAMP
            if stamp.is_file() and stamp.read_text() == now:
                continue
            for compiled in (each for kind in _KINDS for each in cache.glob(kind)):
                compiled.unlink(missing_ok=True)
                stale = True
            cache.mkdir(exist_ok=True)
            stamp.write_text(now)
    return stale


@cache
def _digest() -> str:
    """A digest of the sources of all kernels, computed once per process."""
    return _digest_of(kernel_folders())


def _digest_of(folders: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for source in sorted(source for folder in folders for source in folder.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def maker() -> str:
    """A text that identifies the sources, Numba and Python with which code is compiled."""
    numba = find_spec("numba")
    made = numba.origin if numba is not None and numba.origin is not None else ""
    written_ns = os.stat(made).st_mtime_ns if made else 0
    return f"{_digest()} {made} {written_ns} {sys.version}"


@cache
def may_keep_code() -> bool:
    """Whether machine code may be stored beside the sources.

    False if the folder cannot be written, if environment variables configure Numba, or if this
    Python's objects have another memory layout.
    """
    is_told = any(name.startswith("NUMBA_") for name in os.environ)
    is_known = sys.implementation.name == "cpython" and object.__basicsize__ == 16
    return is_known and not is_told and os.access(_PACKAGE, os.W_OK)


def code_files(kernel: str) -> list[Path]:
    """The files with machine code of ``kernel`` (``lastwrite.module:name``), whether valid or not.

    Empty if the folder cannot be read, for example because the process has dropped its permissions.
    """
    module, name = kernel.split(":")
    pattern = _code_file(module, f"{name}-*")
    with contextlib.suppress(OSError):
        return sorted(pattern.parent.glob(pattern.name))
    return []


def load_code(module: str, name: str) -> bytes:
    """The machine code that ``store_code`` stored for a kernel; empty if there is none."""
    with contextlib.suppress(OSError):
        return _code_file(module, name).read_bytes()
    return b""


def store_code(module: str, name: str, code: bytes) -> None:
    """Store machine code beside its module's source, if that folder can be written."""
    file = _code_file(module, name)
    with contextlib.suppress(OSError):
        aside = file.with_name(f"{file.name}.{os.getpid()}")
        aside.write_bytes(code)
        aside.replace(file)


@contextlib.contextmanager
def only_compiler(module: str, name: str) -> Iterator[None]:
    """Wait until no other process compiles this kernel, which may then be stored.

    Does not wait if the module's folder cannot be written.
    """
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(OSError):
            lock = opened.enter_context(_code_file(module, name).with_name(_LOCK).open("ab"))
            fcntl.lockf(lock, fcntl.LOCK_EX, 1, crc32(name.encode()))
        yield


def _code_file(module: str, name: str) -> Path:
    *folders, source = module.split(".")[1:]
    return _PACKAGE.joinpath(*folders, "__pycache__", f"{source}.{name}.code")


def is_compiled(kernel: str) -> bool:
    """Whether ``kernel`` (``lastwrite.module:name``) is compiled.

    Imports the kernel's module only if Numba stores the code.
    """
    if may_keep_code():
        return bool(code_files(kernel))
    module, name = kernel.split(":")
    return is_in_numbas_cache(getattr(import_module(module), name))


def is_in_numbas_cache(kernel: Any) -> bool:
    """Whether Numba's cache has the function's current version. True if Numba stores no code."""
    cache = getattr(kernel.for_numba._cache, "_cache_file", None)
    return cache is None or bool(cache._load_index())


def report_if_compiling(note: Callable[[str], None], *kernels: str) -> None:
    """Report that kernels are being compiled, unless all ``kernels`` are compiled already."""
    if not all(map(is_compiled, kernels)):
        report_compiling(note)


def report_compiling(note: Callable[[str], None]) -> None:
    """Report that kernels are being compiled, but only once per process."""
    global _is_told
    if not _is_told:
        _is_told = True
        note(COMPILING)
