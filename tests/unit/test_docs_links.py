"""Links, anchors, named files and sizes of README.md, CHANGELOG.md and docs/."""

import re
from pathlib import Path

import pytest
import yaml

import docs_site
from doc_pages import CHECKOUT, PAGES, anchors, links, prose

SITE = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text("utf-8"))
SECTIONS = list(docs_site.nav_sections(SITE["nav"]))
MOST_BYTES_OF_THE_README = 12_000
MOST_LINES_OF_THE_MAP = 150


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, links(page)) == []


def broken_links(page: Path, targets: list[str]) -> list[str]:
    """Those that lead to no file, or to no heading that the code host and the site name alike."""
    broken = []
    for target in targets:
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchors(file).get(anchor) != anchor):
            broken.append(target)
    return broken


def test_a_broken_link_is_found() -> None:
    page = CHECKOUT / "README.md"
    good = ["docs/batch.md", "docs/ascend.md#what-is-proved", "#speed"]
    assert broken_links(page, good) == []
    bad = ["docs/none.md", "docs/ascend.md#none", "#none"]
    assert broken_links(page, good + bad) == bad


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_heading_that_is_linked_is_there_once(page: Path) -> None:
    """A second one of the same name would have an anchor with a number, and the link would miss it."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    twice = {heading for heading in headings if headings.count(heading) > 1}
    linked = {target.partition("#")[2] for other in PAGES for target in links(other) if page.name in target}
    linked |= {target[1:] for target in links(page) if target.startswith("#")}
    assert not {heading for heading in twice if heading.lower().replace(" ", "-") in linked}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page: Path) -> None:
    named = re.findall(r"\b((?:tools|benchmarks|makers|scripts|tests)/[\w/]+\.\w+)", page.read_text("utf-8"))
    assert [name for name in named if not (CHECKOUT / name).exists()] == []


def test_the_site_has_every_page_and_a_line_for_each() -> None:
    in_nav = [page for _, pages in SECTIONS for page in pages]
    own = {page.name for page in PAGES if page.parent.name == "docs"}
    assert sorted(in_nav) == sorted(own | docs_site.generated_pages().keys())
    assert SITE["extra"]["lines"].keys() == {*in_nav}
    assert all(len(line) < 150 for line in SITE["extra"]["lines"].values())


def test_the_index_for_language_models_has_every_page() -> None:
    index = docs_site.llms_txt(SITE["site_name"], SITE["site_description"], SECTIONS, SITE["extra"]["lines"])
    assert index.startswith(f"# MindBatch\n\n> {SITE['site_description']}\n\n## ")
    assert {*re.findall(r"^- \[[^\]]+\]\((.+)\): \S", index, re.MULTILINE)} == SITE["extra"]["lines"].keys()


def test_links_of_the_site_stay_within_it() -> None:
    pages = {page.name: page.read_text("utf-8") for page in PAGES if page.parent.name == "docs"}
    pages |= docs_site.generated_pages()
    for name, text in pages.items():
        folder = Path(name).parent
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", docs_site.within_the_site(text)):
            path = (CHECKOUT / "docs" / folder / target).resolve().relative_to(CHECKOUT / "docs")
            assert path.as_posix() in pages or (CHECKOUT / "docs" / path).is_file(), f"{name}: {target}"


def test_links_are_mended_and_code_is_left_as_it_is() -> None:
    text = "[a](docs/batch.md#x) [b](LICENSE) ![c](docs/images/c.png) [d](https://x.y)\n```\n[e](f)\n```\n"
    page = docs_site.from_the_root(text)
    assert page == "[a](batch.md#x) [b](../LICENSE) ![c](images/c.png) [d](https://x.y)\n```\n[e](f)\n```\n"
    assert docs_site.within_the_site(page).startswith("[a](batch.md#x) b ![c](images/c.png) [d]")


def test_the_readme_and_the_map_stay_short() -> None:
    assert (CHECKOUT / "README.md").stat().st_size <= MOST_BYTES_OF_THE_README
    assert len((CHECKOUT / "docs/architecture.md").read_text("utf-8").splitlines()) <= MOST_LINES_OF_THE_MAP


def test_images_are_small_and_shown() -> None:
    shown = {link for page in PAGES for link in links(page) if link.endswith(".png")}
    images = sorted((CHECKOUT / "docs/images").iterdir())
    assert [f"images/{image.name}" for image in images] == sorted(shown)
    assert all(image.stat().st_size < 150_000 for image in images)
