"""Retries of requests whose connection breaks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from lastwrite.errors import RemoteFailed
from lastwrite.model.attempts import pause_s
from lastwrite.pulsar.network.link import PulsarConnectionBroken

T = TypeVar("T")


def go_on() -> None:
    """A ``check`` for ``retry_disconnects`` that never ends the work."""


def retry_disconnects(
    ask: Callable[[], T], seconds: float, what: str, check: Callable[[], None] = go_on
) -> T:
    """The result of ``ask``, which is called again if its connection breaks.

    Calls are repeated for at most ``seconds``. If there is no result in that time, the error's
    message begins with ``what``. ``check`` is called before each call, and raises to end the work.

    Raises:
        RemoteFailed: there was no result in that time, or ``ask`` failed for another reason.
    """
    begin_s, tries = time.monotonic(), 0
    while True:
        check()
        try:
            return ask()
        except PulsarConnectionBroken as error:
            waited_s = time.monotonic() - begin_s
            if not seconds:
                raise
            if waited_s >= seconds:
                raise RemoteFailed(
                    f"{what} for {waited_s:.0f} s: {error.problem}",
                    path=error.path,
                    remedy="check the network and the bookies, then run the command again; "
                    "default.api.timeout.ms sets how long Lastwrite waits",
                ) from error
        time.sleep(pause_s(tries))
        tries += 1
