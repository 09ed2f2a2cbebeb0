"""Names of topics, of their nodes in a metadata store, of objects, and of files in a topic folder.

``persistent://public/default/orders`` is a topic; ``orders`` alone means the same. Partition 3 of a
partitioned topic is a separate topic, ``persistent://public/default/orders-partition-3``. Its
*managed ledger* is ``public/default/persistent/orders-partition-3``, with the local name encoded as
in a web form. An archive stores the topic folder under that path. ``<uuid>-ledger-10`` is the
object of ledger 10 in a bucket, and ``<uuid>-ledger-10-index`` its index. Each attempt has a new
random uuid; the managed ledger's metadata contain the uuid of the valid attempt.

Source: Pulsar 4.2.4 ``TopicName``, ``Codec``, ``DataBlockUtils``,
``FileSystemManagedLedgerOffloader``; docs/formats/pulsar.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote_plus, unquote_plus
from uuid import UUID

from lastwrite.errors import InvalidConfig

PERSISTENT = "persistent"
SCHEME = "persistent://"
DEFAULT_TENANT = "public"
DEFAULT_NAMESPACE = "default"
PARTITION_MARK = "-partition-"

COMPACTION_CURSOR = "__compaction"
# property of the compaction cursor: the compacted ledger's id
LEDGER_PROPERTY = "CompactedTopicLedger"

# Files in a topic folder.
MANAGED_LEDGER = "managed-ledger"
MANAGED_LEDGER_JSON = "managed-ledger.json"
MANIFEST = "compacted.json"
FETCHED = "fetched.json"
INDEX_SUFFIX = "-index"
SURVEY_SUFFIX = ".survey"

# The name of the file with the entries in a MapFile's folder.
MAP_DATA = "data"

ENTRY_LOG_SUFFIX = ".log"

_MAX_I64 = (1 << 63) - 1
_MAX_I32 = (1 << 31) - 1
_ENTITY = re.compile(r"[-=:.\w]+", re.ASCII)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)
_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_OBJECT = re.compile(rf"({_UUID})-ledger-(0|[1-9][0-9]{{0,18}})", re.ASCII)
_STREAMED = re.compile(_UUID, re.ASCII)
_MAP_FILE = re.compile(rf"(0|[1-9][0-9]{{0,18}})-({_UUID})", re.ASCII)
_ENTRY_LOG = re.compile(r"(0|[1-9a-f][0-9a-f]{0,15})\.log", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A persistent topic, or one partition of a partitioned topic.

    ``local`` is the decoded name without the partition. ``partition`` is -1 for a topic that is not
    a partition.
    """

    tenant: str
    namespace: str
    local: str
    partition: int = -1

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Parse a full URL, ``tenant/namespace/name``, or ``name`` in public/default.

        Raises:
            InvalidConfig: the topic is not persistent, has the old form with a cluster, or has an
                empty or a forbidden part.
        """
        rest = text
        if "://" in text:
            if not text.startswith(SCHEME):
                raise InvalidConfig(
                    f"the topic {text!r} is not a persistent topic",
                    remedy=f"give {SCHEME}TENANT/NAMESPACE/TOPIC",
                )
            rest = text[len(SCHEME) :]
            if rest.count("/") != 2:
                raise _no_topic(text)
        parts = rest.split("/")
        if len(parts) == 1:
            parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, *parts]
        if len(parts) != 3:
            raise _no_topic(text)
        return cls._of_parts(text, *parts)

    @classmethod
    def of_managed_ledger(cls, name: str) -> TopicName:
        """The topic of a managed ledger's name, ``tenant/namespace/persistent/encoded-name``.

        Raises:
            InvalidConfig: the name has another form.
        """
        parts = name.strip("/").split("/")
        if len(parts) != 4 or parts[2] != PERSISTENT:
            raise InvalidConfig(
                f"{name!r} is not the managed ledger of a persistent topic",
                remedy="give the managed ledger as TENANT/NAMESPACE/persistent/TOPIC",
            )
        return cls._of_parts(name, parts[0], parts[1], unquote_plus(parts[3]))

    @classmethod
    def of_folder(cls, path: str) -> TopicName:
        """The topic that a folder is named after: the last four parts of its absolute path.

        Raises:
            InvalidConfig: the four parts are not a managed ledger's name.
        """
        return cls.of_managed_ledger("/".join(path.split("/")[-4:]))

    @classmethod
    def _of_parts(cls, text: str, tenant: str, namespace: str, local: str) -> TopicName:
        if (
            not (_is_entity(tenant) and _is_entity(namespace))
            or not local
            or local in (".", "..")
            or "\0" in local
        ):
            raise _no_topic(text)
        base, mark, number = local.rpartition(PARTITION_MARK)
        if mark and base and _NUMBER.fullmatch(number) and int(number) <= _MAX_I32:
            return cls(tenant, namespace, base, int(number))
        return cls(tenant, namespace, local)

    @property
    def full(self) -> str:
        """The topic's URL, with the partition."""
        return self.base if self.partition < 0 else f"{self.base}{PARTITION_MARK}{self.partition}"

    @property
    def base(self) -> str:
        """The topic's URL, without the partition."""
        return f"{SCHEME}{self.tenant}/{self.namespace}/{self.local}"

    @property
    def managed_ledger(self) -> str:
        """The managed ledger's name, which is also the topic folder's path in an archive."""
        local = (
            self.local if self.partition < 0 else f"{self.local}{PARTITION_MARK}{self.partition}"
        )
        return f"{self.tenant}/{self.namespace}/{PERSISTENT}/{encode_local(local)}"

    @property
    def is_partition(self) -> bool:
        return self.partition >= 0

    def with_partition(self, partition: int) -> TopicName:
        """The name of this partition of the topic. -1 means the whole topic."""
        return TopicName(self.tenant, self.namespace, self.local, partition)

    def __str__(self) -> str:
        return self.full


