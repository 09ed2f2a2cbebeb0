"""The timer's files, for messages with an arbitrary delivery time (since 5.0.0).

A broker stores such a message in topic ``rmq_sys_wheel_timer``, queue 0. Its timer service reads
that consume queue and appends a unit of 52 bytes to ``timerlog/``. ``timerwheel`` has the position
of the last unit of each second; each unit has the position of the previous unit of its second. A
timer log file ends with a blank: a size, 8 bytes and a special magic. ``config/timercheck`` has the
service's positions in the consume queue and the timer log.

If ``timerwheel`` is missing, a starting broker rebuilds it from the timer log, from one file before
the byte ``log_flushed_at``.

Source: RocketMQ 5.5.0 ``TimerMessageStore``, ``TimerLog``, ``TimerWheel``, ``TimerCheckpoint``.
"""

from __future__ import annotations

from typing import Annotated, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from lastwrite.encoding.layout import I32, I64, At, Buffer, layout
from lastwrite.errors import TruncatedLog
from lastwrite.model.columns import ByteArray

PRECISION_MS: Final = 1000  # default of timerPrecisionMs: the time span of a wheel slot
_MOST_MAGIC: Final = 0xF  # largest magic of a unit; the magic of a blank is larger


class TimerUnit(NamedTuple):
    """The unit of one message in the timer log."""

    # fmt: off
    #                               offset  type
    size:            Annotated[int, At(0,  I32)]  # always 52
    previous:        Annotated[int, At(4,  I64)]  # previous unit of the same second; -1: none
    magic:           Annotated[int, At(12, I32)]  # bits: 1 default, 2 store again, 4 recall
    write_time_ms:   Annotated[int, At(16, I64)]
    delay_ms:        Annotated[int, At(24, I32)]  # delay that begins at write_time_ms
    physical_offset: Annotated[int, At(28, I64)]  # address in the commit log
    message_size:    Annotated[int, At(36, I32)]
    topic_hash:      Annotated[int, At(40, I32)]
    reserved:        Annotated[int, At(44, I64)]
    # fmt: on


TIMER_UNIT = layout(TimerUnit, byte_order=">", size=52)
TIMER_DTYPE = np.dtype(TIMER_UNIT.dtype_items())
TimerUnits = npt.NDArray[np.void]


class TimerCheckpoint(NamedTuple):
    """The content of ``config/timercheck``: 4,096 bytes. The first 56 are used."""

    # fmt: off
    #                                   offset  type
    read_time_ms:        Annotated[int, At(0,  I64)]  # messages due before it are delivered
    log_flushed_at:      Annotated[int, At(8,  I64)]  # byte up to which the timer log was flushed
    queue_offset:        Annotated[int, At(16, I64)]  # next offset of the timer's consume queue
    master_queue_offset: Annotated[int, At(24, I64)]
    state_version:       Annotated[int, At(32, I64)]
    version_time_ms:     Annotated[int, At(40, I64)]
    version_counter:     Annotated[int, At(48, I64)]
    # fmt: on


TIMER_CHECKPOINT = layout(TimerCheckpoint, byte_order=">", size=56)


def decode_timer_checkpoint(data: Buffer) -> TimerCheckpoint:
    """Decode the file ``config/timercheck``.

    Raises:
        TruncatedLog: fewer bytes than the numbers need.
    """
    if len(data) < TIMER_CHECKPOINT.size:
        raise TruncatedLog(f"the timer checkpoint has only {len(data)} bytes", len(data))
    return TimerCheckpoint._make(TIMER_CHECKPOINT.unpack_from(data, 0))


def timer_units(data: ByteArray) -> TimerUnits:
    """The units of a timer log file, up to its blank or its unwritten bytes."""
    whole = len(data) // TIMER_UNIT.size * TIMER_UNIT.size
    table = data[:whole].view(TIMER_DTYPE)
    is_unit = (table["size"] == TIMER_UNIT.size) & ((table["magic"] | _MOST_MAGIC) == _MOST_MAGIC)
    return table if is_unit.all() else table[: int(np.argmin(is_unit))]
