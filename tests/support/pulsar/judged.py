"""Random topics, compacted by a real Pulsar and by Lastwrite, and compared by round.

A seed is a topic and two to four rounds. In each round, three clients send the messages that
``judged_topics`` draws, and the raw ledgers are copied to archives as the offloader would write
them. Then

- the broker compacts the topic, and ``like_broker`` the archive: the horizons are equal, and so are
the compacted ledgers, byte for byte. Where the broker's library compresses differently, or the
broker drops unknown fields, the decoded entries are compared instead; - the default mode keeps the
same messages, and also every chunk of chunked messages; - Lastwrite's compacted ledger replaces the
broker's in the topic. Real readers get the same messages as before, sometimes after a reload, and
the broker's next run continues from that ledger.

A last round sometimes runs on the live topic: Lastwrite reads it from the bookies and publishes the
result. The broker then has nothing to do. After its compaction state is deleted, it compacts to the
same result.

Ledgers below the horizon are sometimes deleted from the archives, because no later round needs
them.
"""

from __future__ import annotations

import base64
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lastwrite
from lastwrite.model.work import Limits
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.store.manifest import read_manifest
from lastwrite.reports.compaction import Status
from lastwrite.spark.inline import INLINE
from tests.support.kafka.logs import SCRATCH
from tests.support.pulsar import archive
from tests.support.pulsar import entries as entries_of
from tests.support.pulsar.driver import Horizon
from tests.support.pulsar.judged_topics import Topic
from tests.support.pulsar.oracle import SETTINGS, Standalone

COMMIT_PAUSE_S = 1.1  # within a second, a broker writes a second commit only to memory
KNOWN = frozenset(range(1, 33)) - {10, 21}  # fields of MessageMetadata that the broker knows
PLAIN, KEYLESS, EVENT_TIME = SETTINGS
BLOCK = 25  # consecutive seeds with the same settings: starting another standalone takes seconds

Place = tuple[int, int]


