"""Compiled kernels that are out of date go before they are used.

Numba keeps what it compiled beside the sources and looks, for each kernel, only at its own file: a
kernel that has another file's function compiled into it would be taken from the cache after that
other file changed. An upgrade could so run half of two releases. Hence a digest of all our sources
lies beside the cache, and when it no longer matches, what was compiled is removed.
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
    """The folders whose modules hold kernels, or code and constants that are compiled into kernels
    of others.
    """
    return [_PACKAGE / name for name in _FOLDERS]


def drop_stale_kernels(folders: Iterable[Path] | None = None) -> bool:
    """Remove kernels that other sources were compiled into; returns whether any had to go.

    ``folders``: those of all kernels, if none are named.
    Where the folders cannot be written, Numba keeps its cache elsewhere and by the sources' times;
    nothing is done then.
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
    """Of all sources that kernels are made of, as they were when this process first looked."""
    return _digest_of(kernel_folders())


def _digest_of(folders: Iterable[Path]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for source in sorted(source for folder in folders for source in folder.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()


def maker() -> str:
    """What the machine code of kernels is made of and by: our sources, Numba and Python as they
    are here.
    """
    numba = find_spec("numba")
    made = numba.origin if numba is not None and numba.origin is not None else ""
    written_ns = os.stat(made).st_mtime_ns if made else 0
    return f"{_digest()} {made} {written_ns} {sys.version}"


@cache
def may_keep_code() -> bool:
    """Whether machine code is kept beside the sources: not where that folder cannot be written, nor
    where Numba is told how to compile or where to keep it, nor by a Python whose objects look
    otherwise.
    """
    is_told = any(name.startswith("NUMBA_") for name in os.environ)
    is_known = sys.implementation.name == "cpython" and object.__basicsize__ == 16
    return is_known and not is_told and os.access(_PACKAGE, os.W_OK)


def code_files(kernel: str) -> list[Path]:
    """The files of machine code kept for a kernel, given as ``lastwrite.module:name``, usable or
    not. Empty where the folder cannot be read, as after a process has given up its user's rights.
    """
    module, name = kernel.split(":")
    pattern = _code_file(module, f"{name}-*")
    with contextlib.suppress(OSError):
        return sorted(pattern.parent.glob(pattern.name))
    return []


def kept_code(module: str, name: str) -> bytes:
    """What ``keep_code`` kept; empty where there is nothing."""
    with contextlib.suppress(OSError):
        return _code_file(module, name).read_bytes()
    return b""


def keep_code(module: str, name: str, code: bytes) -> None:
    """Keep machine code beside its module's source, where that folder can be written."""
    file = _code_file(module, name)
    with contextlib.suppress(OSError):
        aside = file.with_name(f"{file.name}.{os.getpid()}")
        aside.write_bytes(code)
        aside.replace(file)


def _code_file(module: str, name: str) -> Path:
    *folders, source = module.split(".")[1:]
    return _PACKAGE.joinpath(*folders, "__pycache__", f"{source}.{name}.code")


def is_compiled(kernel: str) -> bool:
    """Whether the kernel, given as ``lastwrite.module:name``, is compiled; its module is loaded only
    where that is Numba's affair.
    """
    if may_keep_code():
        return bool(code_files(kernel))
    module, name = kernel.split(":")
    return is_in_numbas_cache(getattr(import_module(module), name))


def is_in_numbas_cache(kernel: Any) -> bool:
    """Whether Numba's cache has the jitted function as it is now; also where it cannot be kept
    anywhere.
    """
    cache = getattr(kernel.for_numba._cache, "_cache_file", None)
    return cache is None or bool(cache._load_index())


def tell_of_compiling(say: Callable[[str], None], *kernels: str) -> None:
    """Say why work that needs ``kernels``, and others beside them, takes long to begin this time."""
    if not all(map(is_compiled, kernels)):
        say_compiling(say)


def say_compiling(say: Callable[[str], None]) -> None:
    """Say that kernels are compiled, once a process: a command may need some in each of its steps."""
    global _is_told
    if not _is_told:
        _is_told = True
        say(COMPILING)
