"""The command line: one file a command, and what they share in ``options`` and ``output``.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once. A command is a
function that returns its exit status; an error of ``lastwrite.errors`` becomes one line on standard
error and that error's status.
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

_INTERRUPTED = 130  # what Typer makes of Ctrl-C
_AGAIN_S = 0.05
_LOADED_OBJECTS = 150_000  # more than a command has when its modules are loaded
# In the names of files: where an exception is dropped, or leaves a lock that all threads need.
_WHERE_NONE_MAY_COME = ("<frozen importlib", "/llvmlite/", "/logging/__init__.py")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line ``arguments`` (default: those of the process) and leave with its exit
    status.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    _collect_no_modules()
    status, was_interrupted = _run(arguments)
    # the interpreter need not look through all that was imported before it goes: a quarter second
    gc.freeze()
    if was_interrupted:
        # Where the interrupt met an ``exec``, as in a dataclass being made, Python would end by the
        # signal instead.
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


def _collect_no_modules() -> None:
    """Let garbage be collected for the first time when modules are loaded, and never among them:
    they stay, and to look through all of them takes 14 ms.
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
    """Run one command and return its exit status: 0 done, 2 wrong use, 3 damaged, 4 held, 5
    unproven, 1 else.
    """
    return _run(arguments)[0]


def _run(arguments: Sequence[str]) -> tuple[int, bool]:
    """The command's exit status, and whether Ctrl-C ended it."""
    from lastwrite.cli.output import Output, report_failure

    logging.disable(
        logging.CRITICAL
    )  # libraries' logs; what a user has to know comes as an error of ours
    output = Output(as_json="--json" in arguments, lines=arguments[:1] in (["dump"], ["read"]))
    try:
        with interrupts_kept():
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
def interrupts_kept() -> Iterator[None]:
    """Let Ctrl-C end what runs inside wherever it comes: not where it would be dropped or leave a
    lock behind, but a moment later.

    Python drops an exception that a callback of C code raises, as Numba's do while it loads a
    kernel, and a module of Cython drops one while it is imported; ``logging`` keeps its lock where
    one comes before its ``try``. Ours alone is changed: a caller's own handler, or none in the
    background, stays.
    """
    is_ours = threading.current_thread() is threading.main_thread()
    if not is_ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    dropped_before = sys.unraisablehook

    def interrupt(_number: int, frame: FrameType | None) -> None:
        if _is_no_place(frame):
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


def _is_no_place(frame: FrameType | None) -> bool:
    """Whether a module is being imported, a logger looked up, or LLVM at work, where ``frame``
    stands.
    """
    while frame is not None:
        if any(place in frame.f_code.co_filename for place in _WHERE_NONE_MAY_COME):
            return True
        frame = frame.f_back
    return False
