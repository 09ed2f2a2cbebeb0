"""Tests of the package from a Python caller's view."""

from __future__ import annotations

import ast
import inspect
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy
import pytest

import lastwrite
from bench.generate import write_log
from lastwrite.cli.versions import OPTIONAL, version_lines
from lastwrite.commands.table_to import FORMATS
from lastwrite.errors import install_command
from lastwrite.spark.launcher import java

_ROOT = Path(__file__).parents[2]


def test_dir_lists_the_public_functions() -> None:
    assert set(lastwrite.__all__) <= set(dir(lastwrite))
    shown = [name for name in dir(lastwrite) if not name.startswith("_")]
    assert shown == sorted(lastwrite.__all__)
    for name in lastwrite.__all__:
        assert getattr(lastwrite, name).__doc__, name


@pytest.mark.parametrize("name", lastwrite.__all__)
def test_options_are_keywords_and_every_parameter_is_documented(name: str) -> None:
    function = getattr(lastwrite, name)
    parameters = inspect.signature(function).parameters.values()
    optional = [each for each in parameters if each.default is not each.empty]
    by_place = [each.name for each in optional if each.kind is not each.KEYWORD_ONLY]
    # The subject of a call may be positional: ``clean(roots, config)``, ``latest(path, "orders")``.
    assert set(by_place) <= {"config", "before", "topic", "at"} and len(by_place) <= 1
    said = inspect.getdoc(function) or ""
    _, begins, arguments = said.partition("\nArgs:\n")
    assert begins, "no section Args"
    documented = {
        each
        for names in re.findall(r"^    (?:    )?(\w+(?:, \w+)*):", arguments, re.MULTILINE)
        for each in names.split(", ")
    }
    assert {each.name for each in parameters} <= documented


def test_module_and_command_print_the_same_version() -> None:
    said = [
        subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        for command in (
            [sys.executable, "-m", "lastwrite"],
            [str(Path(sys.executable).with_name("lastwrite"))],
        )
    ]
    assert said[0] == said[1]
    lines = said[0].splitlines()
    assert lines[0] == f"lastwrite {lastwrite.__version__}"
    for name, version in (("python", platform.python_version()), ("numpy", numpy.__version__)):
        assert f"{name} {version}" in lines
    assert any(line.startswith("java ") for line in lines)


def test_version_names_a_missing_java_and_missing_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "candidates", lambda: iter(()))
    monkeypatch.setattr(sys, "path", [])
    lines = list(version_lines())
    assert "java missing: found no Java 17 or newer; found none at all" in lines
    assert "numpy missing" in lines
    assert "kio not installed; pip install 'lastwrite[kafka]'" in lines


def test_each_optional_library_is_installed_by_the_extra_that_is_named_for_it() -> None:
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name, extra in OPTIONAL.items():
        assert any(re.match(rf"{name}\b", each) for each in extras[extra]), name


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("/opt/venv", "pip install 'lastwrite[kafka]'"),
        ("/h/pipx/venvs/lastwrite", "pipx runpip lastwrite install 'lastwrite[kafka]'"),
        (
            "/h/uv/tools/lastwrite",
            "uv pip install --python /h/uv/tools/lastwrite 'lastwrite[kafka]'",
        ),
        ("/h/.cache/uv/archive-v0/x", "uvx --from 'lastwrite[kafka]' lastwrite"),
    ],
)
def test_command_that_installs_an_extra_fits_the_environment(
    monkeypatch: pytest.MonkeyPatch, prefix: str, command: str
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    assert install_command("kafka") == command


def test_every_extra_that_an_error_names_installs_the_package() -> None:
    extras = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    named = [
        [each.value for each in node.args[1:3] if isinstance(each, ast.Constant)]
        for path in (_ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "missing_extra"
    ]
    named = [each for each in named if len(each) == 2]  # the others take names from FORMATS
    named += [[package, extra] for *_, packages, extra in FORMATS.values() for package in packages]
    assert len(named) > 10
    for package, extra in named:
        assert any(re.match(rf"{package}\b", each) for each in extras[extra]), (package, extra)


def test_mypy_overrides_list_every_optional_library() -> None:
    """``./check`` runs without extras, so mypy must ignore their libraries."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    overrides = project["tool"]["mypy"]["overrides"]
    told = {
        name[:-2]
        for each in overrides
        if "ignore_missing_imports" in each
        for name in each["module"]
    }
    typed = {
        "lastwrite",
        "msgspec",
        "numba",
        "numpy",
        "prometheus_client",
        "rich",
        "typer",
        "zstandard",
    }
    met = set()
    for path in (_ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                met |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                met.add(node.module)
    tops = {name.partition(".")[0] for name in met} - sys.stdlib_module_names - typed
    assert {top for top in tops if not any(name.partition(".")[0] == top for name in told)} == set()


def test_generated_log_refuses_segments_smaller_than_a_buffer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="segment_bytes is 1000"):
        write_log(tmp_path / "t-0", lambda first, end: None, 0, 10, 10, 1000)  # type: ignore
    assert not list((tmp_path / "t-0").glob("*.log"))


def test_wheel_has_every_package_of_the_source_folder() -> None:
    """PySpark finds ``format("lastwrite")`` by the package ``pyspark_lastwrite``."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    found = sorted(each.parent.name for each in (_ROOT / "src").glob("*/__init__.py"))
    assert packages == [f"src/{name}" for name in found]
    assert "pyspark_lastwrite" in found
