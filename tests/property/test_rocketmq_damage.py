"""Properties of randomly changed stores: a round completes or reports damage.

A damaged queue stays unchanged.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lastwrite.reports.compaction import Status
from tests.property.test_rocketmq_compaction import Life, all_files, empty_store, grow, lives, run
from tests.support.rocketmq.model import read_files


@st.composite
def harms(draw: st.DrawFn) -> list[tuple[int, int, bytes]]:
    """Changes: the file's number, the position in it, and the new bytes."""
    ugly = st.sampled_from(
        [b"\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0" * 8, b"\xff" * 8, b"\x7f" + b"\xff" * 7]
    )
    return draw(
        st.lists(
            st.tuples(
                st.integers(0, 99), st.integers(0, 700), ugly | st.binary(min_size=1, max_size=4)
            ),
            max_size=3,
        )
    )


@given(lives(), harms(), st.booleans(), st.integers(-60, 0))
def test_changed_bytes_do_not_crash_a_round(
    life: Life, harm: list[tuple[int, int, bytes]], like_broker: bool, shorter: int
) -> None:
    queues = life.new_queues()
    with empty_store() as root:
        for phase in life.phases:
            grow(root, queues, phase)
        places = sorted(all_files(queues))
        if not places:
            return
        for file, at, data in harm:
            path = root / "compaction" / places[file % len(places)]
            content = bytearray(path.read_bytes())
            content[at : at + len(data)] = data[: max(0, len(content) - at)]
            path.write_bytes(content)
        if harm and shorter < -30:
            path = root / "compaction" / places[harm[0][0] % len(places)]
            path.write_bytes(path.read_bytes()[:shorter])
        before = read_files(root)
        told = run(root, life.phases[-1].now_ms, like_broker=like_broker)
        after = read_files(root)
        for number, report in told.items():
            if report.status is not Status.CLEANED:
                inside = Path("ctopic") / str(number)
                assert _of(before, inside) == _of(after, inside)
            if report.status is Status.DAMAGED:
                assert report.problems


def _of(files: dict[str, bytes], inside: Path) -> dict[str, bytes]:
    return {
        place: content
        for place, content in files.items()
        if str(inside) == str(Path(*Path(place).parts[1:3]))
    }
