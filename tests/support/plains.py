"""Test data for compression."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def plains(draw: st.DrawFn) -> bytes:
    """Bytes that compress in many ways: repeats of one or more bytes, near and far, and noise."""
    out = b""
    for _ in range(draw(st.integers(1, 12))):
        kind = draw(st.integers(0, 3))
        if kind == 0:
            out += draw(st.binary(max_size=80))
        elif kind == 1:
            out += draw(st.binary(min_size=1, max_size=24)) * draw(st.integers(1, 60))
        elif kind == 2 and out:
            back = draw(st.integers(1, len(out)))
            out += out[-back:][: draw(st.integers(4, 700))]
        else:
            out += bytes(draw(st.integers(1, 700)))
    return out
