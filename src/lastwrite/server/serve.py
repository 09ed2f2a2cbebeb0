"""``serve``: start a server through which Kafka clients read logs and archives."""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

from lastwrite.archive.layout import systems_at
from lastwrite.archive.partition_store import read_versioned_manifest
from lastwrite.commands.metrics_page import serve_metrics
from lastwrite.commands.systems import KAFKA, system_of
from lastwrite.config.address import parse_address
from lastwrite.config.stores import is_of_stores, store_settings
from lastwrite.config.system import SettingSources
from lastwrite.encoding.compression import Codec
from lastwrite.engine.system import system_named
from lastwrite.errors import EnvironmentUnfit, InvalidConfig, LogError, NotALog
from lastwrite.kafka.cluster.commits import Commit
from lastwrite.kafka.cluster.commits import GroupPartition as Position
from lastwrite.kafka.network.messages import schema
from lastwrite.kafka.rules.serve_settings import MECHANISMS, ServeConfig, serve_config
from lastwrite.kafka.store import archived, tiered
from lastwrite.kafka.store.positions import OffsetRetention, positions_in
from lastwrite.kafka.system import KafkaSystem
from lastwrite.server.authorized_catalog import AuthorizedCatalog
from lastwrite.server.catalog import Catalog, ServedSource, cluster_id_of
from lastwrite.server.cluster_files import ClusterFiles
from lastwrite.server.config_handlers import configured_settings
from lastwrite.server.copy_store import CopyStore
from lastwrite.server.files import Files
from lastwrite.server.group_handlers import Coordinator
from lastwrite.server.groups import Groups
from lastwrite.server.handlers import ServerContext, ServerIdentity
from lastwrite.server.listener import ServeLimits, Server
from lastwrite.server.listener_security import ListenerSecurity, reloading_tls, reloading_users
from lastwrite.server.materialized import CopyPolicy, MaterializedPartition
from lastwrite.server.metrics import ServerMetrics
from lastwrite.server.offsets import UNREAD_REMEDY, Offsets
from lastwrite.spark.memory import parse_bytes
from lastwrite.storage.objects.address import is_address, real_path, use

_CACHE_BYTES = 128 << 20
_COPIES_BYTES = "10g"
_COPIES_AT_ONCE = 2
_TICK_S = 1.0


