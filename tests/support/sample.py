"""Selects the cases of a test that every CI run executes. ``LASTWRITE_LONG=1`` runs all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

LONG = bool(os.environ.get("LASTWRITE_LONG"))


def some(cases: Iterable[Any], count: int) -> list[Any]:
    """All ``cases`` for ``parametrize``, of which all but ``count`` are marked ``long``.

    The unmarked ones are spread evenly, and include the first. A case's ``name`` is its id.
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
