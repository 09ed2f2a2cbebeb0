"""Files that a command did not change, or did not copy, as values that print as JSON."""

from __future__ import annotations

from typing import Final

from lastwrite.reports.document import FrozenDocument

UNKNOWN: Final = "Lastwrite does not recognize this file; check it before you start a broker"


class UntouchedFile(FrozenDocument, frozen=True):
    """A file or folder that a command did not change or copy, and why."""

    path: str
    why: str