def _is_entity(name: str) -> bool:
    return _ENTITY.fullmatch(name) is not None and name not in (".", "..")


def _no_topic(text: str) -> InvalidConfig:
    return InvalidConfig(
        f"{text!r} is not a topic name",
        remedy=f"give {SCHEME}TENANT/NAMESPACE/TOPIC, TENANT/NAMESPACE/TOPIC, or TOPIC alone",
    )


def encode_local(local: str) -> str:
    """A local name, encoded as by Java's ``URLEncoder`` for use in a managed ledger's name."""
    return quote_plus(local, safe="*").replace("~", "%7E")


def object_name(uuid: UUID, ledger: int) -> str:
    """The name of a ledger's data object, layout V1. Append INDEX_SUFFIX for the index object."""
    return f"{uuid}-ledger-{ledger}"


def parse_object_name(name: str) -> tuple[UUID, int] | None:
    """The uuid and the ledger id in a data object's name.

    None for any other name, including an index object's.
    """
    found = _OBJECT.fullmatch(name)
    if found is None or int(found[2]) > _MAX_I64:
        return None
    return UUID(found[1]), int(found[2])


def parse_streamed_name(name: str) -> UUID | None:
    """The uuid in the name of a layout V2 data object, which has several ledgers.

    None for any other name.
    """
    return UUID(name) if _STREAMED.fullmatch(name) else None


def map_file_name(ledger: int, uuid: UUID) -> str:
    """The name of the folder in which the file-system offloader stores a ledger."""
    return f"{ledger}-{uuid}"


def parse_map_file_name(name: str) -> tuple[int, UUID] | None:
    """The ledger and uuid in the name of a MapFile's folder. None for any other name."""
    found = _MAP_FILE.fullmatch(name)
    if found is None or int(found[1]) > _MAX_I64:
        return None
    return int(found[1]), UUID(found[2])


def entry_log_name(log_id: int) -> str:
    """The name of a bookie's entry log file."""
    return f"{log_id:x}{ENTRY_LOG_SUFFIX}"


def parse_entry_log_name(name: str) -> int | None:
    """The id of an entry log from its file name. None for any other name."""
    found = _ENTRY_LOG.fullmatch(name)
    return int(found[1], 16) if found and int(found[1], 16) <= _MAX_I64 else None
