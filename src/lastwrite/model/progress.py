"""Report the progress of long work, independently of its display."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives the progress of a long command, and shows it as bars, as log lines or not at all."""

    def stage(self, name: str, total_bytes: int) -> None:
        """Start a new stage with ``total_bytes`` of work."""

    def advance(self, done_bytes: int) -> None:
        """Add ``done_bytes`` to the finished work of the current stage."""

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
