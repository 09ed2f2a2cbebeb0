"""Lastwrite keeps the last write of every key: topic compaction on Spark.

    import lastwrite
    report = lastwrite.plan("/var/lib/kafka", topic="orders")
    print(report.to_dict()["totals"])

The commands of ``lastwrite --help`` are these functions, with the same words.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PLACES = {
    "clean": "lastwrite.cleaner.clean",
    "compact": "lastwrite.pipeline.compact",
    "dispatch": "lastwrite.pipeline.dispatch",
    "plan": "lastwrite.pipeline.compact",
    "verify": "lastwrite.audit.verify",
    "inspect": "lastwrite.audit.inspect",
    "dump": "lastwrite.audit.dump",
    "explain": "lastwrite.audit.explain",
    "export": "lastwrite.serving.export",
    "fetch": "lastwrite.pipeline.fetch",
    "release": "lastwrite.pipeline.release",
    "restore": "lastwrite.pipeline.restore",
    "send": "lastwrite.remote.rocketmq.send",
    "latest": "lastwrite.serving.latest",
    "read": "lastwrite.serving.read",
}

if TYPE_CHECKING:
    from lastwrite.audit.dump import dump as dump
    from lastwrite.audit.explain import explain as explain
    from lastwrite.audit.inspect import inspect as inspect
    from lastwrite.audit.verify import verify as verify
    from lastwrite.cleaner.clean import clean as clean
    from lastwrite.pipeline.compact import compact as compact
    from lastwrite.pipeline.compact import plan as plan
    from lastwrite.pipeline.dispatch import dispatch as dispatch
    from lastwrite.pipeline.fetch import fetch as fetch
    from lastwrite.pipeline.release import release as release
    from lastwrite.pipeline.restore import restore as restore
    from lastwrite.remote.rocketmq.send import send as send
    from lastwrite.serving.export import export as export
    from lastwrite.serving.latest import latest as latest
    from lastwrite.serving.read import read as read


def __getattr__(name: str) -> Any:
    """The functions, imported when first asked for: ``import lastwrite`` must cost nothing."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "clean",
    "compact",
    "dispatch",
    "dump",
    "explain",
    "export",
    "fetch",
    "inspect",
    "latest",
    "plan",
    "read",
    "release",
    "restore",
    "send",
    "verify",
]
