"""A segment that retention takes."""

from __future__ import annotations

from enum import StrEnum

from msgspec import field

from lastwrite.model.document import FrozenDocument


class RetentionRule(StrEnum):
    """What takes a segment, in the order in which it is asked."""

    LOG_START = "log start"
    BYTES = "retention.bytes"
    AGE = "retention.ms"


class Expired(FrozenDocument, frozen=True):
    """A segment that goes."""

    base_offset: int
    size_bytes: int = field(name="bytes")
    rule: RetentionRule
    reason: str  # a sentence with the figures
