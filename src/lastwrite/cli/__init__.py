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

_INTERRUPTED = 130  # what Typer makes of Ctrl-C
_AGAIN_S = 0.05


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line ``arguments`` (default: those of the process) and leave with its exit
    status.
    """
    status, was_interrupted = _run(sys.argv[1:] if arguments is None else arguments)
    # the interpreter need not look through all that was imported before it goes: a quarter second
    gc.freeze()
    if was_interrupted:
        # Where the interrupt met an ``exec``, as in a dataclass being made, Python would end by the
        # signal instead.
        atexit._run_exitfuncs()
        os._exit(status)
    sys.exit(status)


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
        from lastwrite.cli.app import build_app

        with interrupts_kept():
            status = build_app(output)(
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
    """Let Ctrl-C end what runs inside also where it meets a callback of C code, as Numba's while it
    loads a kernel: there Python drops an exception, and the command would go on to its end.
    """
    before, main_thread = sys.unraisablehook, threading.get_ident()
    waiting: list[threading.Timer] = []

    def again(dropped: UnraisableHookArgs) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            # By a signal, which also ends a wait; later, as here it would be dropped again.
            waiting.append(
                threading.Timer(_AGAIN_S, signal.pthread_kill, [main_thread, signal.SIGINT])
            )
            waiting[-1].start()
        else:
            before(dropped)

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before
        for timer in waiting:
            timer.cancel()
