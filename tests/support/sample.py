"""Of many cases of one test: those that every CI runs, and the others by LASTWRITE_LONG=1."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

LONG = bool(os.environ.get("LASTWRITE_LONG"))


def some(cases: Iterable[Any], count: int) -> list[Any]:
    """All ``cases``, for ``parametrize``: ``count`` of them, spread evenly and with the first, run
    always, and the others are ``long``. A case with a ``name`` is called by it.
    """
    each = list(cases)
    always = {round(n * len(each) / count) for n in range(count)}
    return [
        pytest.param(
            case,
            id=getattr(case, "name", None),
            marks=() if n in always else pytest.mark.long,
        )
        for n, case in enumerate(each)
    ]
