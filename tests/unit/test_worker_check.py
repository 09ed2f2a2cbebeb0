"""Tests of reporting everything that workers lack at once. tests/system/test_cluster.py uses real
workers.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from lastwrite.errors import InvalidConfig
from lastwrite.model.stores import StoreSettings
from lastwrite.spark.memory import LEAST_SHARE_BYTES, MIB, plan_executor_memory
from lastwrite.spark.worker_check import find_problems, findings
from lastwrite.storage.objects import address

HERE = {"lastwrite": "0.1.0", "numpy": "2.3.1", "numba": "0.62.0", "obstore": "0.12.1"}


def answer(**other: Any) -> dict[str, Any]:
    return {"where": ("host", "/work"), **HERE, "is_zipped": False, "seen": {}, **other}


def said(*answers: dict[str, Any], client: bool = True) -> list[str]:
    found = findings(answers, HERE, "spark://m:7077", needs_client=client)
    assert all(remedy for _, remedy in found)
    return [problem for problem, _ in found]


def test_suitable_workers_pass() -> None:
    assert said(answer(), answer(numpy="2.0.0", numba="0.61.0"), answer(numba="?")) == []


def test_all_problems_are_reported_at_once() -> None:
    unseen = {"/data/t-0": ("not seen", "give an address")}
    refused = {"s3://b/k": ("s3:GetObject is refused", "give the workers credentials")}
    assert said(
        answer(lastwrite="0.0.9", seen=refused),
        answer(lastwrite="0.0.9", obstore=None),
        answer(numpy="1.26.0", seen=unseen),
        answer(lastwrite=None, numba=None),
        answer(is_zipped=True),
    ) == [
        "2 of 5 workers have lastwrite 0.0.9, but this machine has 0.1.0",
        "1 of 5 workers has no lastwrite installed",
        "1 of 5 workers has lastwrite in a zip file, where kernels cannot be compiled",
        "1 of 5 workers has no obstore",
        "1 of 5 workers has numpy 1.26.0, but this machine has 2.3.1",
        "1 of 5 workers reports a problem of s3://b/k: s3:GetObject is refused",
        "1 of 5 workers cannot access /data/t-0",
    ]


def test_path_that_no_worker_sees_is_named() -> None:
    unseen = answer(seen={"/data": ("not seen", "give an address that every worker can read")})
    assert said(unseen, unseen) == ["the workers of spark://m:7077 cannot access /data"]


def test_bucket_client_is_required_only_for_addresses() -> None:
    assert said(answer(obstore=None), client=False) == []


def test_worker_checks_paths_with_the_drivers_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address, "_settings", StoreSettings())
    settings = StoreSettings(endpoint="http://127.0.0.1:9", allows_http=True)
    found = find_problems([str(tmp_path), f"{tmp_path}/none"], pickle.dumps(settings))
    assert {path: problem for path, (problem, _) in found.items()} == {
        f"{tmp_path}/none": "not seen"
    }
    assert address.used() == settings


def test_worker_checks_private_key_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("Crypto")
    monkeypatch.setattr(address, "_settings", StoreSettings())
    keys = Path(__file__).parent.parent / "corpus/tiered/chunks/keys"
    settings = StoreSettings(
        encryption_keys=(("one", f"{keys}/one.pem"), ("two", f"{tmp_path}/two.pem"))
    )
    ((path, (problem, remedy)),) = find_problems([], pickle.dumps(settings)).items()
    assert path == f"{tmp_path}/two.pem" and "No such file" in problem
    assert "on every machine that reads" in str(remedy)


def test_memory_setting_of_a_cluster_is_per_executor() -> None:
    assert plan_executor_memory(None, 4).total_bytes == 4 * 384 * MIB
    assert plan_executor_memory(None, 1, "2g").total_bytes == 2048 * MIB
    assert plan_executor_memory(None, 1, "800").total_bytes == 800 * MIB
    assert plan_executor_memory("1g", 1, "2g").worker_bytes == (1024 - 190) * MIB - (
        (1024 - 190 - 512) * MIB * 3 // 4
    )
    assert plan_executor_memory("404m", 2).worker_bytes == LEAST_SHARE_BYTES
    with pytest.raises(
        InvalidConfig, match="403 MiB of memory are too little for the 2 workers of an exe"
    ):
        plan_executor_memory("403m", 2)
