"""Tests of the documentation site: it builds without warnings, and its links and anchors exist."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Nothing listens at this address, so a build that downloads anything fails.
OFFLINE = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}


class PageParser(HTMLParser):
    """The anchors of a page, the links that a reader can follow, and the addresses that
    it loads.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        elif address := found.get("href" if tag == "link" else "src"):
            self.loaded.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None:
        pytest.skip("needs MkDocs: pip install 'lastwrite[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | OFFLINE, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, PageParser]:
    return {path: PageParser(path.read_text("utf-8")) for path in site.rglob("*.html")}


def test_links_of_the_site_lead_to_pages_and_anchors(pages: dict[Path, PageParser]) -> None:
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # absolute paths start at the root of a server
            continue
        for link in [*page.links, *page.loaded]:
            if link.startswith(("http:", "https:", "mailto:")):
                continue
            address, anchor = urldefrag(link)
            target = (path.parent / unquote(address)).resolve() if address else path
            known = pages[target].anchors if target in pages else None
            is_missing = anchor and known is not None and unquote(anchor) not in known
            if not target.is_file() or is_missing:
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_pages_have_the_same_structure_as_in_the_repository(site: Path) -> None:
    """GitHub and MkDocs read lists and tables by different rules."""
    tags = ("ul", "ol", "li", "table", "tr", "pre", "h2", "h3", "blockquote", "img")
    github = MarkdownIt("gfm-like", {"linkify": False})
    for path in DOCS.rglob("*.md"):
        name = path.relative_to(DOCS).as_posix().replace("README.md", "index.md")
        page = (site / name).with_suffix(".html").read_text("utf-8")
        article = page[page.index("<article") : page.index("</article>")]
        found = Counter(re.findall(r"<(\w+)", article))
        expected = Counter(re.findall(r"<(\w+)", github.render(path.read_text("utf-8"))))
        assert {tag: found[tag] for tag in tags} == {tag: expected[tag] for tag in tags}, name


def test_pages_load_nothing_from_other_servers(pages: dict[Path, PageParser]) -> None:
    loaded = {address for page in pages.values() for address in page.loaded}
    assert not {each for each in loaded if each.startswith(("http:", "https:", "//"))}


def test_pages_lead_to_no_file_outside_the_site(pages: dict[Path, PageParser]) -> None:
    links = [link for page in pages.values() for link in page.links]
    assert not [link for link in links if link.endswith(".py") or "/tests/" in link]


def test_search_index_contains_every_page(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    found = {urldefrag(each["location"]).url or "index.html" for each in index["docs"]}
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert found == built - {"404.html"}


def test_every_page_has_a_twin_in_markdown_that_llms_txt_lists(site: Path) -> None:
    listed = (site / "llms.txt").read_text("utf-8")
    for path in DOCS.rglob("*.md"):
        name = path.relative_to(DOCS)
        assert (site / name).read_text("utf-8") == path.read_text("utf-8")
        assert f"]({name.as_posix()})" in listed
