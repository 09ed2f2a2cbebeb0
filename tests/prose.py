"""The prose check: sentence length, page width, links in a paragraph and banned constructions.

``python -m tests.prose`` compares the findings in the whole tree with ``LIMITS`` and exits with 1
if a count is above its limit. ``python -m tests.prose PATH…`` lists every
finding below the paths instead. It reads Markdown pages, and docstrings, comments and messages of
the modules in ``src``. A message is a text that an exception, a ``remedy``, or a ``help`` carries.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
MOST_WORDS, MOST_WORDS_ON_AVERAGE = 35, 25
MOST_COLUMNS, MOST_LINKS = 100, 3

# A count may only fall. Lower the limit when it does.
LIMITS = {
    "long sentence": 15,
    "long sentences on average": 0,
    "wide line": 0,
    "many links": 0,
    "personified code": 10,
    "vague word": 13,
    "inverted sentence": 66,
    "None after a semicolon": 1,
    "gendered user": 0,
}

BANNED = {
    "personified code": r"\b(says?|said|speaks?|spoke|spoken|hears?|heard|tells?|told|knows|knew|"
    r"wants|listens to)\b",
    "vague word": r"\b(whoever|whom|whose word|whatever|nobody|somebody|anybody|everybody|anew|"
    r"amid|given? back|gives back|gave back|take[ns]? out|lets? go|brings?|brought|"
    r"ours|theirs|wish|is no longer than|of it none|as ever|by itself alone)\b",
    "inverted sentence": r"\b(of which|what of|that of|those of|those that|those which|of those|"
    r"of one that|it were|were it|none is|where none|none has|such a one)\b"
    r"|(?<![\w-])(?:^|(?<=[.:;] ))(What|Whose|That|Of|Who|Where|As) "
    r"(a|an|the|it|its|of|is|was|has|each|all|one|files|records|no)\b",
    "None after a semicolon": r"[;:,] ?None:",
    "gendered user": r"\b(he|him|his|himself|she|her)\b",
}
PATTERNS = {rule: re.compile(pattern) for rule, pattern in BANNED.items()}
MESSAGE_CALLS = re.compile(
    r"(Error|Log|Config|Conflict|Failed|Format|Value|Held|Unfit|Budget|Option|Argument|Exit)$"
)
MESSAGE_KEYWORDS = ("remedy", "help", "epilog", "short_help")


class Paragraph(NamedTuple):
    """A piece of prose: its file, the line where it starts, its text without code and links."""

    path: Path
    line: int
    text: str
    links: int = 0


class Finding(NamedTuple):
    path: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.rule}: {self.text[:120]}"


# ------------------------------------------------------------------ where prose is found


def page_paragraphs(path: Path) -> Iterator[Paragraph]:
    """Paragraphs, list items, headings and table cells of a Markdown page."""
    line = 1
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(path.read_text("utf-8")):
        if token.map:
            line = token.map[0] + 1
        if token.type == "inline":
            parts = token.children or []
            text = "".join(
                {"code_inline": " X ", "softbreak": " ", "hardbreak": " "}.get(
                    part.type, part.content
                )
                for part in parts
            )
            links = sum(part.type == "link_open" for part in parts)
            yield Paragraph(path, line, " ".join(text.split()), links)


def module_paragraphs(path: Path) -> Iterator[Paragraph]:
    source = path.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from docstring_paragraphs(path, node)
        elif isinstance(node, ast.Call):
            for text in messages(node):
                yield Paragraph(path, node.lineno, text)
    yield from comment_paragraphs(path, source)


def docstring_paragraphs(path: Path, node: ast.AST) -> Iterator[Paragraph]:
    """The paragraphs of a docstring; indented blocks are layouts or code and are left out."""
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    text = ast.get_docstring(node)
    if text is None:
        return
    line = node.body[0].lineno
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:- |\w[\w.]*: ))", text):
        if not block.startswith(("    ", "  ")) or re.match(r"\s+(- |\w[\w.]*: )", block):
            yield Paragraph(path, line, plain(block))
        line += block.count("\n") + 1


def comment_paragraphs(path: Path, source: str) -> Iterator[Paragraph]:
    """Comments, where lines of comment that follow each other are one paragraph."""
    start, last, words = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or re.match(
            r"# ?(fmt|mypy|noqa|type|---|!)", token.string
        ):
            continue
        text = token.string.lstrip("# ")
        if token.start[0] == last + 1 and token.line.lstrip().startswith("#"):
            words += " " + text
        else:
            if words:
                yield Paragraph(path, start, plain(words))
            start, words = token.start[0], text
        last = token.start[0]
    if words:
        yield Paragraph(path, start, plain(words))


def messages(call: ast.Call) -> Iterator[str]:
    """The texts of an exception's arguments, and of keywords that are shown to a user."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given: list[ast.expr] = [each.value for each in call.keywords if each.arg in MESSAGE_KEYWORDS]
    if MESSAGE_CALLS.search(name):
        given += call.args
    for value in given:
        text = constant_text(value)
        if text.count(" ") >= 2:
            yield plain(text)


