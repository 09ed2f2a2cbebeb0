"""Runs every command on a topic folder, to check that none reports a damaged topic as intact."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import lastwrite
from lastwrite.errors import CorruptLog
from lastwrite.pulsar.format.names import SURVEY_SUFFIX
from lastwrite.pulsar.store import lock
from lastwrite.pulsar.store.place import name_of
from lastwrite.spark.inline import INLINE
from lastwrite.storage import quarantine

Said = tuple[int, str]  # exit status, and all of the output


def files_of(folder: Path) -> dict[str, bytes]:
    """The contents of the topic's files, without locks, quarantine notes and surveys."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.name not in (lock.FILE, quarantine.FILE) and not path.name.endswith(SURVEY_SUFFIX)
    }


def said_of(folder: Path, has_table: bool = True) -> Iterator[tuple[str, Said]]:
    """The exit status and output of each command that reads or would change the topic, by name.

    ``has_table`` is false if the topic has a message that cannot be decoded: ``latest`` is then
    left out.
    """
    path, name = str(folder), name_of(str(folder)).full

    def reported(report: object) -> Said:
        return report.exit_status, str(report.to_dict())  # type: ignore[attr-defined]

    yield "inspect", reported(lastwrite.inspect(path))
    yield "plan", reported(lastwrite.plan(path, spark=INLINE))
    yield "compact", reported(lastwrite.compact(path, spark=INLINE))
    yield "verify", reported(lastwrite.verify(path))
    yield "dump", _drained(lambda: lastwrite.dump(path))
    yield "read", _drained(lambda: lastwrite.read(path))
    yield "read --read-compacted", _drained(lambda: lastwrite.read(path, read_compacted=True))
    if has_table:
        yield "latest", _drained(lambda: lastwrite.latest(path, name))  # type: ignore[arg-type, return-value]
    events: list[object] = []
    os.utime(folder, (1, 1))  # the daemon waits for a while after the last change of the folder
    config = {"compactionThreshold": 1}
    status = lastwrite.clean([path], config, once=True, spark=INLINE, tell=events.append)  # type: ignore[list-item]
    yield "clean", (status, str(events))


def _drained(rows: Callable[[], Iterator[object]]) -> Said:
    found = None
    try:
        found = rows()
        for _ in found:
            pass
    except CorruptLog as error:
        # A reader's notes name all damage that it met, and its status is not END_OF_TOPIC.
        assert getattr(found, "status", None) != "END_OF_TOPIC"
        return error.exit_status, f"{error} {[str(note) for note in getattr(found, 'notes', ())]}"
    return (
        0,
        f"{getattr(found, 'status', None)} {[str(note) for note in getattr(found, 'notes', ())]}",
    )


def check_damaged(folder: Path, *names: str) -> None:
    """Check that every command reports damage and what is missing, and that none changes a file."""
    before = files_of(folder)
    for command, (status, words) in said_of(folder):
        assert status == 3, (command, words)
        for name in names:
            assert name in words, (command, name, words)
    assert files_of(folder) == before
    (folder / quarantine.FILE).unlink()


def check_whole(folder: Path, has_table: bool = True) -> None:
    """Check that no command reports a problem, before and after a round."""
    for _ in range(2):
        for command, (status, words) in said_of(folder, has_table):
            assert status == 0, (command, words)
            assert " missing" not in words.replace("'missing'", "") and "not here" not in words, (
                command,
                words,
            )
