"""``njit`` declares a kernel that is loaded or compiled at its first call.

In each process, Numba needs 45 MiB, a third of a second of processor time for its import, and
another third before the first kernel runs. Modules with kernels therefore do not import Numba.
``machine_code`` stores the kernels' machine code beside Numba's cache, and calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from threading import RLock
from types import CodeType, FunctionType, ModuleType
from typing import Any

from lastwrite.encoding.kernel_cache import may_keep_code
from lastwrite.errors import EnvironmentUnfit

_PACKAGE = __name__.partition(".")[0]
# Only one thread at a time creates kernels. Another thread could otherwise call a kernel before the
# functions that it calls exist. The lock is reentrant, because a kernel may call itself.
making = RLock()


def njit(**options: Any) -> Callable[[Any], Any]:
    """Declare a kernel like ``numba.njit``. The kernel is compiled or loaded at its first call."""
    return lambda function: Kernel(function, options)


def intrinsic(function: Any) -> Any:
    """Declare an intrinsic as ``numba.extending.intrinsic`` does.

    Numba is imported only when a kernel is compiled.
    """
    return Intrinsic(function)


class LazyModule:
    """A module that is imported when one of its attributes is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


class Intrinsic:
    def __init__(self, function: Any) -> None:
        self._function = function
        self._compiled: Any = None

    @property
    def for_numba(self) -> Any:
        with making:
            if self._compiled is None:
                self._compiled = import_module("numba.extending").intrinsic(self._function)
            return self._compiled


class Kernel:
    """A function that is compiled and runs as machine code."""

    def __init__(self, function: FunctionType, options: dict[str, Any]) -> None:
        self.function = function
        self._options = options
        self._compiled: dict[str, Any] = {}
        self._run: Callable[..., Any] = self._first
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(self, name, getattr(function, name))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._run(*arguments, **named)

    def __reduce__(self) -> str:
        return self.function.__qualname__

    @property
    def for_numba(self) -> Any:
        """Numba's own dispatcher for the kernel's function, which Python can call."""
        return self._dispatcher("")

    @property
    def for_kernels(self) -> Any:
        """Numba's dispatcher for calls from kernels and machine code, not from Python.

        Numba then compiles no conversion of Python's arguments, a sixth of its work.
        """
        return self._dispatcher("_inner", no_cpython_wrapper=True, no_cfunc_wrapper=True)

    def _dispatcher(self, suffix: str, **options: Any) -> Any:
        """Numba's dispatcher with these additional options. Its cached code has ``suffix``.

        The kernels that the function calls are replaced by their dispatchers, because Numba does
        not accept ``Kernel`` objects.
        """
        with making:
            if suffix not in self._compiled:
                known = {"__name__": self.function.__module__}
                twin = FunctionType(
                    self.function.__code__,
                    known,
                    self.function.__name__,
                    self.function.__defaults__,
                    self.function.__closure__,
                )
                twin.__qualname__ = self.function.__qualname__ + suffix
                self._compiled[suffix] = _declare(twin, self._options | options)
                # replaced after ``_compiled`` is set, because a kernel may call itself
                known |= _for_numba(self.function.__globals__, set(_names(self.function.__code__)))
            return self._compiled[suffix]

    def _first(self, *arguments: Any, **named: Any) -> Any:
        if may_keep_code():
            self._run = import_module("lastwrite.encoding.machine_code").CodeOf(self)
        else:
            self._run = self.for_numba
        return self._run(*arguments, **named)


def _declare(function: FunctionType, options: dict[str, Any]) -> Any:
    """Numba's dispatcher for ``function``.

    Raises:
        EnvironmentUnfit: Numba has no folder for compiled kernels.
    """
    try:
        return import_module("numba").njit(**options)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        raise EnvironmentUnfit(
            "compiled kernels cannot be stored: neither the folder of the package nor the user's "
            "cache can be written to",
            remedy="set NUMBA_CACHE_DIR or XDG_CACHE_HOME to a folder that can be written to",
        ) from error


def _for_numba(given: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """The values of the global ``names`` in ``given``, in the form that Numba compiles.

    Kernels and intrinsics, also in modules, are replaced by Numba's own objects.
    """
    found: dict[str, Any] = {}
    for name in names & given.keys():
        value = found[name] = given[name]
        if isinstance(value, Kernel):
            found[name] = value.for_kernels
        elif isinstance(value, Intrinsic):
            found[name] = value.for_numba
        elif isinstance(value, ModuleType) and value.__name__.startswith(f"{_PACKAGE}."):
            found[name] = ModuleType(value.__name__)
            found[name].__dict__.update(_for_numba(vars(value), names))
    return found


def _names(code: CodeType) -> Iterator[str]:
    """The global names that a function and its inner functions use."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)
