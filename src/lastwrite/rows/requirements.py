"""Packages that rows of columns need, and that ``pip install lastwrite`` alone does not bring."""

from __future__ import annotations

from importlib.util import find_spec

from lastwrite.errors import EnvironmentUnfit


def require_arrow() -> None:
    """Check for pyarrow before a module that imports it is imported.

    Raises:
        EnvironmentUnfit: it is missing.
    """
    if find_spec("pyarrow") is None:
        raise EnvironmentUnfit(
            "columns of Arrow and decoded values need pyarrow",
            remedy="pip install 'lastwrite[frames]'",
        )
