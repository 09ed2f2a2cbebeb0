"""Tests that the files in deploy/ are well-formed, and that command lines can be parsed: theirs, and
those of the README and the stories.
"""

from __future__ import annotations

import ast
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import strictyaml

from lastwrite.cli.app import build_app
from lastwrite.cli.output import Output

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
PROGRAMS = sorted(DEPLOY.rglob("*.py"))  # ./check compares their calls with the types
UNITS = sorted((DEPLOY / "systemd").iterdir())
PAGES = (DEPLOY.parent / "README.md", *sorted((DEPLOY.parent / "docs" / "stories").glob("*.md")))
TEXTS = (*PAGES, DEPLOY / "README.md", DEPLOY / "spark" / "README.md", DEPLOY / "Dockerfile")
KUBERNETES_VERSIONS = ("1.30", "1.37")
PROGRAM = re.compile(r"(?:\S*/bin/)?lastwrite(?::[\d.]+)?")
SEPARATORS = {"&&", "&", "|", ";"}


class CommandLine(NamedTuple):
    """The arguments of one call of ``lastwrite`` in a file."""

    path: Path
    arguments: list[str]

    def __str__(self) -> str:
        return f"{self.path.relative_to(DEPLOY.parent)}: {' '.join(self.arguments[:2])}"


def pod_of(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """The pod's specification in a manifest. None if it has none."""
    spec = manifest.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    pod: dict[str, Any] | None = spec.get("template", {}).get("spec")
    return pod


def containers_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    pod = pod_of(manifest) or {}
    return [*pod.get("initContainers", ()), *pod.get("containers", ())]


def read_manifest(path: Path) -> dict[str, Any]:
    """One manifest. All its scalars are texts."""
    manifest: dict[str, Any] = strictyaml.load(path.read_text()).data
    return manifest


def shell_lines(path: Path) -> Iterator[str]:
    """The lines of a unit, a page's blocks or a comment, with continuations joined."""
    text = path.read_text()
    if path.suffix == ".md":
        text = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    elif path.name == "Dockerfile":
        text = "\n".join(line.removeprefix("#") for line in text.splitlines() if line[:1] == "#")
    elif path.suffix == ".service":
        text = "\n".join(re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.MULTILINE))
    yield from text.replace("\\\n", " ").splitlines()


def command_lines() -> Iterator[CommandLine]:
    commands = build_app(Output()).commands
    for path in MANIFESTS:
        for container in containers_of(read_manifest(path)):
            yield CommandLine(path, container["args"])
    for path in (*TEXTS, *UNITS):
        for line in shell_lines(path):
            try:
                words = shlex.split(line, comments=True)
            except ValueError:  # prose with an apostrophe
                continue
            for at, word in enumerate(words[:-1]):
                if PROGRAM.fullmatch(word) and words[at + 1] in commands:
                    rest = words[at + 1 :]
                    ends = [i for i, each in enumerate(rest) if each in SEPARATORS]
                    yield CommandLine(path, rest[: min(ends, default=len(rest))])


COMMAND_LINES = list(command_lines())


@pytest.mark.parametrize("line", COMMAND_LINES, ids=str)
def test_command_line_has_only_options_that_exist(line: CommandLine) -> None:
    name, *arguments = line.arguments
    build_app(Output(), name).commands[name].make_context(name, arguments)


def test_each_file_with_commands_has_a_command_line() -> None:
    with_commands = {*TEXTS, *(path for path in UNITS if path.suffix == ".service")}
    with_commands |= {path for path in MANIFESTS if containers_of(read_manifest(path))}
    assert {line.path for line in COMMAND_LINES} == with_commands


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_manifest_follows_the_schema_of_kubernetes(path: Path, version: str) -> None:
    """Skipped without ``kubernetes-validate``, whose wheel of 22 MB is not in an extra."""
    schemas = pytest.importorskip("kubernetes_validate")
    yaml = pytest.importorskip("yaml")
    schemas.validate(yaml.safe_load(path.read_text()), version, strict=True)


@pytest.mark.parametrize(
    "path", [path for path in MANIFESTS if containers_of(read_manifest(path))], ids=lambda p: p.name
)
def test_containers_run_without_root_and_write_only_to_volumes(path: Path) -> None:
    manifest = read_manifest(path)
    pod = pod_of(manifest)
    assert pod is not None
    assert pod["securityContext"]["runAsNonRoot"] == "true"
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in containers_of(manifest):
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"] == "true"
        assert context["allowPrivilegeEscalation"] == "false"
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert set(container["resources"]) == {"requests", "limits"}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert {"/tmp", "/var/cache/lastwrite", "/var/lib/lastwrite"} <= set(mounts)
        assert set(mounts.values()) <= volumes


def test_user_and_folders_of_the_image_are_those_of_the_manifests() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    assert "USER 10001:10001" in image and "TMPDIR=/tmp" in image
    for path in MANIFESTS:
        if pod := pod_of(read_manifest(path)):
            assert pod["securityContext"]["runAsUser"] == "10001"


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    for path in UNITS:
        unit = path.read_text().replace("/opt/lastwrite/bin/lastwrite", "/bin/true")
        (tmp_path / path.name).write_text(unit)
    names = [str(tmp_path / path.name) for path in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *names], capture_output=True, text=True
    )
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert (done.returncode, complaints) == (0, [])


@pytest.mark.parametrize(
    "path", [*MANIFESTS, *UNITS, *PROGRAMS, DEPLOY / "Dockerfile"], ids=lambda path: path.name
)
def test_header_states_what_was_tested(path: Path) -> None:
    text = path.read_text()
    header = ast.get_docstring(ast.parse(text)) if path in PROGRAMS else text.split("\n\n")[0]
    assert header is not None
    assert "Tested:" in header and "Not tested:" in header
