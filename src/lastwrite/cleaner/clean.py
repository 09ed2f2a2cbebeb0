"""``clean``: log roots and settings in, a running cleaner out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from lastwrite.cleaner.events import Event, Note
from lastwrite.cleaner.live import LiveCleaner, topics_in
from lastwrite.cleaner.loop import Cleaner
from lastwrite.cleaner.metrics import Metrics, MetricsServer
from lastwrite.cleaner.rounds import Rounds
from lastwrite.cleaner.settings import SettingsSource
from lastwrite.compaction.pulsar_live_settings import SCHEME, LiveConfig, rules_of
from lastwrite.errors import InvalidConfig, LogError, NotALog
from lastwrite.model.progress import NoProgress
from lastwrite.pipeline.kafka import KafkaSystem
from lastwrite.pipeline.system import System, system_named

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastwrite.pipeline.inline import Inline


def clean(
    roots: Sequence[str],
    config: Mapping[str, object] | Callable[[], Mapping[str, object]] | None = None,
    config_file: str | None = None,
    once: bool = False,
    threads: int | None = None,
    memory: str | int | None = None,
    spark: SparkSession | Inline | None = None,
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    tell: Callable[[Event], None] = lambda event: None,
    started: Callable[[Cleaner | LiveCleaner], None] = lambda cleaner: None,
    keep_scans: bool = False,
    system: str | None = None,
    archive: str | None = None,
) -> int:
    """Keep the log roots clean until asked to stop, or with ``once`` until nothing is due.

    Args:
        roots: log roots, as a broker's ``log.dirs``; or RocketMQ stores; or archives of Pulsar's topics; or
            topics of a live cluster, ``persistent://…``.
        system: that wrote them, all of them; None: the one whose files lie there.
        config: settings under upstream's names, or a function that reads them anew.
        config_file: the file that this function reads; it is called again when the file changes.
        threads: how many waves of rounds at once; None: the setting ``log.cleaner.threads``.
        memory, spark, master, conf: as for ``compact``; a session of our own starts with the first round.
        metrics_port: where to answer ``GET /metrics``; 0: any port that is free, which a note then names.
        tell: hears what happens.
        keep_scans, archive: as for ``compact``.
        started: gets the cleaner before it begins; its ``ask_to_stop`` may be called from anywhere.

    Returns:
        The exit status: 0; with ``once`` 1, 3 or 4 where partitions failed, are damaged, or are held elsewhere.

    Raises:
        NotALog, InvalidConfig: nothing was begun.
        EnvironmentUnfit: Java or Spark is missing, and a round is due.
    """
    live = [root for root in roots if root.startswith(SCHEME)]
    if live and (len(live) < len(roots) or system not in (None, "pulsar")):
        raise InvalidConfig(
            "topics of a live cluster and folders", remedy="start a daemon for each"
        )
    if archive is not None and not live:
        raise InvalidConfig(
            "--archive is for topics of a live cluster", remedy="give persistent://… as the roots"
        )
    folders = (
        topics_in(roots) if live else list(dict.fromkeys(os.path.abspath(root) for root in roots))
    )
    found = system_named("pulsar") if live else _system_of(folders, system)
    read = config if callable(config) else lambda: config or {}
    source = SettingsSource(found, read, config_file, rules_of if live else dict)
    if keep_scans and not found.keeps_scans:
        raise InvalidConfig(
            f"{found.name} suffers no file of ours beside its own", remedy="leave out --keep-scans"
        )
    if live:
        LiveConfig.from_names(source.current.names)
    else:
        for root in folders:
            _check_root(found, root, source.current.names)
    metrics = Metrics(folders, _now_ms)
    with ExitStack() as stack:
        if metrics_port is not None:
            server = MetricsServer(metrics, metrics_host, metrics_port)
            stack.callback(server.close)
            tell(
                Note(
                    time_ms=_now_ms(),
                    text=f"metrics on http://{metrics_host}:{server.port}/metrics",
                )
            )
        rounds = Rounds(found, spark, master, memory, conf or {}, NoProgress(), keep_scans)
        cleaner: Cleaner | LiveCleaner
        if live:
            cleaner = LiveCleaner(folders, source, rounds, metrics, tell, _now_ms, archive)
        else:
            cleaner = Cleaner(found, folders, source, rounds, metrics, tell, threads, _now_ms)
        started(cleaner)
        return cleaner.run(once)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _system_of(roots: Sequence[str], name: str | None) -> System:
    """The system of all roots.

    Raises:
        NotALog: a root is no folder.
        InvalidConfig: not all are of one system.
    """
    for root in roots:
        if not os.path.isdir(root):
            raise NotALog(
                "no such folder",
                path=root,
                remedy="give a log root: a folder of <topic>-<partition> folders",
            )
    systems = {root: system_named(name, root) for root in roots}
    names = {system.name for system in systems.values()}
    if len(names) > 1:
        said = ", ".join(f"{root} is of {system.name}" for root, system in systems.items())
        raise InvalidConfig(
            f"roots of several systems: {said}", remedy="start a daemon for each system"
        )
    system = systems[roots[0]]
    return KafkaSystem(metadata_roots=roots) if isinstance(system, KafkaSystem) else system


def _check_root(system: System, root: str, names: Mapping[str, object]) -> None:
    """Refuse what is no log root, and one of whose partitions nobody says whether they are compacted."""
    try:
        partitions = system.find(root, None, None)
    except NotALog:
        return  # an empty root may fill
    if partitions[0] == root != system.root_of(root):
        raise NotALog(
            "a partition's folder, not a log root",
            path=root,
            remedy=f"give {os.path.dirname(root)}",
        )
    try:
        is_known = any(system.is_policy_known(folder, names) for folder in partitions)
    except LogError:
        return  # of a damaged metadata log every look will tell
    if not is_known:
        raise InvalidConfig(
            "nothing says which of these topics are compacted",
            path=root,
            remedy=system.policy_remedy,
        )
