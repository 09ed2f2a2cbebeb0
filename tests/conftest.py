"""How hard Hypothesis tries: HYPOTHESIS_PROFILE is ``dev`` (the default), ``ci`` or ``thorough``.
And tests marked ``long``, which run where LASTWRITE_LONG is set."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# CI draws the same examples each time, so more of them prove nothing new: ``thorough`` draws others.
# No deadlines: the first call of a kernel compiles it, and CI's two cores are shared.
settings.register_profile(
    "dev", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("ci", settings.get_profile("dev"), print_blob=True, derandomize=True)
settings.register_profile(
    "thorough", settings.get_profile("dev"), max_examples=5000, print_blob=True
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not os.environ.get("LASTWRITE_LONG"):
        for item in items:
            if item.get_closest_marker("long"):
                item.add_marker(pytest.mark.skip(reason="long: LASTWRITE_LONG=1 runs it"))
