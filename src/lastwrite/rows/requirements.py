"""Check optional packages for Arrow columns, which ``pip install lastwrite`` does not install."""

from __future__ import annotations

from importlib.util import find_spec

from lastwrite.errors import missing_extra


def require_arrow() -> None:
    """Check that pyarrow is installed, before the import of a module that needs it.

    Raises:
        EnvironmentUnfit: pyarrow is missing.
    """
    if find_spec("pyarrow") is None:
        raise missing_extra("reading Arrow columns or decoded values", "pyarrow", "frames")
