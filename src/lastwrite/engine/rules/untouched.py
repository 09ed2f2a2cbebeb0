"""Choose the segments of a group that are rewritten. The others stay unchanged.

Kafka rewrites every segment of a round. Lastwrite does not rewrite a segment in which no record is
dropped and no batch is stamped. The small segments of earlier rounds must be merged, though. An
unchanged neighbour of a rewritten segment is therefore rewritten too, if it is no larger than the
bytes that the rewrite keeps. This at most doubles the bytes written, and merged segments double in
size until they are full.

For example, a group has segments of 90 MB, 100 MB, 0, 100 MB and 2 MB, and the second keeps 30 of
its 100 MB. The second and the empty third are rewritten as one segment; the others stay.
"""

from __future__ import annotations

from collections.abc import Sequence


def rewritten_runs(
    sizes: Sequence[int], kept: Sequence[int], changed: Sequence[bool]
) -> list[tuple[int, int]]:
    """The runs of segments in a group to rewrite, as ranges [first, end) of segment indexes.

    Each run becomes one new segment.

    The arguments have one item per segment: its bytes, the estimated bytes that survive, and
    whether the round must change the segment.
    """
    runs: list[list[int]] = []  # (first segment, end, surviving bytes) of each run
    for i, is_changed in enumerate(changed):
        if is_changed:
            if runs and runs[-1][1] == i:
                runs[-1][1] = i + 1
                runs[-1][2] += kept[i]
            else:
                runs.append([i, i + 1, kept[i]])
    grown = True
    while grown:
        grown = False
        for n, (first, end, total) in enumerate(runs):
            if end < len(sizes) and sizes[end] <= total and not changed[end]:
                runs[n] = [first, end + 1, total + sizes[end]]
                grown = True
            elif first > 0 and sizes[first - 1] <= total and not changed[first - 1]:
                runs[n] = [first - 1, end, total + sizes[first - 1]]
                grown = True
            else:
                continue
            break
        merged: list[list[int]] = []
        for run in runs:
            if merged and merged[-1][1] >= run[0]:
                overlap = sum(sizes[i] for i in range(run[0], merged[-1][1]))
                merged[-1] = [merged[-1][0], run[1], merged[-1][2] + run[2] - overlap]
            else:
                merged.append(run)
        grown = grown or len(merged) != len(runs)
        runs = merged
    return [(first, end) for first, end, _ in runs]
