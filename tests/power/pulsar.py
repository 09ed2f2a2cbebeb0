"""Power failures in Pulsar runs: rounds, cleaned copies, fetches, and mirrors of live topics."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.model.log import ProblemKind
from lastwrite.pulsar.format.compacted import encode_record, ledger_custom_metadata
from lastwrite.pulsar.format.entry import PulsarMessage, encode_entry, encode_single
from lastwrite.pulsar.format.ledger_metadata import (
    Digest,
    LedgerMetadata,
    LedgerState,
    custom_items,
)
from lastwrite.pulsar.format.managed_ledger import LedgerInfo, ManagedLedgerInfo
from lastwrite.pulsar.format.names import MANIFEST, SURVEY_SUFFIX, TopicName, parse_object_name
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.folders import MANAGED_LEDGER_NAME
from lastwrite.pulsar.store.mirror import mirroring
from lastwrite.pulsar.store.topic import TopicFolder, list_topic
from tests.crash.trial import Broken
from tests.power.disk import Journal, record
from tests.power.scene import Scene, difference, files_below
from tests.support.pulsar import rounds as pulsar_rounds
from tests.support.pulsar.model import Author
from tests.support.pulsar.topics import TOPIC, put_ledger, read_compacted, read_ledger, topic_folder

_PROFILES = ("ext4", "xfs", "apfs", "loose")
# ``loose`` may keep a data object without its index, which names its topic.
_IN_ORDER = _PROFILES[:3]
_NAME = TopicName.parse(TOPIC)
_LACKS = ("is missing", "are missing")


def scenes(number: int, place: Path) -> list[Scene]:
    """The scenes of a folder. The first two use a random topic."""
    return [
        RoundScene(number, place),
        CopyScene(number, place),
        FetchScene(number, place),
        MirrorScene(number, place),
    ]


def _topic(archive: Path, may_lack: bool = False) -> TopicFolder:
    """The listing of the archive's topic folder.

    ``may_lack`` means that listed ledgers may not have been fetched yet.

    Raises:
        Broken: something is damaged.
    """
    topic = list_topic(str(topic_folder(archive)))
    wrong = [problem for problem in topic.problems if problem.kind is ProblemKind.DAMAGED]
    if may_lack:
        wrong = [
            problem for problem in wrong if not any(words in problem.message for words in _LACKS)
        ]
    if wrong:
        raise Broken(
            f"damaged: {[(problem.message, problem.path.rpartition('/')[2]) for problem in wrong]}"
        )
    return topic


def _raw(topic: TopicFolder) -> dict[int, list[bytes]]:
    return {ledger.id: read_ledger(Path(ledger.path)) for ledger in topic.ledgers}


class RoundScene:
    """A round in place. The manifest names the old compacted ledger or the new one, which is
    complete.
    """

    name = "Pulsar round"
    profiles: Sequence[str] = _IN_ORDER

    def __init__(self, number: int, place: Path) -> None:
        disk = place / "disk"
        self._old, self._new = pulsar_rounds.lay_out(number, disk)
        self._raw = pulsar_rounds.raw_files(disk)
        self.journal: Journal = record(disk, lambda: self.run(disk))
        self._shape = pulsar_rounds.shape(disk)
        if pulsar_rounds.held(disk) != self._new:
            raise Broken("a round that nobody disturbed is not what it should be")
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        if pulsar_rounds.compact(disk):
            raise Broken("the round failed")

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        _topic(disk)
        found = pulsar_rounds.held(disk)
        if found not in (self._old, self._new):
            raise Broken("the manifest's ledger is neither the old one nor the new one")
        if (left := pulsar_rounds.raw_files(disk)) != self._raw:
            raise Broken(f"raw ledgers changed: {difference(left, self._raw)}")
        return found == self._new

    def check_end(self, disk: Path, side: Hashable) -> None:
        if not side:
            raise Broken("the round had ended, and a power cut took it back")

    def check_done(self, disk: Path) -> None:
        if pulsar_rounds.held(disk) != self._new or pulsar_rounds.raw_files(disk) != self._raw:
            raise Broken("not what a round leaves that nobody disturbed")
        if pulsar_rounds.shape(disk) != self._shape:
            raise Broken(f"left behind: {pulsar_rounds.shape(disk)}, not {self._shape}")


class CopyScene:
    """A cleaned copy. The topic is unchanged, and the copy is complete or missing."""

    name = "Pulsar copy"
    profiles: Sequence[str] = _IN_ORDER

    def __init__(self, number: int, place: Path) -> None:
        disk = place / "disk"
        self._old, self._new = pulsar_rounds.lay_out(number, disk / "archive")
        self._origin = self._kept(disk)
        self.journal: Journal = record(disk, lambda: self.run(disk))
        self._done = pulsar_rounds.held(disk / "to")
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        if (disk / "to").is_dir() and any(
            parse_object_name(path.name) for path in (disk / "to").rglob("*")
        ):
            shutil.rmtree(disk / "to")  # the command refuses to overwrite a topic
        if pulsar_rounds.compact(disk / "archive", to=str(disk / "to")):
            raise Broken("the copy failed")

    @staticmethod
    def _kept(disk: Path) -> dict[str, bytes]:
        left = files_below(disk / "archive")
        return {
            name: data
            for name, data in left.items()
            if not name.endswith((SURVEY_SUFFIX, ".aside", "lock"))
        }

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        if (left := self._kept(disk)) != self._origin:
            raise Broken(f"a copy changed the topic: {difference(left, self._origin)}")
        if not any(path.name == MANIFEST for path in (disk / "to").rglob("*")):
            return False
        _topic(disk / "to")
        if pulsar_rounds.held(disk / "to") != self._done:
            raise Broken("the copy's compacted ledger is not whole")
        met["copies seen whole"] += 1
        return True

    def check_end(self, disk: Path, side: Hashable) -> None:
        if not side:
            raise Broken("the copy was finished, and a power cut left nothing of it")

    def check_done(self, disk: Path) -> None:
        if pulsar_rounds.held(disk / "to") != self._done:
            raise Broken("a copy made again is another one")


class FetchScene:
    """A fetch of offloaded ledgers into an archive that has some of them.

    Each ledger is complete or missing.
    """

    name = "Pulsar fetch"
    profiles: Sequence[str] = _PROFILES

    def __init__(self, number: int, place: Path) -> None:
        rng, author = random.Random(f"fetch-{number}"), Author(number)
        self._copies = rng.random() < 0.5
        disk = place / "disk"
        bucket = disk / "bucket"
        bucket.mkdir(parents=True)
        self._entries: dict[int, list[bytes]] = {}
        count, early = rng.randint(2, 4), rng.randint(0, 2)
        for ledger in range(10, 10 + count):
            if ledger == 10 + early and early:
                self.run(disk)
            entries = author.entries(rng.randint(2, 8))
            custom = {MANAGED_LEDGER_NAME: _NAME.managed_ledger.encode()}
            put_ledger(bucket, ledger, entries, 700 + max(map(len, entries)), custom)
            self._entries[ledger] = entries
        self._before = _raw(_topic(disk / "archive")) if early else {}
        self.journal: Journal = record(disk, lambda: self.run(disk))
        if _raw(_topic(disk / "archive")) != self._entries:
            raise Broken("a fetch that nobody disturbed brought something else")
        shutil.rmtree(disk)

    def run(self, disk: Path) -> None:
        report = lastwrite.fetch([str(disk / "bucket")], str(disk / "archive"), copies=self._copies)
        if report.exit_status:
            raise Broken(f"the fetch ended with {report.exit_status}")

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        if not (disk / "archive").is_dir():
            found = {}
        else:
            found = _raw(_topic(disk / "archive", may_lack=True))
        for ledger, entries in found.items():
            if entries != self._entries[ledger]:
                raise Broken(f"ledger {ledger} is not what it was")
        if lost := self._before.keys() - found.keys():
            raise Broken(f"ledgers {sorted(lost)} were in the archive, and are not any more")
        return len(found)

    def check_end(self, disk: Path, side: Hashable) -> None:
        if side != len(self._entries):
            raise Broken(
                f"the fetch had ended, and a power cut left {side} of {len(self._entries)} ledgers"
            )

    def check_done(self, disk: Path) -> None:
        if _raw(_topic(disk / "archive")) != self._entries:
            raise Broken("the fetch made again brought something else")


class MirrorScene:
    """The archive's changes during a round on a live topic.

    An open ledger has grown, a new ledger exists, and the cluster has a new compacted ledger. Then
    our ledger is published under an id of the cluster.
    """

    name = "Pulsar mirror of a live topic"
    profiles: Sequence[str] = _PROFILES

    def __init__(self, number: int, place: Path) -> None:
        rng = random.Random(f"mirror-{number}")
        self._raw10 = [
            _single(f"k{rng.randint(0, 3)}", b"%d" % n) for n in range(rng.randint(2, 30))
        ]
        self._raw11 = [
            _single(f"k{rng.randint(0, 3)}", b"%d" % n * rng.randint(1, 40)) for n in range(24)
        ]
        self._raw12 = [_single("z", b"v" * rng.randint(1, 2000))]
        self._open = rng.randint(1, 23)  # entries of ledger 11 in the first round
        self._compacted = {
            77: [(Position(10, 0), self._raw10[0])],
            78: [(Position(10, 0), self._raw10[0]), (Position(11, 0), self._raw11[0])],
        }
        self._horizons = {77: Position(10, len(self._raw10) - 1), 78: Position(11, self._open - 1)}
        disk = place / "disk"
        disk.mkdir()
        self._first(disk)
        self.journal: Journal = record(disk, lambda: self.run(disk))
        self._done = self._seen(disk)
        shutil.rmtree(disk)

    def _first(self, disk: Path) -> None:
        with mirroring(str(disk), _NAME) as mirror:
            mirror.fetch(10, _metadata(), enumerate(self._raw10))
            mirror.fetch(11, _metadata(), enumerate(self._raw11[: self._open]))
            mirror.write_metadata(_list((10, len(self._raw10), True), (11, self._open, False)))
            self._bring_compacted(mirror, 77)

    def _bring_compacted(self, mirror: Any, ledger: int) -> None:
        records = [encode_record(position, -1, body) for position, body in self._compacted[ledger]]
        if mirror.find(ledger, len(records)) is None:
            last = self._compacted[ledger][-1][0]
            mirror.fetch(ledger, _metadata(ledger_custom_metadata(TOPIC, last)), enumerate(records))
        mirror.is_compacted(ledger, self._horizons[ledger])
        mirror.clear_compacted(ledger)

    def run(self, disk: Path) -> None:
        with mirroring(str(disk), _NAME) as mirror:
            for ledger, entries in ((10, self._raw10), (11, self._raw11), (12, self._raw12)):
                if mirror.find(ledger, len(entries)) is None:
                    mirror.fetch(ledger, _metadata(), enumerate(entries))
            mirror.write_metadata(
                _list((10, len(self._raw10), True), (11, 24, True), (12, 1, False))
            )
            self._bring_compacted(mirror, 78)
        with mirroring(str(disk), _NAME) as mirror:
            mirror.is_published(90, self._horizons[78])

    def _seen(self, disk: Path, may_lack: bool = False) -> tuple[Any, ...]:
        topic = _topic(disk, may_lack)
        assert topic.manifest is not None
        return _raw(topic), topic.manifest.ledger, topic.horizon, read_compacted(topic_folder(disk))

    def look(self, disk: Path, met: Counter[str], judges: Any) -> Hashable:
        raw, ledger, horizon, compacted = self._seen(disk, may_lack=True)
        of = 78 if ledger == 90 else ledger
        if compacted != self._compacted[of] or horizon != self._horizons[of]:
            raise Broken(f"the compacted ledger {ledger} is not whole")
        if raw.pop(10) != self._raw10 or raw.pop(11) not in (
            self._raw11,
            self._raw11[: self._open],
        ):
            raise Broken("a raw ledger is neither what it was nor what it is to be")
        if raw and raw != {12: self._raw12}:
            raise Broken("the new raw ledger is not whole")
        return ledger, bool(raw)

    def check_end(self, disk: Path, side: Hashable) -> None:
        if self._seen(disk) != self._done:
            raise Broken("the run had ended, and a power cut took something back")

    def check_done(self, disk: Path) -> None:
        self.check_end(disk, None)


def _single(key: str, value: bytes) -> bytes:
    return encode_entry(
        *encode_single(PulsarMessage(key=key.encode(), value=value, publish_time=1))
    )


def _metadata(custom: dict[str, bytes] | None = None) -> LedgerMetadata:
    return LedgerMetadata(
        quorum=1,
        ensemble=1,
        ack_quorum=1,
        length=0,
        state=LedgerState.CLOSED,
        digest=Digest.CRC32,
        custom_items=custom_items(custom or {}),
    )


def _list(*ledgers: tuple[int, int, bool]) -> bytes:
    """A topic's ledger list: id, number of entries, and whether it is closed.

    A live round also adds the end of the open ledger.
    """
    return ManagedLedgerInfo(
        ledgers=tuple(
            LedgerInfo(ledger=ledger, entries=entries, closed_ms=1 if is_closed else None)
            for ledger, entries, is_closed in ledgers
        )
    ).encode()
