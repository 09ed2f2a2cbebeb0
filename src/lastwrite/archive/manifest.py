"""The manifest: which objects of an archive's partition count. The only one that is ever replaced.

====================== =====================================================================
field                  meaning
====================== =====================================================================
``version``            2; 1 is Pulsar's ``compacted.json``
``system``             whose log it is: ``kafka``, ``rocketmq``, ``pulsar``
``topic, partition``   its name
``generation``         1, and one more by each commit
``nonce``              drawn for each commit: two manifests are never the same bytes
``former``             the nonces of the 64 generations before, newest first
``round``              the id of the round that committed it; its journal may still be there
``written_ms``         by the writer's clock; for people
``writer``             ``lastwrite VERSION HOST:PID``; for people
``objects``            every object that the log is made of: ``key`` (below the partition; of a
                       foreign one the whole address), ``bytes``, ``etag``, ``foreign``
``unused``             objects that earlier generations had and nobody has removed yet: ``key``,
                       ``bytes``, ``since_ms`` by the store's clock, ``generation`` that no
                       longer has them
``log``                what the system says of its log, in its own words
``checksum``           CRC-32C of the text before it, 8 hex digits
====================== =====================================================================

Why so: docs/decisions/archives.md.
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
    "bring the manifest back from the bucket's versions or a copy of the archive; "
    "no object was touched"
)


class DataObject(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An object that a log is made of."""

    key: str
    bytes: int
    etag: str = ""
    is_foreign: bool = msgspec.field(default=False, name="foreign")  # another writer's: only read


class Unused(msgspec.Struct, frozen=True, kw_only=True):
    """An object that was replaced, for readers of the generation before."""

    key: str
    bytes: int
    since_ms: int  # 0: since this manifest was written
    generation: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """See the module."""

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

    def has_made(self, nonce: str) -> bool:
        """Whether the commit with this nonce counts: this generation, or one before it."""
        return nonce == self.nonce or nonce in self.former

    @property
    def own_keys(self) -> frozenset[str]:
        """Keys of the objects that are the archive's own."""
        return frozenset(each.key for each in self.objects if not each.is_foreign)


class _Version(msgspec.Struct):
    version: int


def encode(manifest: Manifest) -> bytes:
    """The manifest's bytes, the checksum last.

    Raises:
        LogError: they are more than is ever read.
    """
    text = msgspec.json.encode(manifest)[:-1]
    if len(text) > LIMIT_BYTES - 64:
        raise LogError(
            f"the manifest would have {len(text)} bytes, more than {LIMIT_BYTES}",
            remedy="let the archive's segments be larger, or the topic have more partitions",
        )
    return text + _END + b'%08x"}' % google_crc32c.value(text)


def decode(data: bytes, address: str) -> Manifest:
    """A manifest of its bytes; ``address`` is for errors.

    Raises:
        CorruptLog: they are cut, changed, or no manifest.
        UnsupportedFormat: a newer version wrote them.
    """
    text, end, said = data.rpartition(_END)
    if not end:
        raise CorruptLog("the manifest is cut short, or none", len(data), address, _REMEDY)
    if said != b'%08x"}' % google_crc32c.value(text):
        raise CorruptLog("the manifest's checksum does not match", len(text), address, _REMEDY)
    try:
        version = decode_struct(text + b"}", _Version).version
        if version > VERSION:
            raise UnsupportedFormat(
                f"a manifest of version {version}; this release knows {VERSION}",
                path=address,
                remedy="upgrade lastwrite",
            )
        manifest = decode_struct(text + b"}", Manifest)
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"no manifest: {error}", 0, address, _REMEDY) from error
    # By these keys objects are removed.
    for key in (*manifest.own_keys, *(each.key for each in manifest.unused)):
        if not key.startswith("data/") or any(part in ("", ".", "..") for part in key.split("/")):
            raise CorruptLog(f"{key!r} is not below data/", 0, address, _REMEDY)
    return manifest
