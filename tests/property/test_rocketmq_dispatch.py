"""Properties of dispatch: it leaves what a broker's reput thread leaves.

The result does not depend on the sizes of pieces, or on how often dispatch stops.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from unittest import mock

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import lastwrite
from lastwrite.errors import LogError
from lastwrite.model.log import Problem
from lastwrite.rocketmq.jobs import dispatch as pipeline
from lastwrite.rocketmq.reports import DispatchReport
from lastwrite.spark.inline import INLINE
from tests.support.rocketmq.dispatch import Broker, Files, brokers, read_dispatched, write_store

NOW = 1_700_000_500_000
# No shrinking, which takes minutes. A failure lists the broker's messages, one on a line.
slowly = settings(
    deadline=None,
    max_examples=40,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def dispatch(
    root: Path, broker: Broker, piece_bytes: int = 1 << 20, **more: object
) -> DispatchReport:
    with mock.patch.object(pipeline, "_MOST_PIECE_BYTES", piece_bytes):
        return lastwrite.dispatch(
            str(root), config=broker.sizes.config(), now_ms=NOW, spark=INLINE, **more
        )  # type: ignore[arg-type]


def told(expected: Files, found: Files) -> str:
    """The names of files that differ."""
    return ", ".join(
        sorted(
            name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)
        )
    )


@slowly
@given(brokers(), st.sampled_from([100, 333, 1000, 1 << 20]))
def test_lost_dispatch_is_rebuilt_byte_for_byte(broker: Broker, piece_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = write_store(Path(folder), broker)
        report = dispatch(root, broker, piece_bytes)
        assert not told(broker.dispatched(), read_dispatched(root))
        assert report.exit_status == 0
        assert all("light queue" in problem.message for problem in report.problems)
        assert report.records == len(broker.addresses)
        again = dispatch(root, broker, piece_bytes)
        assert not told(broker.dispatched(), read_dispatched(root))
        assert (
            not again.index_entries and not again.total("units_added") and not again.bytes_written
        )


def light_problems(root: Path) -> list[Problem]:
    """The problems of light queues that ``inspect`` reports."""
    report = lastwrite.inspect(str(root))
    found = {queue.name.topic: queue.problems for queue in report.partitions}
    light = [one for topic, some in found.items() if topic.startswith("%LMQ%") for one in some]
    return light + [one for one in report.problems if "%LMQ%" in one.path]


@slowly
@given(brokers(30), st.data())
def test_light_queues_are_verified(broker: Broker, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = write_store(Path(folder), broker)
        dispatch(root, broker)
        assert not light_problems(root)
        there = sorted((root / "consumequeue").glob("%LMQ%*/0"))
        if not there:
            return
        queue = data.draw(st.sampled_from(there))
        first = sorted(queue.iterdir())[0]
        if data.draw(st.booleans()):
            shutil.rmtree(queue.parent)
        else:  # the file's last unit refers to another record
            content = bytearray(first.read_bytes())
            at = max(at for at in range(0, len(content), 20) if any(content[at : at + 20]))
            content[at + 7] ^= 1
            first.write_bytes(content)
        assert any(one.kind == "damaged" for one in light_problems(root))


@slowly
@given(st.data())
def test_dispatch_continues_where_it_stopped(data: st.DataObject) -> None:
    whole = data.draw(brokers())
    stop = data.draw(st.integers(0, len(whole.addresses) - 1))
    first = cut(whole, stop)
    with tempfile.TemporaryDirectory() as folder:
        root = write_store(Path(folder), first)
        dispatch(root, first)
        lost = data.draw(
            st.sampled_from(
                [(), ("index",), ("compaction",), ("consumequeue",), ("index", "compaction")]
            )
        )
        for tree in lost:
            shutil.rmtree(root / tree, ignore_errors=True)
        write_store(root, whole)
        dispatch(root, whole, data.draw(st.sampled_from([100, 1 << 20])))
        assert not told(whole.dispatched(), read_dispatched(root))


def cut(whole: Broker, count: int) -> Broker:
    """A broker with the same sizes and only the first ``count`` messages."""
    from lastwrite.rocketmq.format.record import decode_message

    broker = Broker(whole.sizes, whole.first_address)
    for address in whole.addresses[:count]:
        number, at = divmod(address - whole.first_address, whole.sizes.commit_log)
        broker.put(decode_message(bytes(whole.log[number]), at, whole.sizes.commit_log))
    if not broker.log:
        broker.log.append(bytearray(whole.sizes.commit_log))
    return broker


@slowly
@given(st.data())
def test_dispatch_of_a_damaged_store_is_consistent_or_refused(data: st.DataObject) -> None:
    """Dispatch refuses the store, or a second run agrees with the first and its report."""
    whole = data.draw(brokers(30))
    stop = data.draw(st.integers(0, len(whole.addresses)))
    with tempfile.TemporaryDirectory() as folder:
        root = write_store(Path(folder) / "store", cut(whole, stop))
        dispatch(root, whole)
        write_store(root, whole)
        paths = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "lock")
        for _ in range(data.draw(st.integers(1, 3))):
            path = data.draw(st.sampled_from(paths))
            harm(path, data)
        try:
            report = dispatch(root, whole, data.draw(st.sampled_from([100, 1 << 20])))
        except LogError as error:
            assert error.path is None or str(folder) in error.path
            return
        assert report.exit_status in (0, 3)
        made = read_dispatched(root)
        again = dispatch(root, whole)
        assert not told(made, read_dispatched(root)) and again.exit_status == report.exit_status
        assert [path.name for path in Path(folder).iterdir()] == ["store"]


def harm(path: Path, data: st.DataObject) -> None:
    """Overwrite some bytes of the file by a wrong number or noise, or truncate the file."""
    content = bytearray(path.read_bytes())
    if not content or data.draw(st.integers(0, 9)) == 0:
        path.write_bytes(content[: len(content) // 2])
        return
    at = data.draw(st.integers(0, min(len(content) - 1, 400)))
    contradiction = data.draw(
        st.sampled_from(
            [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0", b"\0\0\0\x01"]
        )
        | st.binary(min_size=1, max_size=12)
    )
    content[at : at + len(contradiction)] = contradiction
    path.write_bytes(content[: path.stat().st_size])
