"""The interface of a system for ``verify``. Its module ``look.proof`` implements it as ``PROOF``.

A ``Proof`` finds partitions and checks pairs of logs: the present log and its earlier state.
Systems whose logs are compared row by row (``verification.logs``) implement a ``LogProof``. It adds
a reader of pieces, and the bounds and settings that determine which records may be missing.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import NamedTuple, Protocol

from lastwrite.engine.system import System
from lastwrite.model.columns import Int64Array
from lastwrite.model.log import PartitionLog, Problem, Segment
from lastwrite.model.progress import Progress
from lastwrite.model.work import Limits, ScanRange
from lastwrite.reports.verification import PartitionVerification, StoreVerification, Violation
from lastwrite.spark.work import Runner
from lastwrite.storage.choice import Topics
from lastwrite.verification.batch_invariants import Snapshot
from lastwrite.verification.invariants import Finding
from lastwrite.verification.units import ContentsUnit, PieceContents, RemovalRules

Pair = tuple[str | None, str | None]  # log's folder, folder of its earlier state; None if missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The parameters of one verification. ``commands.verify`` describes them."""

    path: str
    before: str | None = None
    topic: Topics = None
    partition: int | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    now_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ProofTools:
    """The resources that a verification uses.

    ``scratch`` is as returned by ``engine.scratch_parent``.
    """

    runner: Runner
    limits: Limits
    worker_bytes: int
    scratch: str | None
    progress: Progress


class Proof(ABC):
    """The system-specific functions of ``verify``."""

    noun = "partition"  # the term for a log in messages
    needs_workers = True  # whether ``check`` runs on Spark workers, and not in this process
    keyless_option = "--drop-keyless"  # the option that permits removing records without a key

    @property
    @abstractmethod
    def system(self) -> System: ...

    @abstractmethod
    def check(
        self, pairs: Sequence[Pair], question: Question, means: ProofTools
    ) -> Iterator[PartitionVerification]:
        """Check each pair of logs, in order. Damage and violations are reported, not raised."""

    def check_config(self, config: Mapping[str, object]) -> None:
        self.system.check_config(config)

    @property
    def governs_keyless(self) -> str:
        """The setting that determines whether records without a key may be removed."""
        return self.system.governs_keyless

    def find(self, question: Question) -> list[str]:
        """The folders of the logs to check.

        Raises:
            NotALog: the path has no logs of the system.
        """
        return self.system.find(question.path, question.topic, question.partition)

    def is_of_one(self, path: str, folder: str) -> bool:
        """Whether ``path`` is the single log in ``folder``, and not a root with several logs."""
        return os.path.commonpath([os.path.abspath(path), folder]) == folder

    def reject_if_locked(self, folder: str) -> None:
        """Check that nothing changes the log while it is read.

        Raises:
            LogHeld: a broker or a run may change it.
        """
        self.system.reject_if_locked(self.system.root_of(folder), [self.system.name_of(folder)])

    def check_beside(
        self, question: Question, found: list[PartitionVerification], means: ProofTools
    ) -> StoreVerification | None:
        """Check the system's files that are not part of a log.

        May add problems to ``found``. Returns None if the system has no such files.
        """
        return None


# ---------------------------------------------------------------------- logs compared by rows


class ProvenRange(NamedTuple):
    """The range of offsets in which compaction may have removed records."""

    start: int  # the log start: consumers receive no record below it
    # from this offset on, no record may be missing, and no record supersedes another
    end: int


class PieceReader(Protocol):
    """Reads the pieces of one log, one after the other."""

    def read(self, piece: ScanRange) -> PieceContents:
        """Read one piece. Problems are reported in the result."""
        ...

    def close(self) -> None: ...


class TransactionProof(Protocol):
    """Compares the transaction indexes of a log with the transactions that its markers define."""

    def problems(self, transactions: Int64Array, first_open: int | None) -> list[Problem]: ...


class NoTransactions:
    """The ``TransactionProof`` of a system whose logs have no transactions."""

    def problems(self, transactions: Int64Array, first_open: int | None) -> list[Problem]:
        return []


class LogProof(Proof):
    """The system-specific functions of ``verify`` if logs are compared row by row."""

    damage_remedy: str  # remedy in errors about a damaged file of records
    has_start = True  # whether retention may move a log's start
    words: Mapping[Finding, str] = {}  # messages of findings that differ from the default

    @abstractmethod
    def reader(self, unit: ContentsUnit) -> PieceReader: ...

    @abstractmethod
    def rules(self, log: PartitionLog, config: Mapping[str, object]) -> RemovalRules:
        """The rules by which records of the earlier log ``log`` may be missing now."""

    @abstractmethod
    def bounds(self, before: PartitionLog, after: PartitionLog) -> ProvenRange: ...

    def judge_segment(
        self,
        segment: Segment,
        parts: Sequence[PieceContents],
        is_closed: bool,
        config: Mapping[str, object],
    ) -> tuple[list[Problem], list[str]]:
        """The problems and the advice about a segment's indexes.

        ``parts`` are all pieces of the segment, in order, each read completely.
        """
        return [], []

    def judge_holes(
        self, log: PartitionLog, holes: Sequence[tuple[int, int]], config: Mapping[str, object]
    ) -> Sequence[Problem]:
        """The problems for offsets that are missing between two segments.

        ``holes`` has the missing ranges of offsets (first, end). Both segments were read
        completely. By default there are no problems, because compaction may leave such gaps.
        """
        return ()

    def snapshot(self, log: PartitionLog) -> Snapshot | None:
        """The states of producers at an offset. From this offset on, the log has all batches.

        None means that the log has all batches from its start on.
        """
        return None

    def transactions(self, log: PartitionLog) -> TransactionProof:
        return NoTransactions()

    def differences(self, before: PartitionLog, after: PartitionLog) -> list[Violation]:
        """A violation for each changed side file that compaction must not change."""
        return []


def proof_of(system: str) -> Proof:
    """The ``Proof`` of the system with this name."""
    proof: Proof = import_module(f"lastwrite.{system}.look.proof").PROOF
    return proof


def log_proof_of(system: str) -> LogProof:
    """The ``LogProof`` of a system whose logs are compared by rows."""
    proof: LogProof = import_module(f"lastwrite.{system}.look.proof").PROOF
    return proof
