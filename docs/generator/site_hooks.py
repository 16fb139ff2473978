"""Hooks of mkdocs.yml: the pages that are generated while the site is built, and llms.txt.

README.md is the first page and CHANGELOG.md the last; reference_pages.py reads the reference off the package.
Every page is written as Markdown, too, beside its HTML: llms.txt names these, with a line for each.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # mkdocs imports hooks by path

import reference_pages  # noqa: E402

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|mailto:)([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def generated_pages() -> dict[str, str]:
    """By path within the site, the Markdown of each page that has no file in docs/."""
    own = {"index.md": CHECKOUT / "README.md", "changelog.md": CHECKOUT / "CHANGELOG.md"}
    texts = {name: path.read_text(encoding="utf-8") for name, path in own.items()}
    return {name: from_the_root(text) for name, text in texts.items()} | reference_pages.pages()


def from_the_root(text: str) -> str:
    """A text of the checkout's root with the links that it has as a page of docs/."""

    def target_of(target: str) -> str:
        is_within = target.startswith(("docs/", "#"))
        return target.removeprefix("docs/") if is_within else f"../{target}"

    return _relinked(text, target_of)


def within_the_site(text: str) -> str:
    """A page with links to other files of the checkout as their names: the site does not have them."""
    pages = {"../README.md": "index.md", "../CHANGELOG.md": "changelog.md"}
    return _relinked(text, lambda target: pages.get(target, None if target.startswith("../") else target))


def llms_txt(
    site: str, description: str, sections: list[tuple[str, list[str]]], lines: dict[str, str]
) -> str:
    """The index for language models: a section for each of the navigation, a line for each page."""
    parts = [f"# {site}", f"> {description}"]
    for title, pages in sections:
        entries = [f"- [{_title(page)}]({page}): {lines[page]}" for page in pages]
        parts.append("\n".join([f"## {title}", "", *entries]))
    return "\n\n".join(parts) + "\n"


def nav_sections(nav: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """The sections of mkdocs.yml's nav, each with its pages; a page without section is one of its own."""
    for entry in nav:
        [(title, content)] = entry.items()
        if isinstance(content, str):
            yield title, [content]
        else:
            yield title, [page for each in content for page in each.values()]


def on_files(files: Any, config: Any) -> Any:
    """Adds the generated pages (a hook of MkDocs)."""
    from mkdocs.structure.files import File

    for name, text in generated_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Describes the page and mends its links (a hook of MkDocs)."""
    page.meta.setdefault("description", config["extra"]["lines"][page.file.src_uri])
    return within_the_site(markdown)


def on_page_content(html: str, page: Any, config: Any, **_: Any) -> str:
    """Writes the page as Markdown beside its HTML (a hook of MkDocs)."""
    copy = Path(config["site_dir"], page.file.src_uri)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(page.markdown, encoding="utf-8")
    return html


def on_post_build(config: Any) -> None:
    """Writes llms.txt (a hook of MkDocs)."""
    sections = list(nav_sections(config["nav"]))
    text = llms_txt(config["site_name"], config["site_description"], sections, config["extra"]["lines"])
    Path(config["site_dir"], "llms.txt").write_text(text, encoding="utf-8")


def _title(page: str) -> str:
    generated = reference_pages.TITLES | {"index.md": "MindBatch", "changelog.md": "Changes"}
    if page in generated:
        return generated[page]
    return (CHECKOUT / "docs" / page).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _relinked(text: str, target_of: Any) -> str:
    """The text with each link's target replaced; the link is its label alone where that is None."""

    def link(found: re.Match[str]) -> str:
        target = target_of(found[3])
        return found[2] if target is None else f"{found[1]}[{found[2]}]({target})"

    parts, end = [], 0
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(link, text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(link, text[end:])])
