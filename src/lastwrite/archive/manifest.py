"""The manifest, which lists a partition's current objects. No other object is ever replaced.

====================== =====================================================================
field                  meaning
====================== =====================================================================
``version``            2; 1 is Pulsar's ``compacted.json``
``system``             the log's system: ``kafka``, ``rocketmq``, ``pulsar``
``topic, partition``   the partition's name
``generation``         1, increased by one with each commit
``nonce``              random for each commit, so that no two manifests are equal
``former``             the nonces of the previous 64 generations, newest first
``round``              the id of the transaction that committed it; its journal may still exist
``written_ms``         by the writer's clock; for information only
``writer``             ``lastwrite VERSION HOST:PID``; for information only
``objects``            every object of the log: ``key`` (relative to the partition; for a foreign
                       object its full address), ``bytes``, ``etag``, ``foreign``
``unused``             objects of earlier generations that are not deleted yet: ``key``,
                       ``bytes``, ``since_ms`` by the store's clock, and the ``generation``
                       from which on they are unused
``log``                the log's metadata in the system's own format
``checksum``           CRC-32C of the text before it, 8 hex digits
====================== =====================================================================

Reasons: docs/decisions/archives.md.
"""

from __future__ import annotations

import google_crc32c
import msgspec

from lastwrite.encoding.json_structs import decode_struct
from lastwrite.errors import CorruptLog, LogError, UnsupportedFormat

VERSION = 2
FORMER = 64
LIMIT_BYTES = 64 << 20
_END = b',"checksum":"'
_REMEDY = (
    "no object was changed; restore the manifest from the bucket's versions or from a copy of "
    "the archive"
)


class DataObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An object that a log consists of."""

    key: str
    bytes: int
    etag: str = ""
    is_foreign: bool = msgspec.field(default=False, name="foreign")  # never deleted


class Unused(msgspec.Struct, frozen=True, kw_only=True):
    """A replaced object that is kept for readers of earlier generations."""

    key: str
    bytes: int
    # time of the replacement, by the store's clock; 0 means the time when this manifest was written
    since_ms: int
    generation: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest of a partition. The module's docstring explains the fields."""

    version: int = VERSION
    system: str
    topic: str
    partition: int
    generation: int = 0
    nonce: str = ""
    former: tuple[str, ...] = ()
    round: str = ""
    written_ms: int = 0
    writer: str = ""
    objects: tuple[DataObject, ...] = ()
    unused: tuple[Unused, ...] = ()
    log: msgspec.Raw = msgspec.Raw(b"null")

    def has_committed(self, nonce: str) -> bool:
        """Whether the commit with this nonce succeeded, as this generation or an earlier one."""
        return nonce == self.nonce or nonce in self.former

    @property
    def own_keys(self) -> frozenset[str]:
        """The keys of the objects that belong to the archive."""
        return frozenset(each.key for each in self.objects if not each.is_foreign)


class _Version(msgspec.Struct):
    version: int


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest, its checksum last.

    Raises:
        LogError: the manifest is larger than the limit for reading.
    """
    text = msgspec.json.encode(manifest)[:-1]
    if len(text) > LIMIT_BYTES - 64:
        raise LogError(
            f"the manifest would have {len(text)} bytes, but at most {LIMIT_BYTES} are allowed",
            remedy="use larger segments in the archive, or split the topic into more partitions",
        )
    return text + _END + b'%08x"}' % google_crc32c.value(text)


def decode(data: bytes, address: str) -> Manifest:
    """Decode a manifest. ``address`` is for error messages.

    Raises:
        CorruptLog: the data is truncated, changed, or not a manifest.
        UnsupportedFormat: a newer release wrote the manifest.
    """
    text, end, said = data.rpartition(_END)
    if not end:
        raise CorruptLog(
            "the manifest is truncated, or is not a manifest", len(data), address, _REMEDY
        )
    if said != b'%08x"}' % google_crc32c.value(text):
        raise CorruptLog("the manifest's checksum does not match", len(text), address, _REMEDY)
    try:
        version = decode_struct(text + b"}", _Version).version
        if version > VERSION:
            raise UnsupportedFormat(
                f"the manifest has version {version}, but this release supports only version "
                f"{VERSION}",
                path=address,
                remedy="upgrade Lastwrite",
            )
        manifest = decode_struct(text + b"}", Manifest)
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"the manifest is damaged: {error}", 0, address, _REMEDY) from error
    # Objects with these keys may be deleted, so no key may be outside data/.
    for key in (*manifest.own_keys, *(each.key for each in manifest.unused)):
        if not key.startswith("data/") or any(part in ("", ".", "..") for part in key.split("/")):
            raise CorruptLog(
                f"the manifest contains {key!r}, which is not below data/", 0, address, _REMEDY
            )
    return manifest
