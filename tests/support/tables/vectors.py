"""A topic with many keys, and a table of it with deletion vectors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lastwrite
from lastwrite.commands.table_to import format_at
from lastwrite.tables.format import TableFormat
from tests.support.kafka.growing import GrowingLog
from tests.support.tables.judges import readings

KEYS = 400


class Topic:
    """A topic with many keys, and a table of it."""

    def __init__(self, folder: Path, format: str) -> None:
        self.root, self.to, self.format = folder / "log", folder / "table", format
        self.root.mkdir()
        self.log = GrowingLog(self.root)
        self.model = {b"key-%d" % n: b"first" for n in range(KEYS)}
        self.log.append([(key, value, 1) for key, value in self.model.items()])
        self.draw = random.Random(1)

    def round(self, changes: int = 10, **how: Any) -> lastwrite.TableRound:
        for n in range(changes):
            key = b"key-%d" % self.draw.randrange(KEYS)
            self.model[key] = b"%d at %d" % (n, self.log.end)
            self.log.append([(key, self.model[key], 2)])
        if changes:
            key = b"key-%d" % self.draw.randrange(KEYS)
            self.log.append([(key, None, 3)])
            self.model.pop(key, None)
        where = {"topic": "t", "to": str(self.to), "format": self.format}
        return lastwrite.table_to(str(self.root), **where, **how)

    def check(self) -> None:
        for name, rows in readings(f"{self.format}-vectors", self.to):
            assert rows == self.model, name
        proof = self.verify()
        assert proof.is_proven and proof.proven == len(self.model)

    def verify(self) -> lastwrite.TableProof:
        return lastwrite.verify_table(str(self.root), str(self.to), topic="t", format=self.format)

    def table(self) -> TableFormat:
        return format_at(str(self.to), self.format, "t", None)

    def vectors(self) -> set[str]:
        """The paths of the deletion vector files."""
        return {str(path) for path in self.to.rglob("*") if path.suffix in (".bin", ".puffin")}
