"""The MkDocs hook of the site: complete navigation, links into the repository, Markdown twins.

Every page has a twin in Markdown under the same name, and ``llms.txt`` lists the twins. A page links
to files outside ``docs`` for readers of the repository. In the site such a link is plain text,
followed by the path of the file.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

_FENCE = re.compile(r"^ *```.*?^ *```", re.S | re.M)
_INNER_ITEM = re.compile(r"^ {2,3}([-*] )", re.M)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#|/)([^)\s]+)\)")


def on_config(config: Any) -> Any:
    """Add the pages that the navigation does not list to the section of their folder."""
    listed = re.findall(r"[\w./-]+\.md", str(config.nav))
    for path in sorted(Path(config.docs_dir).rglob("*.md")):
        name = path.relative_to(config.docs_dir).as_posix()
        if name not in listed:
            _section_of(name, config.nav).append(name)
    return config


def _section_of(name: str, nav: list[Any]) -> list[Any]:
    """The section whose first page is in the folder of ``name``, or a new one for the folder."""
    folder, _, _ = name.rpartition("/")
    if not folder:
        return nav
    for section in nav:
        pages = next(iter(section.values())) if isinstance(section, dict) else None
        if isinstance(pages, list) and f"{folder}/" in str(pages[0]):
            return pages
    nav.append({folder.capitalize(): []})
    return nav[-1][folder.capitalize()]


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Adapt a page outside its code blocks: links that leave ``docs`` become text and path, and
    lists in lists are indented by four spaces, as MkDocs needs them.
    """
    folder = os.path.dirname(page.file.src_uri)

    def replaced(link: re.Match[str]) -> str:
        target = os.path.normpath(os.path.join("docs", folder, link[3].partition("#")[0]))
        if link[1] or target.startswith("docs" + os.sep):
            return link[0]
        text = link[2] if target in link[2] else f"{link[2]} (`{target}`)"
        return text if link[2].strip("`") != os.path.basename(target) else f"`{target}`"

    def adapted(text: str) -> str:
        return _LINK.sub(replaced, _INNER_ITEM.sub(r"    \1", text))

    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [adapted(markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join(parts) + adapted(markdown[end:])


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Name the twin of a page in its head, for programs that read the page."""
    twin = os.path.basename(page.file.src_uri)
    link = f'<link rel="alternate" type="text/markdown" href="{twin}">'
    return output.replace("</head>", f"{link}</head>", 1)


def on_post_build(config: Any) -> None:
    """Copy the Markdown of each page beside it, and write ``llms.txt``."""
    docs, site = Path(config.docs_dir), Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}.", ""]
    folder = None
    for path in sorted(docs.rglob("*.md"), key=lambda path: (len(path.parts), path)):
        name = path.relative_to(docs)
        shutil.copy(path, site / name)
        if name.parent != folder:
            folder = name.parent
            title = folder.name.capitalize() or "Overview"
            lines += ["", f"## {title}", ""] if len(lines) > 4 else [f"## {title}", ""]
        title = path.read_text("utf-8").split("\n", 1)[0].lstrip("# ")
        lines.append(f"- [{title}]({name.as_posix()})")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")
