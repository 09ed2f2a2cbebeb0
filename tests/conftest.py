"""How hard Hypothesis tries: HYPOTHESIS_PROFILE is ``dev`` (the default), ``ci`` or ``thorough``."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# No deadlines: the first call of a kernel compiles it, and CI's two cores are shared.
settings.register_profile("dev", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), max_examples=100, print_blob=True, derandomize=True)
settings.register_profile("thorough", settings.get_profile("dev"), max_examples=5000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))
