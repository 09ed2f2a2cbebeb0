"""Progress reports of long work, independent of where they are shown."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a long command: shown as bars on a terminal, lines in a log file, or
    not at all.
    """

    def stage(self, name: str, total_bytes: int) -> None:
        """Start a new stage, whose whole work is ``total_bytes``."""

    def advance(self, done_bytes: int) -> None:
        """Add ``done_bytes`` to the stage's finished work."""

    def note(self, text: str) -> None:
        """Show a sentence to the user."""


class NoProgress:
    """Discards all progress."""

    def stage(self, name: str, total_bytes: int) -> None:
        pass

    def advance(self, done_bytes: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass
