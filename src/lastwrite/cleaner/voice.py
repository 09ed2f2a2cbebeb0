"""How a daemon speaks: events as they come, and what stays true for long only once."""

from __future__ import annotations

from collections.abc import Callable

from lastwrite.cleaner.events import Event, Note


class Voice:
    """Hands events to ``tell``, in the thread that calls; ``now_ms`` is the clock of what it says itself."""

    def __init__(self, tell: Callable[[Event], None], now_ms: Callable[[], int]) -> None:
        self.tell = tell
        self._now_ms = now_ms
        self._said: dict[str, str] = {}

    def note(self, text: str) -> None:
        self.tell(Note(time_ms=self._now_ms(), text=text))

    def say_once(self, about: str, text: str | None) -> None:
        """Say ``text`` if it was not the last that was said about it; None: all is well again."""
        if text is None:
            self._said.pop(about, None)
        elif self._said.get(about) != text:
            self._said[about] = text
            self.note(text)
