"""Removes outdated compiled kernels before they are used.

Numba stores compiled code beside the sources and checks, for each kernel, only the kernel's own
file. After a change in another file whose function is compiled into the kernel, Numba would still
use its cache. An upgrade could thus run half of two releases. So a digest of all sources is stored
beside the cache, and if it no longer matches, the compiled code is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

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
    "kafka/format",
    "kafka/look",
    "kafka/old_format",
    "kafka/producers",
    "kafka/recovery",
    "rocketmq/format",
    "pulsar/format",
)
_STAMP = "kernels.digest"
_KINDS = ("*.nbi", "*.nbc", "*.code")
COMPILING = "compiling kernels (once)"
_is_told = False


def kernel_folders() -> list[Path]:
    """The folders whose modules contain kernels, or code and constants compiled into other kernels."""
    return [_PACKAGE / name for name in _FOLDERS]


def drop_stale_kernels(folders: Iterable[Path] | None = None) -> bool:
    """Remove kernels that were compiled from other sources, and return whether there were any.

    ``folders`` are by default those of all kernels. If the folders cannot be written, Numba stores
    its cache elsewhere and checks the sources' times, so nothing is done.
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
    """The digest of all sources of kernels, as they were when this process first read them."""
    return _digest_of(kernel_folders())


def _digest_of(folders: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for source in sorted(source for folder in folders for source in folder.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def maker() -> str:
    """The origin of the kernels' machine code: the sources, Numba and Python."""
    numba = find_spec("numba")
    made = numba.origin if numba is not None and numba.origin is not None else ""
    written_ns = os.stat(made).st_mtime_ns if made else 0
    return f"{_digest()} {made} {written_ns} {sys.version}"


@cache
def may_keep_code() -> bool:
    """Whether machine code may be stored beside the sources.

    It may not if that folder cannot be written, if the environment configures Numba, or if this
    Python has another object layout.
    """
    is_told = any(name.startswith("NUMBA_") for name in os.environ)
    is_known = sys.implementation.name == "cpython" and object.__basicsize__ == 16
    return is_known and not is_told and os.access(_PACKAGE, os.W_OK)


def code_files(kernel: str) -> list[Path]:
    """The files of machine code for a kernel, given as ``lastwrite.module:name``, usable or not.

    Empty if the folder cannot be read, for example after the process has dropped its user's rights.
    """
    module, name = kernel.split(":")
    pattern = _code_file(module, f"{name}-*")
    with contextlib.suppress(OSError):
        return sorted(pattern.parent.glob(pattern.name))
    return []


def kept_code(module: str, name: str) -> bytes:
    """The code stored by ``keep_code``; empty if there is none."""
    with contextlib.suppress(OSError):
        return _code_file(module, name).read_bytes()
    return b""


def keep_code(module: str, name: str, code: bytes) -> None:
    """Store machine code beside its module's source, if that folder can be written."""
    file = _code_file(module, name)
    with contextlib.suppress(OSError):
        aside = file.with_name(f"{file.name}.{os.getpid()}")
        aside.write_bytes(code)
        aside.replace(file)


def _code_file(module: str, name: str) -> Path:
    *folders, source = module.split(".")[1:]
    return _PACKAGE.joinpath(*folders, "__pycache__", f"{source}.{name}.code")


def is_compiled(kernel: str) -> bool:
    """Whether the kernel, given as ``lastwrite.module:name``, is compiled.

    Its module is loaded only if Numba stores the code.
    """
    if may_keep_code():
        return bool(code_files(kernel))
    module, name = kernel.split(":")
    return is_in_numbas_cache(getattr(import_module(module), name))


def is_in_numbas_cache(kernel: Any) -> bool:
    """Whether Numba's cache has the function in its current version, or cannot store anything."""
    cache = getattr(kernel.for_numba._cache, "_cache_file", None)
    return cache is None or bool(cache._load_index())


def tell_of_compiling(say: Callable[[str], None], *kernels: str) -> None:
    """Report that work will start late if ``kernels`` and others must be compiled first."""
    if not all(map(is_compiled, kernels)):
        say_compiling(say)


def say_compiling(say: Callable[[str], None]) -> None:
    """Report that kernels are being compiled, once per process, since each step may need some."""
    global _is_told
    if not _is_told:
        _is_told = True
        say(COMPILING)
