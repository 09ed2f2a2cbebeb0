"""Lastwrite keeps the last write of every key: topic compaction on Spark.

    import lastwrite
    report = lastwrite.plan("/var/lib/kafka", topic="orders")
    print(report.to_dict()["totals"])

The commands of ``lastwrite --help`` are these functions, with the same names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = [
    "clean",
    "compact",
    "cut",
    "dispatch",
    "dump",
    "explain",
    "export",
    "fetch",
    "follow",
    "groups",
    "inspect",
    "latest",
    "plan",
    "read",
    "release",
    "restore",
    "send",
    "serve",
    "settings",
    "sweep",
    "table",
    "table_to",
    "users",
    "verify",
    "verify_table",
]

_PLACES = {
    "clean": "lastwrite.cleaner.clean",
    "compact": "lastwrite.commands.compact",
    "cut": "lastwrite.rocketmq.jobs.cut",
    "dispatch": "lastwrite.rocketmq.jobs.dispatch",
    "plan": "lastwrite.commands.compact",
    "verify": "lastwrite.commands.verify",
    "inspect": "lastwrite.commands.inspect",
    "dump": "lastwrite.commands.dump",
    "explain": "lastwrite.commands.explain",
    "export": "lastwrite.rocketmq.look.export",
    "fetch": "lastwrite.commands.fetch",
    "follow": "lastwrite.cleaner.following",
    "groups": "lastwrite.commands.groups",
    "release": "lastwrite.commands.release",
    "restore": "lastwrite.commands.restore",
    "send": "lastwrite.rocketmq.network.send",
    "serve": "lastwrite.server.serve",
    "settings": "lastwrite.commands.settings",
    "sweep": "lastwrite.commands.sweep",
    "table": "lastwrite.commands.table",
    "table_to": "lastwrite.commands.table_to",
    "users": "lastwrite.server.accounts",
    "verify_table": "lastwrite.commands.verify_table",
    "latest": "lastwrite.commands.latest",
    "read": "lastwrite.commands.read",
}

if TYPE_CHECKING:
    from lastwrite.cleaner.clean import clean as clean
    from lastwrite.cleaner.following import follow as follow
    from lastwrite.commands.compact import compact as compact
    from lastwrite.commands.compact import plan as plan
    from lastwrite.commands.dump import dump as dump
    from lastwrite.commands.explain import explain as explain
    from lastwrite.commands.fetch import fetch as fetch
    from lastwrite.commands.groups import groups as groups
    from lastwrite.commands.inspect import inspect as inspect
    from lastwrite.commands.latest import latest as latest
    from lastwrite.commands.read import read as read
    from lastwrite.commands.release import release as release
    from lastwrite.commands.restore import restore as restore
    from lastwrite.commands.settings import settings as settings
    from lastwrite.commands.sweep import sweep as sweep
    from lastwrite.commands.table import table as table
    from lastwrite.commands.table_to import table_to as table_to
    from lastwrite.commands.verify import verify as verify
    from lastwrite.commands.verify_table import verify_table as verify_table
    from lastwrite.rocketmq.jobs.cut import cut as cut
    from lastwrite.rocketmq.jobs.dispatch import dispatch as dispatch
    from lastwrite.rocketmq.look.export import export as export
    from lastwrite.rocketmq.network.send import send as send
    from lastwrite.server.accounts import users as users
    from lastwrite.server.serve import serve as serve


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])


def __getattr__(name: str) -> Any:
    """Import a function at its first use, so that ``import lastwrite`` takes no time."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