class RunningServer:
    """A running server. ``address`` is the ``HOST:PORT`` that clients connect to."""

    def __init__(self, address: str, server: Server, catalog: Catalog, stack: ExitStack) -> None:
        self.address = address
        self.topics = catalog.names()
        self._server = server
        self._stack = stack
        self._is_over = threading.Event()

    def run(self) -> None:
        """Serve until ``close`` is called."""
        try:
            self._server.run()
        finally:
            self.close()

    def close(self) -> None:
        """Stop serving. A signal handler may call it, and calling it twice is safe."""
        if not self._is_over.is_set():
            self._is_over.set()
            self._server.close()
            self._stack.close()

    def is_over(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for the server to close. Returns whether it is closed."""
        return self._is_over.wait(seconds)

    def __enter__(self) -> RunningServer:
        threading.Thread(target=self.run, daemon=True, name="serve").start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(
    path: str | Sequence[str],
    *,
    topic: str | Sequence[str] | None = None,
    listen: str = "127.0.0.1:9092",
    advertise: str | None = None,
    state: str | None = None,
    config: Mapping[str, object] | None = None,
    system: str | None = None,
    metadata: str | None = None,
    cache: str | int | None = None,
    users: str | None = None,
    copies: str | int | None = None,
    compression: str = "none",
    is_compacted: bool = False,
    is_open: bool = False,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
    tell: Callable[[str], None] = lambda text: None,
) -> RunningServer:
    """Serve the topics at ``path`` to Kafka clients, as a broker would.

    Args:
        path: Kafka log directories, RocketMQ stores, folders of Pulsar topics, and archives of
            any of them; folders or ``s3://bucket/prefix``.
        topic: names or shell patterns. None means all topics.
        listen: ``HOST:PORT`` to bind. Port 0 means any free port.
        advertise: ``HOST:PORT`` that clients connect to, if it differs from ``listen``.
        state: a folder for the server's own use, with the committed offsets of groups. None means
            a folder below ``$XDG_STATE_HOME/lastwrite`` that is specific to these paths.
        config: access to object stores; TLS and client limits, by the names of Kafka's broker
            settings (``ssl.certificate.location``, ``max.connections``, …).
        system: ``automq`` if ``path`` is a bucket of AutoMQ, which needs ``metadata``. It is served
            as it was when the server started. None means: detect the system from the files.
        metadata: the metadata of the Kafka cluster: a log root, or a copy of its
            ``__cluster_metadata-0``.
        cache: memory for cached blocks of object stores, such as ``"256m"``. None means 128 MiB.
        users: a file of users and their permissions, as ``lastwrite users`` writes it. None
            means that every client may read everything.
        copies: disk space below ``state`` for converted and compacted copies, like ``"20g"``. None
            means 10 GiB. The least recently used copies are deleted first.
        compression: for the batches that other systems' topics are converted to, ``none`` or
            ``lz4``.
        is_compacted: serve topics as if they were compacted: the last write of every key below
            the current end offset, then the tail.
        is_open: allow listening beyond this machine without TLS and users.
        metrics_port: port of ``GET /metrics``. 0 means any free port, which ``tell`` reports.
            None means no metrics endpoint.
        metrics_host: address of the metrics endpoint.
        tell: is called with each message for the operator.

    Returns:
        The server, which already listens. ``run`` serves clients; as a context manager, the server
        serves them in a thread.

    Raises:
        NotALog: no topic is found at ``path``.
        InvalidConfig: ``listen`` requires TLS and users, or ``is_open``; or a setting or the users
            file is invalid.
        EnvironmentUnfit: kio is not installed, or the port is taken.
        LogHeld: another server uses the state folder.
        LogError: the state cannot be written, or is damaged.
    """
    paths = [real_path(each) for each in ([path] if isinstance(path, str) else path)]
    names = [topic] if isinstance(topic, str) else list(topic or ())
    schema("metadata", 0)  # raise the error now if kio is not installed
    use(store_settings(config))
    sources = [
        ServedSource(each, system_named(name))
        for each in paths
        for name in _systems_at(each, system, metadata)
    ]
    settings = serve_config(config)
    host, port = _bound(listen)
    door = _security(settings, users, host, is_open, tell)
    with ExitStack() as stack:
        files = Files(_CACHE_BYTES if cache is None else parse_bytes(cache))
        stack.callback(files.close)
        cluster_id = cluster_id_of(paths)
        state = state or _state_of(cluster_id)
        offsets = Offsets(state)
        stack.callback(offsets.close)
        for unread in offsets.unread:
            tell(f"{state}: {unread}")
        threads = ThreadPoolExecutor(_COPIES_AT_ONCE, "copies")
        stack.callback(threads.shutdown, wait=False, cancel_futures=True)
        making = CopyPolicy(
            CopyStore(os.path.join(state, "copies"), parse_bytes(copies or _COPIES_BYTES)),
            threads,
            _codec(compression),
            is_compacted,
            _of_logs(config or {}),
            tell,
        )
        catalog = Catalog(sources, names, files, making.partition, tell)
        stack.callback(catalog.close)
        offsets.start_from(list(_fetched_commits(catalog)), time.time_ns() // 1_000_000)
        _continue_groups(
            offsets,
            paths,
            lambda topic: not names or catalog.topic(topic) is not None,
            settings,
            tell,
        )
        listener = stack.enter_context(_listening(host, port))
        bound = listener.getsockname()[1]
        shown = parse_address(advertise) if advertise else (host, bound)
        identity = ServerIdentity(shown[0], shown[1], cluster_id)
        groups = Groups(time.monotonic, catalog.numbers)
        told = SettingSources(roots=tuple(p for p in paths if not is_address(p)), metadata=metadata)
        allowed = AuthorizedCatalog(catalog)
        metrics = ServerMetrics(tell)
        server = Server(
            listener,
            door,
            ServerContext(
                allowed,
                identity,
                KafkaSystem(told),
                ClusterFiles(told.roots, metadata),
                configured_settings(config or {}, told.roots),
            ),
            Coordinator(allowed, identity, groups, offsets),
            files,
            _limits(settings),
            metrics,
        )
        metrics.watch(server.connections, groups, offsets, catalog)
        serve_metrics(stack, metrics.registry, metrics_host, metrics_port, tell)
        threads.submit(_make_first, catalog)
        serving = RunningServer(f"{shown[0]}:{shown[1]}", server, catalog, stack.pop_all())
    threading.Thread(target=_tick, args=(groups, serving), daemon=True, name="groups").start()
    return serving


def _make_first(catalog: Catalog) -> None:
    """Create a copy before clients connect, because compiling kernels for it takes long."""
    for name in catalog.names():
        topic = catalog.topic(name)
        for each in () if topic is None else topic.partitions.values():
            if isinstance(each, MaterializedPartition):
                with suppress(LogError):  # already reported to the operator
                    each.log()
                return


def _systems_at(path: str, system: str | None, metadata: str | None) -> list[str]:
    """The systems whose topics are at ``path``. Only an archive may have several.

    If ``system`` is given, it is the only one.
    """
    if system is not None:
        return [system_of(path, system, metadata)]
    return systems_at(path) or [system_of(path)]


def _of_logs(config: Mapping[str, object]) -> dict[str, object]:
    """The settings in ``config`` for reading logs: object store settings and ``cleanup.policy``."""
    return {
        name: value
        for name, value in config.items()
        if is_of_stores(name) or name == "cleanup.policy"
    }


def _codec(name: str) -> Codec:
    """The codec for converted batches, by the name of a compression.

    Raises:
        InvalidConfig: batches cannot be written with this compression.
    """
    codecs = {"none": Codec.NONE, "lz4": Codec.LZ4}
    if name not in codecs:
        raise InvalidConfig(
            f"{name!r} is not a supported compression", remedy=f"give one of: {', '.join(codecs)}"
        )
    return codecs[name]


def _tick(groups: Groups, serving: RunningServer) -> None:
    while not serving.is_over(_TICK_S):
        groups.tick()


def _security(
    settings: ServeConfig,
    users: str | None,
    host: str,
    is_open: bool,
    notify: Callable[[str], None],
) -> ListenerSecurity:
    """The listener's security settings.

    Raises:
        InvalidConfig: the listener is reachable from other machines without authentication, and
            ``is_open`` is false.
    """
    is_near, has_tls = _is_loopback(host), bool(settings.certificate)
    asks_for_password = users is not None and not settings.requests_certificate
    is_known = has_tls and (asks_for_password or settings.requests_certificate)
    if not (is_open or is_near or is_known):
        raise InvalidConfig(
            f"{host} can be reached from other machines: without TLS and users, anyone could read "
            "all topics",
            remedy="give a certificate with --config ssl.certificate.location=FILE, and users "
            "with --users FILE; or listen on 127.0.0.1; or add --open if you trust the network",
        )
    named = tuple(each for each in settings.mechanisms.split(",") if each)
    if users is None and named:
        raise InvalidConfig(
            "sasl.enabled.mechanisms is set, but no users file is given", remedy="give --users FILE"
        )
    # PLAIN is not offered to other machines without TLS, because its password could be read on the
    # network.
    offered = named or (MECHANISMS if has_tls or is_near else MECHANISMS[:2])
    return ListenerSecurity(
        tls=reloading_tls(
            settings.certificate,
            settings.key,
            settings.client_ca if settings.requests_certificate else "",
            notify,
        )
        if has_tls
        else None,
        users=None if users is None else reloading_users(users, notify),
        mechanisms=offered if asks_for_password else (),
        session_s=settings.session_ms / 1000,
        failed_delay_s=settings.failed_delay_ms / 1000,
    )


def _limits(settings: ServeConfig) -> ServeLimits:
    return ServeLimits(
        request_bytes=settings.request_bytes,
        unknown_bytes=settings.unknown_bytes,
        connections=settings.connections,
        connections_of_address=settings.connections_of_address,
        idle_s=settings.idle_ms / 1000,
    )


def _bound(listen: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``, the address to listen on.

    Raises:
        InvalidConfig: ``listen`` is not an address.
    """
    host, colon, port = listen.rpartition(":")
    if colon and port == "0":
        return host.removeprefix("[").removesuffix("]"), 0
    return parse_address(listen)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise EnvironmentUnfit(
            f"cannot listen on {host}:{port}: {error.strerror}",
            remedy="give another address with --listen",
        ) from error


def _state_of(cluster_id: str) -> str:
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(
        os.path.expanduser("~"), ".local", "state"
    )
    return os.path.join(home, "lastwrite", "serve", cluster_id)


def _continue_groups(
    offsets: Offsets,
    paths: Sequence[str],
    is_served: Callable[[str], bool],
    settings: ServeConfig,
    notify: Callable[[str], None],
) -> None:
    """Load the groups' committed offsets from ``__consumer_offsets`` of the Kafka log directories.

    Skips archives and paths of other systems.
    """
    now_ms = time.time_ns() // 1_000_000
    retention = OffsetRetention(now_ms, settings.offsets_retention_minutes * 60_000)
    for path in paths:
        # archives are skipped here: they store committed offsets with each partition
        if not tiered.is_located(path) and (
            is_address(path) or systems_at(path) or system_of(path) != KAFKA
        ):
            continue
        with suppress(NotALog):
            found = positions_in(path, retention)
            for each in found.unread:
                notify(f"{each.words()}. {UNREAD_REMEDY}")
            offsets.continue_from(found, is_served)


def _fetched_commits(catalog: Catalog) -> list[tuple[Position, Commit]]:
    """The groups' committed offsets that ``fetch`` stored with the partitions of archives."""
    found: list[tuple[Position, Commit]] = []
    for name in catalog.names():
        topic = catalog.topic(name)
        for number, each in ({} if topic is None else topic.partitions).items():
            if not each.is_of_kafka or not archived.is_archived(each.folder):
                continue
            try:
                log = archived.contents_of(
                    read_versioned_manifest(each.folder).manifest, each.folder
                )
            except LogError:  # skip the partition; a client that requests it gets this error
                continue
            for group, offset, epoch, metadata in log.groups:
                found.append((Position(group, name, number), Commit(offset, epoch, metadata)))
    return found
