"""Whether a path is RocketMQ's, without starting anything."""

from __future__ import annotations

from lastwrite.logstore.rocketmq.reading import locate

NAME = "rocketmq"


def is_rocketmq(path: str, system: str | None) -> bool:
    """Whether ``path`` is looked at as a RocketMQ store: by the name that was given, else by what lies there.

    Raises:
        InvalidConfig: no such system.
    """
    if system is None:
        return locate(path) is not None
    if system != NAME:
        from lastwrite.pipeline.system import system_named  # not before it is needed

        system_named(system)
    return system == NAME