def constant_text(value: ast.expr) -> str:
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return value.value
    if isinstance(value, ast.JoinedStr):
        return "".join(constant_text(part) or "X" for part in value.values)
    return ""


def plain(text: str) -> str:
    """``text`` with each piece of code replaced by one word."""
    return " ".join(re.sub(r"``[^`]*``|`[^`]*`", "X", text).split())


# ------------------------------------------------------------------ the rules


def sentences(text: str) -> list[str]:
    """Sentences of a paragraph; a colon or a semicolon does not end one."""
    parts = re.split(r"(?<=[.!?])[)\"']* +(?=[A-Z\"'(X])", text)
    return [part for part in parts if part.strip()]


def word_count(sentence: str) -> int:
    return len(re.findall(r"[A-Za-z0-9][\w'’.,/-]*", sentence))


def findings_of(path: Path) -> Iterator[Finding]:
    is_page = path.suffix == ".md"
    paragraphs = list(page_paragraphs(path) if is_page else module_paragraphs(path))
    counts = []
    for paragraph in paragraphs:
        for sentence in sentences(paragraph.text):
            words = word_count(sentence)
            counts += [words] if words > 3 else []
            if words > MOST_WORDS:
                yield Finding(path, paragraph.line, "long sentence", f"{words} words: {sentence}")
        if paragraph.links > MOST_LINKS:
            yield Finding(path, paragraph.line, "many links", f"{paragraph.links} links")
        for rule, pattern in PATTERNS.items():
            for match in pattern.finditer(paragraph.text):
                near = paragraph.text[max(0, match.start() - 40) : match.end() + 40]
                yield Finding(path, paragraph.line, rule, f"{match.group()!r} in …{near}…")
    if is_page:
        average = sum(counts) / max(1, len(counts))
        if average > MOST_WORDS_ON_AVERAGE:
            yield Finding(path, 1, "long sentences on average", f"{average:.1f} words")
        yield from wide_lines(path)


def wide_lines(path: Path) -> Iterator[Finding]:
    """Lines of a page that are too wide; a row of a table cannot be broken."""
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if len(line) > MOST_COLUMNS and not line.startswith("|"):
            yield Finding(path, number, "wide line", f"{len(line)} columns")


def tracked_files() -> list[Path]:
    listing = ("git", "ls-files", "-co", "--exclude-standard", "*.md", "src/*.py")
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.splitlines() if "corpus" not in name]


def main() -> None:
    paths = [Path(argument).resolve() for argument in sys.argv[1:]]
    files = [
        file
        for file in tracked_files()
        if file.is_file() and (not paths or any(file.is_relative_to(path) for path in paths))
    ]
    findings = [finding for file in files for finding in findings_of(file)]
    counts = Counter(finding.rule for finding in findings)
    if paths:
        sys.exit("\n".join(map(str, findings)))
    wrong = [rule for rule, limit in LIMITS.items() if counts[rule] > limit]
    for rule, limit in LIMITS.items():
        print(f"{counts[rule]:6} {rule} ({limit} allowed)")
    if wrong:
        sys.exit(f"too many of: {', '.join(wrong)}. List them: python -m tests.prose PATH")


if __name__ == "__main__":
    main()
