"""What a system brings to ``verify``: the value ``PROOF`` of its module ``look.proof``.

A ``Proof`` says where partitions lie and checks pairs of them: each as it is, and as it was.
Systems whose logs are compared row by row (``verification.logs``) bring a ``LogProof``: who reads a
piece of a log, and which bounds and settings decide what may be missing.
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

Pair = tuple[str | None, str | None]  # folder, folder as it was; None: it is in one log only


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a caller of ``verify`` asks; see there."""

    path: str
    before: str | None = None
    topic: Topics = None
    partition: int | None = None
    config: Mapping[str, object] = field(default_factory=dict)
    now_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ProofTools:
    """What there is to answer it with. ``scratch``: as ``engine.scratch_parent`` gives it."""

    runner: Runner
    limits: Limits
    worker_bytes: int
    scratch: str | None
    progress: Progress


class Proof(ABC):
    """One system's share in ``verify``."""

    noun = "partition"  # what a log is called in messages
    needs_workers = True  # False: it reads in this process
    keyless_option = "--drop-keyless"  # says that records without a key were to go

    @property
    @abstractmethod
    def system(self) -> System: ...

    @abstractmethod
    def check(
        self, pairs: Sequence[Pair], question: Question, means: ProofTools
    ) -> Iterator[PartitionVerification]:
        """Check each pair, in their order. Damage and broken promises do not raise."""

    def check_config(self, config: Mapping[str, object]) -> None:
        self.system.check_config(config)

    @property
    def governs_keyless(self) -> str:
        """Where it is said what becomes of records without a key."""
        return self.system.governs_keyless

    def find(self, question: Question) -> list[str]:
        """The folders to check.

        Raises:
            NotALog: nothing of the system lies there.
        """
        return self.system.find(question.path, question.topic, question.partition)

    def is_of_one(self, path: str, folder: str) -> bool:
        """Whether ``path`` asks for the one log in ``folder``, not for all of a root."""
        return os.path.commonpath([os.path.abspath(path), folder]) == folder

    def refuse_if_held(self, folder: str) -> None:
        """
        Raises:
            LogHeld: a broker or a run may change the log while it is read.
        """
        self.system.refuse_if_held(self.system.root_of(folder), [self.system.name_of(folder)])

    def check_beside(
        self, question: Question, found: list[PartitionVerification], means: ProofTools
    ) -> StoreVerification | None:
        """Check what lies beside the logs; may add to ``found``. None: there is nothing."""
        return None


# ---------------------------------------------------------------------- logs compared by rows


class ProvenRange(NamedTuple):
    """From where on and up to where a record may be missing only for a reason."""

    start: int  # below it no reader looks
    end: int  # at and above it nothing may be missing, and nothing supersedes


class PieceReader(Protocol):
    """Reads pieces of one log, one after the other."""

    def read(self, piece: ScanRange) -> PieceContents:
        """What is wrong stands in the result."""
        ...

    def close(self) -> None: ...


class TransactionProof(Protocol):
    """Holds the transaction indexes of a log against the transactions that the log itself tells."""

    def problems(self, transactions: Int64Array, first_open: int | None) -> list[Problem]: ...


class NoTransactions:
    """Of a system that has none in its logs."""

    def problems(self, transactions: Int64Array, first_open: int | None) -> list[Problem]:
        return []


class LogProof(Proof):
    """What a system brings whose logs are compared row by row."""

    damage_remedy: str  # what to do where a file of records is damaged
    has_start = True  # a log may begin later than it did, for retention took what lay below
    words: Mapping[Finding, str] = {}  # what a finding means, where the system has other words

    @abstractmethod
    def reader(self, unit: ContentsUnit) -> PieceReader: ...

    @abstractmethod
    def rules(self, log: PartitionLog, config: Mapping[str, object]) -> RemovalRules:
        """For ``log`` as it was."""

    @abstractmethod
    def bounds(self, before: PartitionLog, after: PartitionLog) -> ProvenRange: ...

    def judge_segment(
        self,
        segment: Segment,
        parts: Sequence[PieceContents],
        is_closed: bool,
        config: Mapping[str, object],
    ) -> tuple[list[Problem], list[str]]:
        """What only the whole segment tells: problems of its indexes, and advice. ``parts``: all
        its pieces, in order, each read to its end.
        """
        return [], []

    def judge_holes(
        self, log: PartitionLog, holes: Sequence[tuple[int, int]], config: Mapping[str, object]
    ) -> Sequence[Problem]:
        """Damage or notes about ranges of offsets, first and end of each, that no segment has
        between two that were read to their ends. By default compaction leaves them.
        """
        return ()

    def snapshot(self, log: PartitionLog) -> Snapshot | None:
        """The producers as of an offset from which on the log itself tells them; None: from its
        start.
        """
        return None

    def transactions(self, log: PartitionLog) -> TransactionProof:
        return NoTransactions()

    def differences(self, before: PartitionLog, after: PartitionLog) -> list[Violation]:
        """Side files that compaction must keep and that are not what they were."""
        return []


def proof_of(system: str) -> Proof:
    """The proof of the system named so."""
    proof: Proof = import_module(f"lastwrite.{system}.look.proof").PROOF
    return proof


def log_proof_of(system: str) -> LogProof:
    """The same, of a system whose logs are compared by rows."""
    proof: LogProof = import_module(f"lastwrite.{system}.look.proof").PROOF
    return proof
