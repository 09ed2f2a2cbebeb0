"""The system of a path: given by name, or detected from the files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from lastwrite.archive.layout import systems_at
from lastwrite.engine.system import System, system_named
from lastwrite.errors import InvalidConfig
from lastwrite.pulsar.format.names import SCHEME, TopicName
from lastwrite.pulsar.store import place as pulsar_place
from lastwrite.rocketmq.store import place as rocketmq_place
from lastwrite.storage.objects.address import is_address

_SERVERS = re.compile(r"[\w.-]+:\d{1,5}(?:,[\w.-]+:\d{1,5})*")
KAFKA, ROCKETMQ, PULSAR = SYSTEMS = ("kafka", "rocketmq", "pulsar")
AUTOMQ = "automq"  # Kafka's partitions in AutoMQ's objects; never detected


def system_of(path: str, name: str | None = None, metadata: str | None = None) -> str:
    """The name of the system: ``name``, or else the system that wrote the files at ``path``.

    The default is Kafka. Only the modules that recognise files are imported. For ``automq`` the
    partitions of the bucket are located, and the result is ``kafka``.

    Args:
        metadata: path of the cluster's metadata log, which ``automq`` needs.

    Raises:
        InvalidConfig: there is no such system; or ``path`` is the address of a live topic.
        LogError: as ``kafka.store.automq.locate``.
    """
    _reject_address(path)
    if name == AUTOMQ:
        from lastwrite.kafka.store import automq  # imported only if needed

        automq.locate(path, metadata)
        return KAFKA
    if name is not None:
        if name not in SYSTEMS:
            raise InvalidConfig(
                f"unknown system {name!r}", remedy=f"give one of: {', '.join((*SYSTEMS, AUTOMQ))}"
            )
        return name
    archived = systems_at(path)
    if len(archived) > 1:
        raise InvalidConfig(
            f"the archive has partitions of several systems: {', '.join(archived)}",
            path=path,
            remedy="choose a system with --system, or give a folder of one system below this path",
        )
    if archived:
        return archived[0]
    if rocketmq_place.locate(path) is not None:
        return ROCKETMQ
    if pulsar_place.locate(path) is not None or pulsar_place.kind_of(path) is not None:
        return PULSAR
    return ROCKETMQ if not is_address(path) and rocketmq_place.is_in_store(path) else KAFKA


def system_to_read(path: str, name: str | None, metadata: str | None) -> str:
    """The name of the system, for a command that needs ``metadata`` only for ``automq``.

    Raises:
        InvalidConfig: ``metadata`` is given for another system; or as ``system_of``.
    """
    if metadata is not None and name != AUTOMQ:
        raise InvalidConfig(
            "--metadata (metadata) is only for --system automq here", remedy="leave out --metadata"
        )
    return system_of(path, name, metadata)


def _reject_address(path: str) -> None:
    """Reject the address of a live topic.

    Not called by ``compact``, ``plan`` and ``clean``, which accept such an address.

    Raises:
        InvalidConfig: ``path`` is such an address.
    """
    reject_server(path)
    if not path.startswith((SCHEME, f"non-{SCHEME}")):
        return
    topic = TopicName.parse(path).full
    raise InvalidConfig(
        "this is the address of a live topic, but this command reads files",
        path=path,
        remedy=f"fetch it first: lastwrite fetch {topic} --to ARCHIVE --config "
        "metadataStoreUrl=zk:HOST:PORT, then give ARCHIVE as the path; only compact, plan and "
        "clean take the topic itself",
    )


def reject_server(path: str, *, is_fetched: bool = False) -> None:
    """Reject the address of a live cluster where a path is needed.

    ``is_fetched`` is true for ``fetch``, which accepts addresses that begin with the system's name.

    Raises:
        InvalidConfig: ``path`` is such an address.
    """
    system, is_url, hosts = path.partition("://")
    system = system.removesuffix("+ssl")
    if is_url and system not in SYSTEMS:
        return
    if not is_url and (os.path.exists(path) or not _SERVERS.fullmatch(path)):
        return
    hosts = hosts if is_url else path
    named = [system] if is_url else SYSTEMS
    sources = [f"{each}://{hosts}" for each in named if each != PULSAR]
    if PULSAR in named:
        topic = "persistent://TENANT/NAMESPACE/TOPIC"
        sources.append(f"{topic} (Pulsar, with --config metadataStoreUrl=zk:HOST:PORT)")
    if is_fetched:
        problem = "there is no such folder; the path looks like the address of a live cluster"
        remedy = f"give {' or '.join(sources)}"
    else:
        problem = "this is the address of a live cluster, but this command reads files"
        source = sources[0] if len(sources) == 1 else "SOURCE"
        remedy = f"fetch it first: lastwrite fetch {source} --to ARCHIVE, then give ARCHIVE"
        remedy += "" if source in sources else f"; SOURCE is {' or '.join(sources)}"
    raise InvalidConfig(problem, path=path, remedy=remedy)


def system_at(path: str, name: str | None = None) -> System:
    """The ``System`` object of the files at a path; see ``system_of``.

    Raises:
        InvalidConfig: as ``system_of``.
    """
    return system_named(system_of(path, name))


def system_of_all(name: str | None, paths: Sequence[str], metadata: str | None = None) -> System:
    """The name of the system: ``name``, or the system that wrote the files at all ``paths``.

    ``metadata`` is as for ``system_of``.

    Raises:
        InvalidConfig: there is no such system, or the paths have files of several systems.
    """
    systems = {path: system_of(path, name, metadata) for path in paths}
    if len(set(systems.values())) > 1:
        text = ", ".join(f"{path} belongs to {system}" for path, system in systems.items())
        raise InvalidConfig(
            f"the paths belong to several systems: {text}",
            remedy="give paths of one system at a time",
        )
    return system_named(systems[paths[0]])
