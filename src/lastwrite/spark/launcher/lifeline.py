"""A pipe by which another process sees that this one has ended, however it ended."""

from __future__ import annotations

import os
import weakref


class Lifeline:
    """The near end is held here and nowhere else: a forked copy of this process lets go of it at
    once.
    """

    far_end = _near_end = -1  # until there is a pipe

    def __init__(self) -> None:
        self.far_end, self._near_end = os.pipe()
        _held.add(self)

    def hand_over(self) -> None:
        """The other process has the far end."""
        far, self.far_end = self.far_end, -1
        if far >= 0:
            os.close(far)

    def tell(self, text: bytes) -> None:
        """Write a line to whoever holds the far end; nobody may be left."""
        try:
            os.write(self._near_end, text)
        except OSError:
            pass

    def close(self) -> None:
        """End it before this process ends."""
        near, self._near_end = self._near_end, -1
        if near >= 0:
            os.close(near)

    def __del__(self) -> None:
        self.hand_over()
        self.close()


_held: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _let_go() -> None:
    for line in list(_held):
        line.close()


os.register_at_fork(after_in_child=_let_go)
