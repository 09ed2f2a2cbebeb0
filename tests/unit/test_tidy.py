"""Tests of code habits as numbers that may only fall.

A count above its limit fails and lists the places. A count far below its limit fails as well, so
that the limit is lowered.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import lastwrite

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "lastwrite"
MOST_PARAMETERS, MOST_LINES, MOST_COLUMNS = 8, 60, 100

# fmt: off
LIMITS = {  #                                   src  elsewhere
    "functions of more than 8 parameters":       (0,   4),
    "functions of more than 60 lines of code":   (0,  26),
    "lines of more than 100 columns":            (0, 193),
    "switch-offs of the formatter":              (0,   3),
    "modules without a docstring":               (0,   0),
    "references to files that do not exist":     (0,   0),
    "references to spec/":                       (0,   0),
    "circles of imports":                        (0,   0),
    "class names that exist twice":              (0,   0),
    "definitions named in everyday words":       (4,   0),
}
# fmt: on

# Everyday words in names. The field has a term for each thing that they stand for.
EVERYDAY = re.compile(
    r"(?:^|_)(?:told|tells?|said|says?|speaks?|hears?|heard|knows|begun|anew|whose|whoever|brought"
    r"|bring|gave|refuse|lies?)(?:_|$)"
    r"|^_?(?:Told|Held|Begun|Made|Kept|Known|Asked|Seen|Brought|Given|Wanted|Found|Place|Part|Room"
    r"|Door|Glance|Means|Lie|Wish|Doubt)$"
)

SHIPPED = ("src", "tests", "docs", "bench")  # from MANIFEST.in


@cache
def tracked() -> tuple[Path, ...]:
    """Every Python module and page of the repository except the corpus, including
    untracked files.
    """
    if not (ROOT / ".git").exists():  # an unpacked sdist
        rooms = [ROOT.glob("*.md"), *((ROOT / room).rglob("*.*") for room in SHIPPED)]
        return tuple(path for room in rooms for path in room if path.suffix in (".py", ".md"))
    listing = ("git", "ls-files", "-co", "--exclude-standard", "*.py", "*.md")
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(ROOT / name for name in names.splitlines() if (ROOT / name).is_file())


@cache
def modules() -> Mapping[Path, str]:
    return {path: path.read_text("utf-8") for path in tracked() if path.suffix == ".py"}


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """The nodes of a module's syntax tree in order. The module itself is the first."""
    return tuple(ast.walk(ast.parse(modules()[path])))


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def has_its_reason(path: Path, function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a comment right above the function explains its length, or its kind does.

    The options of a command or a public function are its parameters. A kernel is one loop with flat
    arguments, because a tuple costs each call microseconds.
    """
    if modules()[path].splitlines()[function.lineno - 2].lstrip().startswith("# "):
        return True
    decorators = " ".join(map(ast.unparse, function.decorator_list))
    is_option_list = path.parent.name == "cli" and any(
        "options." in ast.unparse(given.annotation) or "typer." in ast.unparse(given.annotation)
        for given in function.args.args
        if given.annotation is not None
    )
    is_public = PACKAGE in path.parents and function.name in lastwrite.__all__
    return is_option_list or is_public or "njit" in decorators or "intrinsic" in decorators


def place(path: Path, line: int, what: object) -> tuple[Path, str]:
    return path, f"{path.relative_to(ROOT)}:{line}: {what}"


# ---------------------------------------------------------------------- what is counted

Places = Iterator[tuple[Path, str]]  # a file and a place in it


def long_signatures() -> Places:
    for path, function in functions():
        given = function.args
        listed = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
        count = len(listed) - (listed[:1] in (["self"], ["cls"]))
        count += (given.vararg is not None) + (given.kwarg is not None)
        if count > MOST_PARAMETERS and not has_its_reason(path, function):
            yield place(path, function.lineno, f"{function.name} takes {count}")


def long_functions() -> Places:
    """Counts lines of code without blank lines, comments and docstrings."""
    for path, function in functions():
        whole = range(function.lineno, (function.end_lineno or 0) + 1)
        if len(whole) <= MOST_LINES or has_its_reason(path, function):
            continue
        code = code_lines(path).intersection(whole)
        if ast.get_docstring(function) is not None:
            said = function.body[0]
            code -= set(range(said.lineno, (said.end_lineno or 0) + 1))
        if len(code) > MOST_LINES:
            yield place(path, function.lineno, f"{function.name} has {len(code)}")


def code_lines(path: Path) -> set[int]:
    lines = enumerate(modules()[path].splitlines(), 1)
    return {number for number, line in lines if line.strip() and line.lstrip()[0] != "#"}


def wide_lines() -> Places:
    for path, text in modules().items():
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > MOST_COLUMNS:
                yield place(path, number, f"{len(line)} columns")


def switch_offs() -> Places:
    """Places where the formatter is switched off, except around layout tables."""
    for path, text in modules().items():
        lines = text.splitlines()
        for number, line in enumerate(lines, 1):
            if not re.search(r"# fmt: (off|skip)\b", line):
                continue
            table = "\n".join(lines[number:]).partition("# fmt: on")[0]
            if not re.search(r"\b(At|ProtoField|SchemaField)\(", table):
                yield place(path, number, line.strip()[-40:])


def silent_modules() -> Places:
    for path in modules():
        module = nodes(path)[0]
        if isinstance(module, ast.Module) and not ast.get_docstring(module):
            yield place(path, 1, "no docstring")


@cache
def prose(path: Path) -> str:
    """The text of a page, or the docstrings and comments of a module, on their original lines."""
    if path.suffix == ".md":
        return path.read_text("utf-8")
    lines = [line.partition("#")[2] for line in modules()[path].split("\n")]
    for node in nodes(path):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            for number, line in enumerate(str(node.value.value).split("\n"), node.lineno - 1):
                lines[number] += line
    return "\n".join(lines)


FILE = re.compile(r"(?<![\w./<{%-])(?:\.?[\w-]+/)+[\w.-]+\.(?:py|md)(?![\w/])")
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)#\s]+)")
FOLDER = re.compile(r"`((?:src|tests|docs|bench|examples)/[\w./-]*?)/?`")


def broken_references() -> Places:
    for path in tracked():
        if path.name == "CHANGELOG.md" or "corpus" in path.parts:
            continue  # the changelog has old names, and tools wrote the corpus
        roots = [ROOT, ROOT / "src", PACKAGE, ROOT / "tests", *path.parents[:4]]
        roots += [PACKAGE / system for system in ("kafka", "rocketmq", "pulsar")]
        for number, line in enumerate(prose(path).split("\n"), 1):
            found = {*FILE.findall(line), *FOLDER.findall(line)}
            found |= set(LINK.findall(line)) if path.suffix == ".md" else set()
            for name in sorted(found):
                if name.startswith("spec/") or re.search(r"\b[A-Z]+/", name):
                    # specifications are counted separately, and a capital word stands for several
                    # names
                    continue
                if not any((root / name).exists() for root in roots):
                    yield place(path, number, name)


def spec_references() -> Places:
    for path in tracked():
        for number, line in enumerate(prose(path).split("\n"), 1):
            if re.search(r"(?<![\w/.])spec/\w", line):
                yield place(path, number, line.strip()[:60])


def import_circles() -> Places:
    """Each set of modules that import each other, at any time, except for types only."""
    for circle in strongly_connected(imports()):
        first = min(circle)
        yield place(path_of(first), 1, " <-> ".join(sorted(circle)))


def classes_that_exist_twice() -> Places:
    """Classes of the package that share their name with another class of the package."""
    first: dict[str, Path] = {}
    for path in modules():
        for node in nodes(path) if path.is_relative_to(PACKAGE) else ():
            if isinstance(node, ast.ClassDef) and first.setdefault(node.name, path) != path:
                yield place(path, node.lineno, f"{node.name} is also in {first[node.name]}")


def everyday_names() -> Places:
    """Definitions in the package with everyday words in their names."""
    for path in modules():
        for node in nodes(path) if path.is_relative_to(PACKAGE) else ():
            if isinstance(
                node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ) and EVERYDAY.search(node.name):
                yield place(path, node.lineno, node.name)


def path_of(module: str) -> Path:
    path = ROOT / "src" / module.replace(".", "/")
    return path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"


def imports() -> dict[str, set[str]]:
    ours = {module_of(path): path for path in modules() if path.is_relative_to(PACKAGE)}
    graph: dict[str, set[str]] = {}
    for module, path in ours.items():
        graph[module] = edges = set()
        hidden = {
            inner
            for node in nodes(path)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in node.body
        }
        for node in nodes(path):
            if node in hidden:
                continue
            if isinstance(node, ast.Import):
                edges |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    edges.add(inner if inner in ours else node.module)
        edges.intersection_update(ours)
    return graph


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def strongly_connected(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Sets of two or more nodes that reach each other, by Tarjan's algorithm (1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            component = set(stack[stack.index(node) :])
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(component)

    for node in graph:
        if node not in index:
            visit(node)
    return found


# ---------------------------------------------------------------------- the limits

COUNTED = dict(
    zip(
        LIMITS,
        (
            long_signatures,
            long_functions,
            wide_lines,
            switch_offs,
            silent_modules,
            broken_references,
            spec_references,
            import_circles,
            classes_that_exist_twice,
            everyday_names,
        ),
        strict=True,
    )
)


@pytest.mark.parametrize("habit", LIMITS)
def test_limit_holds_and_is_close_to_the_count(habit: str) -> None:
    found: tuple[list[str], list[str]] = ([], [])
    for path, where in COUNTED[habit]():
        found[not path.is_relative_to(PACKAGE)].append(where)
    for room, limit, places in zip(("src", "elsewhere"), LIMITS[habit], found, strict=True):
        listed = "\n  ".join(places)
        assert len(places) <= limit, f"{room}: {len(places)} {habit}, {limit} allowed:\n  {listed}"
        little = max(2, limit // 10)
        assert len(places) >= limit - little, f"{room}: only {len(places)} {habit}: lower {limit}"


def test_import_cycle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"e", "a"}}
    assert strongly_connected(graph) == [{"b", "c"}]
