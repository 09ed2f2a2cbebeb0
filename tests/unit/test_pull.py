"""Tests of a broker's responses to a pull; see docs/formats/rocketmq-compaction.md, "A pull"."""

from __future__ import annotations

import pytest

from lastwrite.rocketmq.rules.pull import FileOffsets, PullResult, PullStatus, answer, count_pulled

R = FileOffsets


def outcome(said: PullResult) -> tuple[PullStatus, int, int | None]:
    return said.status, said.next_offset, said.file


def test_queue_without_a_compaction_log_has_no_matched_queue() -> None:
    assert outcome(answer(0, None)) == (PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, None)
    assert outcome(answer(7, None)) == (PullStatus.NO_MATCHED_LOGIC_QUEUE, 0, None)


@pytest.mark.parametrize("files", [[], [None], [None, None]])
def test_queue_without_messages_has_no_message(files: list[FileOffsets | None]) -> None:
    assert outcome(answer(5, files)) == (PullStatus.NO_MESSAGE_IN_QUEUE, 0, None)


def test_documented_example_gives_its_responses() -> None:
    # After the broker's first compaction. Offset 100 has no key, so no file contains it.
    files = [R(77, 83), R(84, 99)]
    for offset in (0, 1, 50, 77):
        assert outcome(answer(offset, files)) == (PullStatus.FOUND, offset, 0)
    assert outcome(answer(84, files)) == (PullStatus.FOUND, 84, 1)
    assert outcome(answer(100, files)) == (PullStatus.OFFSET_OVERFLOW_ONE, 100, None)
    assert outcome(answer(101, files)) == (PullStatus.OFFSET_OVERFLOW_BADLY, 100, None)
    assert outcome(answer(101, [R(0, 99)])) == (PullStatus.OFFSET_OVERFLOW_BADLY, 0, None)


def test_hole_between_files_is_skipped() -> None:
    assert outcome(answer(5, [R(0, 3), R(9, 9), R(12, 20)])) == (PullStatus.FOUND, 5, 1)
    assert outcome(answer(10, [R(0, 3), R(9, 9), R(12, 20)])) == (PullStatus.FOUND, 10, 2)


def test_file_pair_without_a_message_is_skipped_or_null() -> None:
    """File pairs that compaction emptied but did not remove."""
    assert outcome(answer(0, [None, R(5, 9)])) == (PullStatus.OFFSET_FOUND_NULL, 0, None)
    assert outcome(answer(3, [R(0, 2), None, R(5, 9)])) == (PullStatus.OFFSET_FOUND_NULL, 0, None)
    assert outcome(answer(6, [R(0, 2), None, R(5, 9)])) == (PullStatus.FOUND, 6, 2)
    # A new active pair. The largest offset is searched for only in the last two files.
    assert outcome(answer(3, [R(0, 2), None])) == (
        PullStatus.OFFSET_OVERFLOW_ONE,
        3,
        None,
    )
    # The maximum is looked for in the last two files and in no other.
    assert outcome(answer(1, [R(0, 2), None, None])) == (PullStatus.NO_MESSAGE_IN_QUEUE, 0, None)


@pytest.mark.parametrize(
    ("status", "at_0", "at_9"),
    [
        (PullStatus.FOUND, 0, 0),
        (PullStatus.NO_MATCHED_LOGIC_QUEUE, 19, 21),
        (PullStatus.NO_MESSAGE_IN_QUEUE, 19, 21),
        (PullStatus.OFFSET_OVERFLOW_ONE, 19, 19),
        (PullStatus.OFFSET_OVERFLOW_BADLY, 21, 21),
        (PullStatus.OFFSET_FOUND_NULL, 19, 19),
    ],
)
def test_client_code_depends_on_the_requested_offset(
    status: PullStatus, at_0: int, at_9: int
) -> None:
    assert (status.code(0), status.code(9)) == (at_0, at_9)


def test_number_of_messages_in_a_response_is_limited() -> None:
    assert count_pulled([]) == 0
    assert count_pulled([300_000, 1]) == 1  # a response always has at least one message
    assert count_pulled([100] * 50) == 32
    assert count_pulled([100] * 50, max_messages=7) == 7
    assert count_pulled([100] * 50, on_disk=True) == 8
    assert count_pulled([60_000, 6_000], on_disk=True) == 1
    assert count_pulled([200_000, 62_144, 1]) == 2
    assert (
        count_pulled([60, 40, 1], max_bytes=5) == 2
    )  # a client cannot request less than 100 bytes
