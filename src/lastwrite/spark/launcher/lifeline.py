"""A pipe by which another process detects the end of this process, even after a crash."""

from __future__ import annotations

import os
import weakref


class Lifeline:
    """A pipe whose far end is in another process, which detects when the near end closes.

    The near end closes when this process ends. A fork of this process closes its copy of the near
    end at once.
    """

    far_end = _near_end = -1  # file descriptors; -1 until the pipe is created

    def __init__(self) -> None:
        self.far_end, self._near_end = os.pipe()
        _held.add(self)

    def hand_over(self) -> None:
        """Close the far end in this process, after the other process has inherited it."""
        far, self.far_end = self.far_end, -1
        if far >= 0:
            os.close(far)

    def send_line(self, text: bytes) -> None:
        """Write a line to the process at the far end of the pipe, if there is one."""
        try:
            os.write(self._near_end, text)
        except OSError:
            pass

    def close(self) -> None:
        """Close the near end of the pipe before this process ends."""
        near, self._near_end = self._near_end, -1
        if near >= 0:
            os.close(near)

    def __del__(self) -> None:
        self.hand_over()
        self.close()


_held: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _release() -> None:
    for line in list(_held):
        line.close()


os.register_at_fork(after_in_child=_release)
