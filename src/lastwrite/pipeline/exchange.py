"""Between the stages: how entries reach the task that elects them, and losers the task that rewrites.

``FolderExchange`` writes packed blocks to scratch files that every worker of this machine sees; only
their places travel through Spark. It is the fast way on one machine. A block in a file:

    uint32 a bucket: where it ends, counted in entries · 16 bytes an entry (24 with a version), by bucket
    and with exact comparison: uint32 an entry: its key's length · the keys

Both exchanges give the same results; tests hold them against each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lastwrite.logstore.scratch import ScratchWriter, make_folder, remove_folder
from lastwrite.model.progress import Progress
from lastwrite.model.work import Block, Elected, ElectUnit, PieceScan, RewriteUnit, Rewritten, ScanUnit
from lastwrite.pipeline.elect import elect
from lastwrite.pipeline.rewrite import rewrite
from lastwrite.pipeline.runner import Failed, Runner
from lastwrite.pipeline.scan import EntryBlock, scan


def scan_to_folder(unit: ScanUnit) -> list[PieceScan]:
    """Scan the unit's pieces; entries and states go to two scratch files."""
    entries = ScratchWriter(unit.scratch, "entries")
    states = ScratchWriter(unit.scratch, "states")
    blocks: list[Block] = []

    def keep(block: EntryBlock) -> None:
        parts = [block.ends, block.rows]
        key_bytes = 0
        if block.lengths is not None and block.keys is not None:
            parts += [block.lengths, block.keys]
            key_bytes = len(block.keys)
        position = entries.append(*parts)
        blocks.append(Block(block.piece, entries.path, position, len(block.rows), key_bytes, block.rows.shape[1]))

    results = []
    try:
        for piece, (result, piece_states) in zip(unit.pieces, scan(unit, keep), strict=True):
            if result.problem is None and piece.keyed:
                result.states = states.path
                result.states_at = states.append(piece_states)
                result.blocks = blocks
            blocks = []
            results.append(result)
    finally:
        entries.close()
        states.close()
    return results


class FolderExchange:
    """By scratch files on this machine."""

    def __init__(self, runner: Runner, parent: str | None = None) -> None:
        self._runner = runner
        self._folder: Path = make_folder(parent)

    @property
    def scratch(self) -> str:
        return str(self._folder)

    def scan(self, units: Sequence[ScanUnit], progress: Progress) -> list[list[PieceScan] | Failed[ScanUnit]]:
        weights = [sum(piece.bytes for piece in unit.pieces) for unit in units]
        return self._runner.run("scan", scan_to_folder, units, weights, progress)

    def elect(self, units: Sequence[ElectUnit], progress: Progress) -> list[Elected | Failed[ElectUnit]]:
        weights = [
            16 * sum(block.count for block in unit.blocks) * (unit.end_bucket - unit.first_bucket) >> unit.bits
            for unit in units
        ]
        return self._runner.run("elect", elect, units, weights, progress)

    def rewrite(self, units: Sequence[RewriteUnit], progress: Progress) -> list[Rewritten | Failed[RewriteUnit]]:
        weights = [sum(piece.bytes for piece in unit.pieces) for unit in units]
        return self._runner.run("rewrite", rewrite, units, weights, progress)

    def close(self) -> None:
        remove_folder(self._folder)
