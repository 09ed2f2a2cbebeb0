"""``verify``: checks that a log conforms to its format, and that compaction obeyed the invariants.

The steps are the same for all systems: find the logs, pair each with its earlier state, reject logs
that are in use, and check the pairs. The system's ``Proof`` checks them and the system's other
files.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lastwrite.config.keyless import reject_elsewhere
from lastwrite.encoding.kernel_cache import report_if_compiling
from lastwrite.errors import InvalidConfig
from lastwrite.model.progress import NoProgress, Progress
from lastwrite.reports.verification import VerifyReport
from lastwrite.spark.inline import INLINE
from lastwrite.spark.use import runner_for, shared_folder
from lastwrite.spark.work import Runner
from lastwrite.spark.worker_check import check_workers
from lastwrite.verification.proof import Pair, Proof, ProofTools, Question

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lastwrite.spark.inline import Inline


def verify(
    proof: Proof,
    question: Question,
    spark: SparkSession | Inline | None,
    master: str,
    memory: str | int | None,
    conf: Mapping[str, str],
    progress: Progress | None,
) -> VerifyReport:
    """Run ``verify``. See ``commands.verify`` for the parameters and the errors."""
    begin = time.perf_counter()
    reject_elsewhere(question.config, proof.system.name, proof.governs_keyless)
    proof.check_config(question.config)
    found = pairs(proof, question)
    for folder in (folder for pair in found for folder in pair if folder is not None):
        proof.reject_if_locked(folder)
    where = spark if proof.needs_workers else INLINE
    progress = progress or NoProgress()
    with runner_for(where, master, memory, conf, progress) as (runner, plan):
        of_roots = {proof.system.root_of(each): each for pair in found for each in pair if each}
        check_workers(runner, [*of_roots.values()], progress)
        scratch = scratch_parent(runner, question.before is not None)
        if proof.needs_workers:
            kernels = [f"lastwrite.{proof.system.name}.format.kernels:split"]
            if question.before is not None:
                kernels.append("lastwrite.verification.invariants:_judge")
            report_if_compiling(progress.note, *kernels)
        means = ProofTools(runner, plan.limits(), plan.worker_bytes, scratch, progress)
        partitions = list(proof.check(found, question, means))
        store = proof.check_beside(question, partitions, means)
    return VerifyReport(
        partitions=partitions,
        store=store,
        keyless_option=proof.keyless_option,
        seconds=time.perf_counter() - begin,
    )


def pairs(proof: Proof, question: Question) -> list[Pair]:
    """Pair each log's folder with the folder of its earlier state, by partition.

    Two single logs are paired even if their names differ.
    """
    system = proof.system
    after = proof.find(question)
    if question.before is None:
        return [(folder, None) for folder in after]
    was = system.find(question.before, question.topic, question.partition)
    if len(after) == 1 and len(was) == 1:
        return [(after[0], was[0])]
    names = {system.name_of(folder): folder for folder in after}
    earlier = {system.name_of(folder): folder for folder in was}
    if len(after) == 1 and set(names) <= set(earlier) and proof.is_of_one(question.path, after[0]):
        return [(after[0], earlier[system.name_of(after[0])])]
    return [(names.get(name), earlier.get(name)) for name in sorted({*names, *earlier})]


def scratch_parent(runner: Runner, is_needed: bool) -> str | None:
    """The folder for the scratch files of a verification.

    ``""`` means the operating system's temporary folder. None means that there is no shared folder,
    and that none is needed.

    Raises:
        InvalidConfig: the workers are on other machines, and no shared folder is configured.
    """
    parent = shared_folder(runner)
    if parent is not None:
        return parent
    if is_needed:
        raise InvalidConfig(
            "verify needs a scratch folder that all workers can access",
            remedy="set spark.lastwrite.scratch to a shared folder, or run on this machine with "
            "--master local[*]",
        )
    return None
