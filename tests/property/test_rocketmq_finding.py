"""Properties of finding messages: damaged or missing indexes give the same as a commit log scan."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.errors import CorruptLog, NotALog
from tests.support.rocketmq.stores import StoreWriter

sends = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), st.integers(0, 1), st.integers(0, 4), st.integers(0, 90)
    ),
    min_size=1,
    max_size=60,
)
damages = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from("flip zero cut lose".split()),
        st.integers(1, 255),
    ),
    max_size=4,
)


def made(root: Path, sent: list[tuple[str, int, int, int]], first_file: int) -> StoreWriter:
    writer = StoreWriter(root, log_bytes=900, queue_bytes=100, slots=3, entries=11)
    for topic, queue, key, size in sent:
        writer.send(
            topic,
            b"x" * size,
            {"KEYS": f"k{key}", "UNIQ_KEY": f"{len(writer.sent):032X}"},
            queue=queue,
        )
    files = -(-len(writer.log) // 900)
    writer.write(first_file=min(first_file, files - 1))
    return writer


def damage(root: Path, folders: tuple[str, ...], wanted: list[tuple[int, float, str, int]]) -> None:
    for number, place, how, value in wanted:
        files = sorted(
            path for folder in folders for path in (root / folder).rglob("*") if path.is_file()
        )
        if not files:
            return
        path = files[number % len(files)]
        data = bytearray(path.read_bytes())
        at = int(place * len(data))
        if how == "lose":
            path.unlink()
            continue
        if how == "flip":
            data[at] ^= value
        elif how == "zero":
            data[at : at + 20] = bytes(len(data[at : at + 20]))
        else:
            data[at:] = bytes(len(data) - at)
        path.write_bytes(bytes(data))


def found(root: Path, **options: object) -> list[int]:
    """The physical offsets of the found messages.

    An index file of a wrong length is reported as damage at the end. A missing topic or queue has
    no messages.
    """
    rows = []
    try:
        for row in lastwrite.dump(str(root), **options):  # type: ignore[arg-type]
            rows.append(row["physical_offset"])
    except (CorruptLog, NotALog):
        pass
    return rows


@settings(deadline=None)
@given(sends, damages, st.integers(0, 3), st.integers(0, 30))
# The last unit refers to a commit log file that has expired, and its end is within the log.
@example(
    [("a", 0, 0, 67), ("a", 1, 0, 0), ("a", 1, 0, 0), ("a", 1, 0, 73), ("a", 0, 0, 43)],
    [(0, 0.2734375, "flip", 128)],
    1,
    0,
)
def test_queue_lookup_equals_a_scan_of_the_commit_log(
    sent: list[tuple[str, int, int, int]],
    wanted: list[tuple[int, float, str, int]],
    first_file: int,
    offset: int,
) -> None:
    root = Path(tempfile.mkdtemp())
    try:
        writer = made(root, sent, first_file)
        start = min(int(path.name) for path in (root / "commitlog").iterdir())
        damage(root, ("consumequeue",), wanted)
        for topic in ("a", "b"):
            for queue in (0, 1):
                here = [
                    message.physical_offset
                    for message in writer.sent
                    if (message.topic, message.queue_id) == (topic, queue)
                    and message.physical_offset >= start
                    and message.queue_offset >= offset
                ]
                assert found(root, topic=topic, partition=queue, offset=offset) == here
                times = [m.store_time_ms for m in writer.sent if m.physical_offset in here]
                if times:
                    assert found(root, topic=topic, partition=queue, time_ms=times[0]) == here
    finally:
        shutil.rmtree(root)


@settings(deadline=None)
@given(sends, damages, st.integers(0, 3))
def test_key_lookup_equals_a_scan_of_the_commit_log(
    sent: list[tuple[str, int, int, int]],
    wanted: list[tuple[int, float, str, int]],
    first_file: int,
) -> None:
    """Lost index files change no result, and index entries are checked against records.

    A lookup does not notice an entry that was removed from its chain (``inspect`` does). With other
    damage, only wrong results are excluded.
    """
    root = Path(tempfile.mkdtemp())
    try:
        writer = made(root, sent, first_file)
        start = min(int(path.name) for path in (root / "commitlog").iterdir())
        lost = [(number, place, "lose", value) for number, place, _, value in wanted]
        for damages_, is_exact in ((lost, True), (wanted, False)):
            damage(root, ("index",), damages_)
            for topic in ("a", "b"):
                for key in range(5):
                    here = [
                        message.physical_offset
                        for message in writer.sent
                        if message.topic == topic
                        and message.keys == f"k{key}"
                        and message.physical_offset >= start
                    ]
                    rows = found(root, topic=topic, key=f"k{key}".encode())
                    assert rows == here if is_exact else set(rows) <= set(here)
                    assert rows or not here
    finally:
        shutil.rmtree(root)
