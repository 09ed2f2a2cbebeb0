"""Tests of the examples in ``deploy/dagster`` and ``deploy/airflow`` in the real programs.

Each runs in a virtual environment of its own, which pip makes: about 700 MB and two minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lastwrite.demo.sample_topic import SampleTopic
from lastwrite.model.progress import NoProgress

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[2]
NEWER = ("00000000000000008930.*", "00000000000000010695.*", "00000000000000012000.*")

DAGSTER = """
import glob, json, shutil
import dagster as dg
from compacted_topic import ARCHIVE, compacted_topic, defs

instance = dg.DagsterInstance.ephemeral()

def version(expected):
    done = dg.materialize([compacted_topic], instance=instance, raise_on_error=False)
    assert done.success == expected, done
    for event in done.all_events:
        if event.is_step_failure:
            return event.step_failure_data.user_failure_data.description
    event = instance.get_latest_materialization_event(dg.AssetKey("orders"))
    made = event.asset_materialization
    return made.tags["dagster/data_version"], made.metadata["fetched_bytes"].value

found = [version(True), version(True)]
for file in glob.glob("newer/*"):
    shutil.copy(file, "live/orders-0")
found += [version(True)]
for manifest in glob.glob(f"{ARCHIVE}/kafka/orders/0/manifest.json"):
    open(manifest, "w").write("{")
found += [version(False)]
assert defs.get_repository_def().get_schedule_def("hourly").cron_schedule
print(json.dumps(found))
"""

AIRFLOW = """
import glob, json, shutil, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session

bag = DagBag(sys.argv[1], bundle_name="dags-folder")
assert bag.import_errors == {}, bag.import_errors
(dag,) = bag.dags.values()

def run():
    done = dag.test()
    with create_session() as session:
        events = [event.extra for event in session.query(AssetEvent).order_by(AssetEvent.id)]
        (value,) = [session.query(XComModel).filter_by(run_id=done.run_id).first()]
    return str(done.state), None if value is None else value.value, events

found = [run()]
for file in glob.glob("newer/*"):
    shutil.copy(file, "live/orders-0")
found += [run()]
for manifest in glob.glob("archive/kafka/orders/0/manifest.json"):
    open(manifest, "w").write("{")
found += [run()]
print(json.dumps(found))
"""


def environment_with(package: str, folder: Path) -> Path:
    """The Python of a new virtual environment with ``package`` and Lastwrite."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (folder / "lastwrite").mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / "lastwrite")
    shutil.copytree(
        ROOT / "src",
        folder / "lastwrite" / "src",
        ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"),
    )
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "--no-compile", package]
    free = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    subprocess.run([*install, str(folder / "lastwrite")], env=free, check=True, timeout=900)
    return python


def run_in(folder: Path, python: Path, program: str, *arguments: str, **more: str) -> Any:
    """The last line that ``program`` prints, as JSON. Runs beside a growing log in ``folder``."""
    SampleTopic().write(str(folder / "sample"), NoProgress())
    for name in ("live/orders-0", "newer"):
        shutil.copytree(folder / "sample" / "orders-0", folder / name)
    for pattern in NEWER:
        for file in (folder / "live" / "orders-0").glob(pattern):
            file.unlink()
    environment = os.environ | {"LASTWRITE_SOURCE": "live", "LASTWRITE_ARCHIVE": "archive"} | more
    done = subprocess.run(
        [str(python), "-c", program, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_dagster_materializes_the_asset_with_its_offsets_as_version(tmp_path: Path) -> None:
    python = environment_with("dagster", tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    path = str(ROOT / "deploy" / "dagster")
    found = run_in(tmp_path, python, DAGSTER, PYTHONPATH=path, DAGSTER_HOME=str(home))
    first, again, grown, failed = found
    assert first[0] == again[0] == '{"0": 7160}'
    assert first[1] > 0 == again[1]
    assert grown[0] == '{"0": 12000}'
    assert "archive/kafka/orders/0/manifest.json" in failed


def test_airflow_runs_the_operator_and_updates_its_asset(tmp_path: Path) -> None:
    python = environment_with("apache-airflow", tmp_path)
    examples = str(ROOT / "deploy" / "airflow")
    settings = {
        "AIRFLOW_HOME": str(tmp_path / "home"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": examples,
    }
    for words in ("db", "migrate"), ("dags", "reserialize"):
        command = [str(python.with_name("airflow")), *words]
        subprocess.run(command, env=os.environ | settings, check=True, capture_output=True)
    first, grown, failed = run_in(tmp_path, python, AIRFLOW, examples, **settings)
    assert first == ["success", {"0": 7160}, [{"offsets": {"0": 7160}}]]
    assert grown[:2] == ["success", {"0": 12000}]
    assert grown[2] == [{"offsets": {"0": 7160}}, {"offsets": {"0": 12000}}]
    assert failed == ["failed", None, grown[2]]
