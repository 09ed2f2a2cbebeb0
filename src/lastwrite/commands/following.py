"""Select the implementation for a live cluster that an archive follows, by URL scheme."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from lastwrite.archive.following import FollowRequest, FollowResult
from lastwrite.archive.ingest import max_parallel
from lastwrite.commands.systems import KAFKA, PULSAR, ROCKETMQ
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.rules.live_settings import SCHEME as KAFKA_SCHEME
from lastwrite.model.work import Limits, Throttle
from lastwrite.pulsar.rules.live_settings import SCHEME as PULSAR_SCHEME
from lastwrite.reports.fetching import LogsFetched
from lastwrite.rocketmq.rules.live_settings import SCHEME as ROCKETMQ_SCHEME
from lastwrite.spark.memory import parse_bytes, plan_memory


class _Scheme(NamedTuple):
    system: str
    follow: Callable[[FollowRequest], FollowResult]


def _kafka(request: FollowRequest) -> FollowResult:
    from lastwrite.kafka.following import KafkaFollowResult  # imports network modules

    return KafkaFollowResult(request)


def _rocketmq(request: FollowRequest) -> FollowResult:
    if any(source.startswith(f"{ROCKETMQ_SCHEME}/") for source in request.sources):
        # the URL has a path, not a name server
        from lastwrite.rocketmq.following_copy import CopyFollowResult

        return CopyFollowResult(request)
    from lastwrite.rocketmq.following import RocketmqFollowResult  # imports network modules

    return RocketmqFollowResult(request)


def _pulsar(request: FollowRequest) -> FollowResult:
    from lastwrite.pulsar.following import PulsarFollowResult  # imports network modules

    return PulsarFollowResult(request)


_SCHEMES = {
    KAFKA_SCHEME: _Scheme(KAFKA, _kafka),
    ROCKETMQ_SCHEME: _Scheme(ROCKETMQ, _rocketmq),
    PULSAR_SCHEME: _Scheme(PULSAR, _pulsar),
}


def _scheme_of(sources: Sequence[str]) -> _Scheme:
    """The URL scheme that all sources have.

    Raises:
        InvalidConfig: the sources have different schemes, or an unsupported scheme.
    """
    found = {scheme for scheme in _SCHEMES if any(each.startswith(scheme) for each in sources)}
    if len(found) == 1 and all(each.startswith(tuple(found)) for each in sources):
        return _SCHEMES[found.pop()]
    strange = next((each for each in sources if not each.startswith(tuple(_SCHEMES))), None)
    raise InvalidConfig(
        "the sources belong to several systems"
        if strange is None
        else f"{strange} is not the address of a live cluster",
        remedy="give sources that begin with one of: "
        f"{', '.join(f'{scheme}…' for scheme in _SCHEMES)}",
    )


def system_of_sources(sources: Sequence[str]) -> str:
    """The system of the clusters at these URLs.

    Raises:
        InvalidConfig: the sources have different schemes, or an unsupported scheme.
    """
    return _scheme_of(sources).system


def open_followed(request: FollowRequest) -> FollowResult:
    """An object that follows the requested topics. No request is sent to the cluster yet.

    Raises:
        InvalidConfig: a URL or a setting is invalid.
        EnvironmentUnfit: the extra with the client library is not installed.
    """
    scheme = _scheme_of(request.sources)
    _reject_set_aside(request, scheme)
    return scheme.follow(request)


def fetch_once(request: FollowRequest) -> LogsFetched:
    """Fetch the requested topics once.

    Raises:
        InvalidConfig, NotALog, RemoteFailed: as ``fetch``.
    """
    scheme = _scheme_of(request.sources)
    _reject_set_aside(request, scheme)
    if scheme.system == KAFKA:
        from lastwrite.kafka.live import fetch_live  # imports network modules

        return fetch_live(request)
    from lastwrite.rocketmq.live import fetch_live as pull_live  # imports network modules

    return pull_live(request)


def _reject_set_aside(request: FollowRequest, scheme: _Scheme) -> None:
    if request.sets_aside and scheme.system != KAFKA:
        raise InvalidConfig(
            "--set-aside is only for a live Kafka cluster", remedy="leave out --set-aside"
        )
    if request.accepts_gap and request.sets_aside:
        raise InvalidConfig(
            "--accept-gap and --set-aside exclude each other", remedy="give only one of them"
        )


def limits_of(memory: str | int | None, rate: str | int | None) -> Limits:
    """The limits for fetching one partition: its share of ``memory``, and all partitions' rate.

    ``rate`` is a number of bytes per second, or a text such as ``50m``. None means no limit.

    Raises:
        InvalidConfig: ``memory`` or ``rate`` is not a size.
    """
    limits = plan_memory(memory, max_parallel()).limits()
    if rate is None:
        return limits
    with contextlib.suppress(InvalidConfig):
        if (bytes_a_second := parse_bytes(rate)) > 0:
            return replace(limits, reading=(Throttle("", bytes_a_second),))
    raise InvalidConfig(
        f"the rate {rate!r} is not a number of bytes",
        remedy="give --rate in bytes per second, such as 50m",
    )
