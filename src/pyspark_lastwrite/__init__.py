"""Spark finds ``format("lastwrite")`` by this package's name. It is imported in sessions of whoever
has installed lastwrite, so it costs nothing, and never raises.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "DefaultSource":
        from lastwrite.source.reader import DefaultSource

        return DefaultSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
