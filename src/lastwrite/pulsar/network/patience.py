"""How long conversations that break are begun again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from lastwrite.errors import RemoteFailed
from lastwrite.pulsar.network.link import ConnectionBroken

T = TypeVar("T")

_FIRST_AGAIN_S, _AGAIN_S = 0.01, 0.1


def until_whole(ask: Callable[[], T], seconds: float, what: str) -> T:
    """The result of ``ask``, which is tried again for ``seconds`` while its connection breaks.
    ``what``: a sentence about the result that does not come.

    Raises:
        RemoteFailed: it did not come in that time, or not for another reason.
    """
    begin_s, tries = time.monotonic(), 0
    while True:
        try:
            return ask()
        except ConnectionBroken as error:
            waited_s = time.monotonic() - begin_s
            if not seconds:
                raise
            if waited_s >= seconds:
                raise RemoteFailed(
                    f"{what} for {waited_s:.0f} s: {error.problem}",
                    path=error.path,
                    remedy="see to the network and the bookies, and run the same command again; "
                    "default.api.timeout.ms is how long it waits",
                ) from error
        time.sleep(min(_FIRST_AGAIN_S * 2**tries, _AGAIN_S))
        tries = min(tries + 1, 10)