def settings_of(seed: int) -> str:
    """The name of the settings with which a seed is run."""
    return (PLAIN, KEYLESS, PLAIN, EVENT_TIME)[seed // BLOCK % 4]


def check_seed(standalone: Standalone, seed: int) -> Counter[str]:
    """Run a seed on a standalone with its settings. Returns how often each case occurred.

    Raises:
        AssertionError: The results differ. The message says where.
    """
    with tempfile.TemporaryDirectory(prefix="lastwrite-pulsar-", dir=SCRATCH) as folder:
        return _Rounds(standalone, seed, Path(folder)).play()


class _Rounds:
    def __init__(self, standalone: Standalone, seed: int, folder: Path) -> None:
        self._rng = random.Random(f"pulsar-{seed}")
        self._settings_name = settings_of(seed)
        self._settings = SETTINGS[self._settings_name]
        self._broker, self._driver, self._sender = standalone
        base = f"persistent://public/default/seed-{seed}"
        partitions = self._rng.choice((0, 0, 0, 3))
        self._driver.create(base, partitions)
        self._name = f"{base}-partition-{self._rng.randrange(partitions)}" if partitions else base
        self._topic = Topic(self._rng, self._name)
        self._like, self._own = folder / "like-broker", folder / "own"
        self._block_bytes = self._rng.choice((1 << 20, 4096, 700))
        self._raw: dict[int, list[bytes]] = {}
        self._removed: set[int] = set()
        self._horizon: Horizon | None = None
        self._committed = 0.0
        self._met = self._topic.met

    def play(self) -> Counter[str]:
        rounds = self._rng.randrange(2, 5)
        for number in range(rounds):
            self._sender.play(self._name, self._topic.steps())
            self._bring()
            self._compact(is_last=number == rounds - 1)
            self._met["rounds"] += 1
        if (
            self._settings_name != EVENT_TIME and self._rng.random() < 0.3
        ):  # by event time, the result depends on the rounds before
            self._compact_live()
        self._met[f"topics: {self._settings_name}"] += 1
        return self._met

    # ---- the archives

    def _bring(self) -> None:
        """Copy the topic's raw ledgers to both archives."""
        node, ledgers = self._driver.ledgers(self._name)
        for each in ledgers:
            known = self._raw.setdefault(each.ledger, [])
            if each.last >= len(known):
                known += self._driver.dump(each.ledger, len(known), each.last)
            if not known or each.ledger in self._removed:
                continue
            for root in (self._like, self._own):
                folder = archive.topic_folder(root, self._name)
                archive.write_ledger(folder, each.ledger, known, each.metadata, self._block_bytes)
        for root in (self._like, self._own):
            folder = archive.topic_folder(root, self._name)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "managed-ledger").write_bytes(node)

    def _trim(self) -> None:
        """Delete the ledgers that are wholly below the horizon from the archives."""
        assert self._horizon is not None
        for ledger in self._raw:
            if ledger < self._horizon.ledger and ledger not in self._removed:
                self._removed.add(ledger)
                for root in (self._like, self._own):
                    archive.remove_ledger(archive.topic_folder(root, self._name), ledger)

    # ---- a round

    def _compact(self, *, is_last: bool) -> None:
        before = self._horizon
        answer = self._driver.compact(self._name)
        assert answer["status"] in ("SUCCESS", "NOT_RUN"), answer
        self._horizon = self._driver.horizon(self._name)
        if answer["did"]:
            self._committed = time.monotonic()
        did, ours = self._ours(self._like, like_broker=True)
        assert did == answer["did"], (did, answer, self._horizon, before)
        own_did, own = self._ours(self._own, like_broker=False)
        assert own_did == answer["did"], (own_did, answer)
        if not did:
            self._met["rounds with nothing to do"] += 1
            return
        assert self._horizon is not None
        theirs = self._driver.dump(self._horizon.compacted_ledger)
        self._met["runs of the broker"] += 1
        self._same(ours, theirs)
        self._same_messages(own, theirs)
        self._attach(
            own if is_last and self._rng.random() < 0.5 else ours, theirs, is_own=ours is not own
        )
        if self._rng.random() < 0.3:
            self._trim()

    def _ours(self, root: Path, *, like_broker: bool) -> tuple[bool, list[bytes]]:
        """Whether a round was due, and the records of the compacted ledger after it.

        Checks the horizon.
        """
        with _small_pieces(self._rng) if self._rng.random() < 0.4 else nullcontext():
            report = lastwrite.compact(
                str(root),
                config=dict(self._settings),
                spark=INLINE,
                like_broker=like_broker,
                exact=self._rng.random() < 0.2,
            )
        (partition,) = report.partitions
        assert partition.status in (Status.CLEANED, Status.SKIPPED), (
            partition.reason,
            partition.problems,
        )
        folder = archive.topic_folder(root, self._name)
        manifest = read_manifest(str(folder))
        if manifest is None:
            return False, []
        records = archive.read_ledger(folder / manifest.object)
        if partition.status is Status.CLEANED:
            assert self._horizon is not None
            assert self._is_horizon(manifest.horizon), (manifest.horizon, self._horizon)
            assert manifest.entries == len(records)
        return partition.status is Status.CLEANED, records

    def _is_horizon(self, ours: Position) -> bool:
        """Whether the broker's horizon is the same.

        A broker may move its mark to the begin of a newer ledger without entries.
        """
        assert self._horizon is not None
        ledger, number, _ = self._horizon
        between = [
            each for each, entries in self._raw.items() if ours.ledger < each < ledger and entries
        ]
        is_moved = number == -1 and not between and ours.entry == len(self._raw[ours.ledger]) - 1
        return (ours.ledger, ours.entry) == (ledger, number) or is_moved

    def _same(self, ours: Sequence[bytes], theirs: Sequence[bytes]) -> None:
        """Compare two compacted ledgers entry for entry."""
        places = [[entries_of.record(each)[0] for each in side] for side in (ours, theirs)]
        assert places[0] == places[1], _first_difference(places[0], places[1])
        for our, their in zip(ours, theirs, strict=True):
            self._met["entries"] += 1
            if our == their:
                self._met["entries equal byte for byte"] += 1
                continue
            (place, our_id, our_body), (_, their_id, their_body) = (
                entries_of.record(our),
                entries_of.record(their),
            )
            assert our_id == their_id, (place, our_id.hex(), their_id.hex())
            one, two = entries_of.entry(our_body), entries_of.entry(their_body)
            assert one.prefix == two.prefix, place
            assert (one.crc_holds, two.crc_holds) == (True, True), place
            plain = one.plain()
            assert plain is not None and plain == two.plain(), (place, one, two)
            known = [pair for pair in one.fields if pair[0] in KNOWN]
            assert known == two.fields, (place, known, two.fields)
            is_compressed = bool(two.first(8))
            assert is_compressed or known != one.fields, (place, one, two)
            self._met["entries compressed by another library"] += is_compressed
            self._met["entries whose unknown fields we keep"] += known != one.fields

    def _same_messages(self, own: Sequence[bytes], theirs: Sequence[bytes]) -> None:
        """Check that the default mode leaves the same messages as the broker, chunks aside."""
        sides = [_messages(side) for side in (own, theirs)]
        assert sides[0] == sides[1], _first_difference(sides[0], sides[1])
        chunks = [
            {p for p, _, e in map(entries_of.record, side) if entries_of.entry(e).is_chunk}
            for side in (own, theirs)
        ]
        assert chunks[0] >= chunks[1]
        self._met["messages left"] += len(sides[0])
        self._met["chunks that a broker drops"] += len(chunks[0]) - len(chunks[1])

    def _compact_live(self) -> None:
        """Run a round on the live topic, then the broker's compaction from its begin."""
        self._sender.play(self._name, self._topic.steps())
        self._bring()
        before = self._driver.horizon(self._name)
        store = {"metadataStoreUrl": f"zk:{self._broker.metadata_store}"}
        report = lastwrite.compact(
            self._name, config={**self._settings, **store}, spark=INLINE, like_broker=True
        )
        (partition,) = report.partitions
        assert partition.status in (Status.CLEANED, Status.SKIPPED), (
            partition.reason,
            partition.problems,
        )
        ours = self._driver.horizon(self._name)
        is_new = ours is not None and (
            before is None or ours.compacted_ledger != before.compacted_ledger
        )
        assert is_new == (partition.status is Status.CLEANED), (ours, before, partition.reason)
        answer = self._driver.compact(self._name)
        assert not answer["did"], (answer, ours)
        if ours is None:
            return
        records = self._driver.dump(ours.compacted_ledger)
        read = self._read()
        self._driver.ask("unsubscribe", topic=self._name, subscription="__compaction")
        self._driver.compact(self._name)
        self._horizon = self._driver.horizon(self._name)
        assert self._horizon is not None
        if is_new:  # otherwise, a reload may have moved the broker's mark after the last entry
            assert self._horizon[:2] == ours[:2]
        theirs = self._driver.dump(self._horizon.compacted_ledger)
        if is_new:
            self._same(records, theirs)
            assert self._read() == read
        # The ledger attached last is still in use. It may be of the default mode, with every chunk.
        else:
            self._same_messages(records, theirs)
        self._met["rounds on the live topic"] += 1

    # ---- real readers

    def _attach(self, ours: Sequence[bytes], theirs: Sequence[bytes], *, is_own: bool) -> None:
        if self._rng.random() < 0.5:
            return
        assert self._horizon is not None
        before = self._read()
        if before is None:
            return
        time.sleep(max(0.0, self._committed + COMMIT_PAUSE_S - time.monotonic()))
        try:
            made = self._driver.attach(self._name, ours, self._horizon.ledger, self._horizon.entry)
        except (
            RuntimeError  # once in hundreds of runs, a broker forgets an acknowledged ledger
        ) as error:
            assert "does not take ledger" in str(error)
            self._met["acknowledgements that a broker forgot"] += 1
            self._driver.unload(self._name)
            moved = self._driver.horizon(
                self._name
            )  # the horizon may have moved to an empty ledger
            assert moved is not None and moved.compacted_ledger == self._horizon.compacted_ledger
            made = self._driver.attach(self._name, ours, moved.ledger, moved.entry)
        self._committed = time.monotonic()
        self._met["ledgers of ours attached"] += 1
        for _ in range(self._rng.randrange(1, 3)):
            now = self._driver.horizon(self._name)
            assert now is not None and now.compacted_ledger == made, (now, made)
            after = self._read()
            assert after is not None
            assert self._without_chunks(after) == self._without_chunks(before), _first_difference(
                self._without_chunks(after), self._without_chunks(before)
            )
            self._met["messages read from ours"] += len(after)
            places = {(each["ledger"], each["entry"]) for each in after} & self._chunks()
            assert places == _whole_chunked(ours), (places, _whole_chunked(ours))
            self._met["chunked messages read from ours"] += len(places)
            if self._topic.is_plain:
                self._read_by_another_client(after)
            time.sleep(max(0.0, self._committed + COMMIT_PAUSE_S - time.monotonic()))
            self._driver.unload(self._name)

    def _read(self) -> list[Mapping[str, Any]] | None:
        """The messages that a reader gets.

        None if the last entry is a batch that cannot be decoded: the broker fails because it cannot
        count its messages.
        """
        try:
            return self._driver.read(self._name, compacted=True, patience_ms=3000, may_hang=True)
        except RuntimeError as error:
            assert "Failed to read last entry of the compacted Ledger" in str(error)
            self._met["topics that cannot be read"] += 1
            return None

    def _read_by_another_client(self, wanted: Sequence[Mapping[str, Any]]) -> None:
        found = self._sender.read(self._name)
        assert found == [
            (
                each["ledger"],
                each["entry"],
                each["index"],
                each["key"] or "",
                base64.b64decode(each["value"] or ""),
            )
            for each in wanted
            if each["key"] or each["value"]
        ]
        self._met["messages read by the C++ client"] += len(found)

    def _chunks(self) -> set[Place]:
        return {
            (ledger, number)
            for ledger, entries in self._raw.items()
            for number, data in enumerate(entries)
            if entries_of.entry(data).is_chunk
        }

    def _without_chunks(self, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [
            each
            for each in messages
            if not entries_of.entry(self._raw[each["ledger"]][each["entry"]]).is_chunk
        ]


@contextmanager
def _small_pieces(rng: random.Random) -> Iterator[None]:
    """Split ledgers into many pieces and results into many parts, as with large ledgers."""
    piece_bytes, bits = rng.choice((1, 500, 3000)), rng.randrange(4)
    limits = Limits(
        chunk_bytes=rng.choice((100, 900)), block_entries=rng.randrange(1, 9), slice_bytes=100
    )
    with (
        patch("lastwrite.engine.pieces._PIECE_BYTES", piece_bytes),
        patch("lastwrite.engine.pieces._LEAST_PIECE_BYTES", piece_bytes),
        patch("lastwrite.engine.shares._LEAST_PART_BYTES", 1),
        patch("lastwrite.spark.work.InlineRunner.workers", 3),
        patch("lastwrite.engine.plan.bucket_bits", lambda _: bits),
        patch("lastwrite.spark.memory.MemoryPlan.limits", lambda _: limits),
        patch("lastwrite.pulsar.store.staging.BLOCK_BYTES", rng.choice((200, 1500))),
    ):
        yield


def _messages(records: Sequence[bytes]) -> list[tuple[Place, int, bytes, bytes | None]]:
    """Position, index, metadata and value of each message, chunks aside.

    An entry that cannot be decoded counts as one message with its whole body.
    """
    found: list[tuple[Place, int, bytes, bytes | None]] = []
    for place, _, body in map(entries_of.record, records):
        entry = entries_of.entry(body)
        if entry.is_chunk:
            continue
        plain = entry.plain()
        if not entry.is_readable_batch or plain is None:
            found.append((place, -1, b"", body))
            continue
        found += [
            (place, index, single.metadata, single.value)
            for index, single in enumerate(entries_of.singles(plain))
            if single.first(4) is None
        ]
    return found


def _whole_chunked(records: Sequence[bytes]) -> set[Place]:
    """The positions of the last chunks of complete messages, which a reader can put together."""
    groups: dict[object, list[tuple[Place, int | bytes | None]]] = {}
    for place, _, body in map(entries_of.record, records):
        entry = entries_of.entry(body)
        if entry.is_chunk:
            groups.setdefault(entry.first(26), []).append((place, entry.first(27)))
    return {group[-1][0] for group in groups.values() if len(group) == group[0][1]}


def _first_difference(one: Sequence[Any], two: Sequence[Any]) -> str:
    at = next(
        (n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b),
        min(len(one), len(two)),
    )
    return f"{len(one)} and {len(two)}, at {at}: {one[at : at + 2]} and {two[at : at + 2]}"
