"""The command line: one module per command. ``options`` and ``output`` are shared by all commands.

No large library is imported before a command runs, so that ``--help`` answers at once. A command is
a function that returns its exit status. An error of ``lastwrite.errors`` is printed as one line on
standard error, and its status becomes the exit status.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType

_INTERRUPTED = 130  # Typer's exit status after Ctrl-C
_AGAIN_S = 0.05
# more objects than are created while a command's modules are loaded
_LOADED_OBJECTS = 150_000
# Parts of the names of source files. If a signal raises an exception in the code of such a file,
# the exception is lost, or a lock is not released.
_WHERE_NONE_MAY_COME = ("<frozen importlib", "/llvmlite/", "/logging/__init__.py")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line ``arguments`` (default: ``sys.argv``) and exit with its status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    _collect_no_modules()
    status, was_interrupted = _run(arguments)
    # Exclude all objects from the last garbage collection, which would take a quarter of a second.
    gc.freeze()
    if was_interrupted:
        # Exit with ``os._exit``. If Ctrl-C arrived during an ``exec``, such as the definition of a
        # dataclass, ``sys.exit`` would end the process by the signal instead of this status.
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


def _collect_no_modules() -> None:
    """Delay the first garbage collection until modules are loaded, and then freeze them.

    Modules are never garbage, and examining all of their objects takes 14 ms.
    """
    usual = gc.get_threshold()

    def has_collected(phase: str, _found: dict[str, int]) -> None:
        if phase == "stop":
            gc.callbacks.remove(has_collected)
            gc.freeze()
            gc.set_threshold(*usual)

    gc.callbacks.append(has_collected)
    gc.set_threshold(_LOADED_OBJECTS)


def run(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit status.

    0: success. 1: any other error. 2: wrong use. 3: damaged input. 4: the log is in use. 5: the
    verification failed.
    """
    return _run(arguments)[0]


def _run(arguments: Sequence[str]) -> tuple[int, bool]:
    """Run one command. Returns its exit status, and whether Ctrl-C ended it."""
    from lastwrite.cli.output import Output, report_failure

    # suppress logging: only libraries log, and Lastwrite reports problems as errors
    logging.disable(logging.CRITICAL)
    output = Output(as_json="--json" in arguments, lines=arguments[:1] in (["dump"], ["read"]))
    try:
        with deferred_interrupts():
            from lastwrite.cli.app import build_app

            status = build_app(output, *arguments[:1])(
                args=list(arguments), prog_name="lastwrite", standalone_mode=False
            )
        if status == _INTERRUPTED:
            return report_failure(output, KeyboardInterrupt()), True
        return status if isinstance(status, int) else 0, False
    except (Exception, KeyboardInterrupt) as error:
        return report_failure(output, error), isinstance(error, KeyboardInterrupt)
    finally:
        output.close()


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Make Ctrl-C end the code in this context, wherever the signal arrives.

    In some code the interrupt would be lost, or would leave a lock acquired. If it arrives there,
    it is raised again a moment later. Python drops an exception in a callback from C code, such as
    Numba's callbacks while a kernel is loaded. A Cython module drops an exception while it is
    imported. ``logging`` does not release its lock if the interrupt arrives before its ``try``.

    Only Python's default handler is replaced, not a handler of the caller. A signal that a
    background process ignores is still ignored.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    dropped_before = sys.unraisablehook

    def interrupt(_number: int, frame: FrameType | None) -> None:
        if _is_unsafe_frame(frame):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            raise KeyboardInterrupt

    def dropped(what: UnraisableHookArgs) -> None:
        if what.exc_type is KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        else:
            dropped_before(what)

    alarm_before = signal.signal(signal.SIGALRM, interrupt)
    sys.unraisablehook = dropped
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, alarm_before)
        sys.unraisablehook = dropped_before


def _is_unsafe_frame(frame: FrameType | None) -> bool:
    """Whether ``frame`` is called by an import, by LLVM or by the module ``logging``."""
    while frame is not None:
        if any(place in frame.f_code.co_filename for place in _WHERE_NONE_MAY_COME):
            return True
        frame = frame.f_back
    return False
