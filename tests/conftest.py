"""Which tests run, and the profiles of Hypothesis.

``pytest`` without arguments runs no tests that need a broker, an oracle or more than ten seconds.
Of ``tests/system`` it only runs the command line's tests. They all run in CI, or if they are named.
Tests marked ``long`` also need LASTWRITE_LONG. HYPOTHESIS_PROFILE is ``dev`` (the default), ``ci``
or ``thorough``.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.sample import LONG

# CI draws the same few examples until a source changes. ``dev`` and ``thorough`` draw new ones.
# There are no deadlines, because the first call compiles a kernel and CI's two cores are shared.
settings.register_profile(
    "dev", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "ci", settings.get_profile("dev"), max_examples=20, print_blob=True, derandomize=True
)
settings.register_profile(
    "thorough", settings.get_profile("dev"), max_examples=5000, print_blob=True
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
)

SYSTEM = Path(__file__).parent / "system"
COMMAND_LINE = SYSTEM / "test_cli.py"
LEFT_OUT = ("broker", "oracle", "slow")
_is_short = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    # set by pytest_configure_node
    told: dict[str, Any] | None = getattr(config, "workerinput", None)
    config.stash[_is_short] = (
        told["is_short"]
        if told is not None
        else config.args_source is not pytest.Config.ArgsSource.ARGS
        and not config.option.markexpr
        and not os.environ.get("CI")
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the decision to a worker of pytest-xdist, whose arguments always name tests."""
    node.workerinput["is_short"] = node.config.stash[_is_short]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("long") and not LONG:
            item.add_marker(pytest.mark.skip(reason="long: LASTWRITE_LONG=1 runs it"))
        elif config.stash[_is_short] and (why := _why_not_short(item)):
            item.add_marker(pytest.mark.skip(reason=f"{why}: CI=1, or naming it, runs it"))
        is_of_processes = item.path.is_relative_to(SYSTEM) or any(
            item.get_closest_marker(marker) for marker in ("spark", "broker", "oracle")
        )
        if os.environ.get("CI") and is_of_processes:
            # real processes on a shared machine: failed tests run again, and the failure is
            # reported
            item.add_marker(pytest.mark.flaky(reruns=1))


def _why_not_short(item: pytest.Item) -> str | None:
    if item.path.is_relative_to(SYSTEM) and item.path != COMMAND_LINE:
        return "system"
    return next((marker for marker in LEFT_OUT if item.get_closest_marker(marker)), None)


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    """Show the failures of tests that passed when they ran again, so that they are investigated."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed at first: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    return (yield)
