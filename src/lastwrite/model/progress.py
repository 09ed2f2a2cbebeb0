"""How long work tells of itself, without knowing whether a person, a file or nobody listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives what a long command does; a terminal shows bars, a log file lines, a library
    nothing.
    """

    def stage(self, name: str, total_bytes: int) -> None:
        """A new stage begins; ``total_bytes`` is its whole work."""

    def advance(self, done_bytes: int) -> None:
        """``done_bytes`` more of the stage's work are done."""

    def note(self, text: str) -> None:
        """A sentence worth reading."""


class NoProgress:
    """Tells nobody."""

    def stage(self, name: str, total_bytes: int) -> None:
        pass

    def advance(self, done_bytes: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass
