"""Tests of the JVM options, and of when Spark starts its own JVM."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from lastwrite.spark.launcher import jvm
from lastwrite.spark.launcher.java import JavaRuntime


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_", "HADOOP_", "YARN_"))
    ]:
        monkeypatch.delenv(name)


def java(version: int) -> JavaRuntime:
    return JavaRuntime("java", version, "PATH")


def test_installed_spark_states_its_options() -> None:
    jars = jvm.spark_jars()
    assert jars is not None
    options = jvm.launcher_options(jars, java(17))
    assert options is not None
    assert "-XX:+IgnoreUnrecognizedVMOptions" in options
    assert "--add-opens=java.base/java.nio=ALL-UNNAMED" in options
    assert not [option for option in options if "incubator" in option]
    assert len(options) == len(set(options)) >= 12
    newer = jvm.launcher_options(jars, java(25))
    assert newer is not None and set(newer) < set(options)


@pytest.mark.parametrize(
    "name",
    [
        "SPARK_HOME",
        "SPARK_CONF_DIR",
        "SPARK_SUBMIT_OPTS",
        "PYSPARK_SUBMIT_ARGS",
        "PYSPARK_GATEWAY_PORT",
        "HADOOP_CONF_DIR",
        "YARN_CONF_DIR",
    ],
)
def test_external_settings_leave_the_start_to_spark(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "x")
    assert jvm.spark_jars() is None


def test_settings_of_the_machine_do_not_leave_the_start_to_spark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("SPARK_LOCAL_IP", "SPARK_LOCAL_DIRS", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "x")
    assert jvm.spark_jars() is not None


def test_unknown_launcher_leaves_the_start_to_spark(tmp_path: Path) -> None:
    assert jvm.launcher_options(tmp_path, java(17)) is None
    jar = tmp_path / "spark-launcher_2.13-9.9.jar"
    jar.write_bytes(b"no archive")
    assert jvm.launcher_options(tmp_path, java(17)) is None
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("org/apache/spark/launcher/Main.class", b"")
    assert jvm.launcher_options(tmp_path, java(17)) is None
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr(
            "org/apache/spark/launcher/JavaModuleOptions.class",
            b"\xca\xfe\xba\xbe\x01\x00\x03-Dx\x01",
        )
    assert jvm.launcher_options(tmp_path, java(17)) is None


@pytest.mark.parametrize(
    "limit", [None, "the limit of this control group, 300 MiB (/x/memory.max)"]
)
def test_death_of_the_jvm_is_explained(limit: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real process with a simulated kernel counter. tests/system/test_memory_kills.py uses a real
    one.
    """
    one = jvm.Jvm.__new__(jvm.Jvm)
    one._kills_before = {}
    monkeypatch.setattr(jvm, "memory_kill_since", lambda before: limit)
    monkeypatch.setattr(jvm, "_SECONDS_TO_DIE", 0.2)
    with subprocess.Popen(["sleep", "60"]) as one._process:
        assert one.find_death() is None
        one._process.kill()
        death = one.find_death()
    assert death is not None and death.for_memory == (limit is not None)
    killed = "Spark's JVM was killed by signal 9"
    assert death.problem == (
        killed if limit is None else f"the system killed Spark's JVM for memory: it reached {limit}"
    )
    for command, said in (
        ("exit 137", killed if limit is None else "for memory"),
        ("exit 3", "with status 3"),
    ):
        with subprocess.Popen(["sh", "-c", command]) as one._process:
            death = one.find_death()
        assert death is not None and said in death.problem
