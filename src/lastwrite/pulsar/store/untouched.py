"""The files of a topic folder that compaction ignores, and the files that a topic's copy lacks."""

from __future__ import annotations

import os
from typing import Final

from lastwrite.pulsar.format.names import (
    FETCHED,
    INDEX_SUFFIX,
    MANAGED_LEDGER,
    MANAGED_LEDGER_JSON,
    MANIFEST,
    SURVEY_SUFFIX,
    parse_object_name,
)
from lastwrite.pulsar.store import lock
from lastwrite.reports.untouched import UNKNOWN, UntouchedFile
from lastwrite.storage.files import list_names

_SIDE: Final = (FETCHED, MANAGED_LEDGER, MANAGED_LEDGER_JSON, MANIFEST)
_OWN: Final = "written by Lastwrite"


def list_untouched(folder: str, copy: str | None) -> list[UntouchedFile]:
    """The files of a topic folder that compaction ignores or that the topic's copy lacks.

    Without ``copy``, these are the unknown files. With ``copy``, the folder of the topic's copy,
    these are all files that the copy lacks. If ``copy`` has no files, the topic was not copied, and
    the result is empty.

    Raises:
        LogError: a folder cannot be listed.
    """
    copied = set() if copy is None else set(list_names(copy))
    if copy is not None and not copied:
        return []
    found = []
    for name in list_names(folder):
        why = _reason(name)
        if name not in copied and (why == UNKNOWN or copy is not None):
            found.append(UntouchedFile(os.path.join(folder, name), why))
    return found


def _reason(name: str) -> str:
    if name == lock.FILE or name.endswith(SURVEY_SUFFIX) or name.startswith("lastwrite-"):
        return _OWN
    if parse_object_name(name.removesuffix(INDEX_SUFFIX)) is not None:
        return "belongs to a ledger that the copy's compacted ledger replaces"
    return "belongs to the topic before the round" if name in _SIDE else UNKNOWN
