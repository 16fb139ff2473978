"""Links, anchors, named files and sizes of README.md, CHANGELOG.md and docs/; the reference is complete."""

import inspect
import re
from pathlib import Path

import pytest
import yaml

import reference_pages
import site_hooks
from doc_pages import CHECKOUT, PAGES, anchors, links, prose
from mindbatch import LLM
from mindbatch.config.schema import schema_keys
from mindbatch.decoding.params import PARAMETERS
from mindbatch.tasks.registry import TASKS

SITE = yaml.safe_load((CHECKOUT / "mkdocs.yml").read_text("utf-8"))
SECTIONS = list(site_hooks.nav_sections(SITE["nav"]))
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
    text = page.read_text("utf-8")
    named = re.findall(r"\b((?:tools|docs|examples|scripts|tests)/[\w/]+\.\w+)", text)
    named += [f"tests/makers/{maker}.py" for maker in re.findall(r"tests/makers (\w+_\w+)", text)]
    assert [name for name in named if not (CHECKOUT / name).exists()] == []


def test_the_site_has_every_page_and_a_line_for_each() -> None:
    in_nav = [page for _, pages in SECTIONS for page in pages]
    own = {page.name for page in PAGES if page.parent.name == "docs"}
    assert sorted(in_nav) == sorted(own | site_hooks.generated_pages().keys())
    assert SITE["extra"]["lines"].keys() == {*in_nav}
    assert all(len(line) < 150 for line in SITE["extra"]["lines"].values())


def test_the_index_for_language_models_has_every_page() -> None:
    index = site_hooks.llms_txt(SITE["site_name"], SITE["site_description"], SECTIONS, SITE["extra"]["lines"])
    assert index.startswith(f"# MindBatch\n\n> {SITE['site_description']}\n\n## ")
    assert {*re.findall(r"^- \[[^\]]+\]\((.+)\): \S", index, re.MULTILINE)} == SITE["extra"]["lines"].keys()


def test_links_of_the_site_stay_within_it() -> None:
    pages = {page.name: page.read_text("utf-8") for page in PAGES if page.parent.name == "docs"}
    pages |= site_hooks.generated_pages()
    for name, text in pages.items():
        folder = Path(name).parent
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)[^)]*\)", site_hooks.within_the_site(text)):
            path = (CHECKOUT / "docs" / folder / target).resolve().relative_to(CHECKOUT / "docs")
            assert path.as_posix() in pages or (CHECKOUT / "docs" / path).is_file(), f"{name}: {target}"


def test_links_are_mended_and_code_is_left_as_it_is() -> None:
    text = "[a](docs/batch.md#x) [b](LICENSE) ![c](docs/images/c.png) [d](https://x.y)\n```\n[e](f)\n```\n"
    page = site_hooks.from_the_root(text)
    assert page == "[a](batch.md#x) [b](../LICENSE) ![c](images/c.png) [d](https://x.y)\n```\n[e](f)\n```\n"
    assert site_hooks.within_the_site(page).startswith("[a](batch.md#x) b ![c](images/c.png) [d]")


def test_the_readme_and_the_map_stay_short() -> None:
    assert (CHECKOUT / "README.md").stat().st_size <= MOST_BYTES_OF_THE_README
    assert len((CHECKOUT / "docs/architecture.md").read_text("utf-8").splitlines()) <= MOST_LINES_OF_THE_MAP


def test_images_are_small_and_shown() -> None:
    shown = {link for page in PAGES for link in links(page) if link.endswith(".png")}
    images = sorted((CHECKOUT / "docs/images").iterdir())
    assert [f"images/{image.name}" for image in images] == sorted(shown)
    assert all(image.stat().st_size < 150_000 for image in images)


CHECKOUT = Path(__file__).parents[2]
SETUP = (CHECKOUT / "setup.py").read_text(encoding="utf-8")
EXTRAS = re.findall(r'^    "(\S+)": ', SETUP.split("\nEXTRAS = {")[1].split("\n}")[0], re.M)


def test_extras_have_names_that_every_pip_finds() -> None:
    """pip before 23.3 compares the name that is asked for with the normalised one of the metadata."""
    assert "lm-eval" in EXTRAS
    assert [name for name in EXTRAS if re.sub(r"[-_.]+", "-", name).lower() != name] == []


def test_texts_name_extras_that_there_are() -> None:
    files = [CHECKOUT / name for name in ("README.md", "constraints.txt")]
    files += [*(CHECKOUT / "docs").glob("*.md"), *(CHECKOUT / "tests").rglob("*.py")]
    texts = [*(file.read_text(encoding="utf-8") for file in files)]
    named = {
        name for text in texts for name in re.findall(r"(?:\.|\.whl|mindbatch)\[([\w.-]+)\]['`\"]", text)
    }
    assert "lm-eval" in named
    assert named <= {*EXTRAS}


REFERENCE = reference_pages.pages()


def test_every_key_of_every_task_is_there() -> None:
    tasks, shared = REFERENCE["reference/tasks.md"], REFERENCE["reference/sections.md"]
    parts = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", tasks, re.MULTILINE | re.DOTALL))
    assert parts.keys() == TASKS.keys()
    for name, task in TASKS.items():
        linked = {*re.findall(r"\(sections\.md#([\w-]+)\)", parts[name])}
        own = {*re.findall(r"^\| `([\w.]+)` \|", parts[name], re.MULTILINE)}
        for anchor in linked:
            heading = f"## {anchor.replace('-', ' ')}\n"
            assert shared.count(heading) == 1
            section = shared.partition(heading)[2].partition("\n## ")[0]
            own |= {*re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)}
        assert own == schema_keys(task.schema).keys.keys(), name


def test_a_row_has_default_allowed_values_and_meaning() -> None:
    assert "| `model.batch_size` | `32` | a whole number, at least 1 | " in REFERENCE["reference/sections.md"]
    assert "| `launch.hang_seconds` | " in REFERENCE["reference/sections.md"]
    assert "| `output.format` | `text` | one of text, json | " in REFERENCE["reference/tasks.md"]


def test_every_parameter_and_keyword_is_there() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", REFERENCE["reference/decoding_params.md"], re.MULTILINE)
    assert rows == list(PARAMETERS)
    keywords = [
        each.name
        for each in inspect.signature(LLM.__init__).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    ]
    rows = re.findall(r"^\| `(\w+)` \|", REFERENCE["reference/llm.md"], re.MULTILINE)
    assert rows == keywords


def test_signatures_are_shown_as_they_are_written() -> None:
    page = REFERENCE["reference/llm.md"]
    assert (
        "generate(\n    prompts: PromptInput | Sequence[PromptInput],\n    params: Params = None,\n" in page
    )
    assert "\nasync load(path: str | Path | None = None, **options: Any) -> AsyncLLM\n" in page
    assert "- `ConfigError`: " in page


def test_tables_have_as_many_cells_in_every_row() -> None:
    for name, page in REFERENCE.items():
        for table in re.findall(r"(?:^\|.*\|\n?)+", page, re.MULTILINE):
            cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.strip().splitlines()}
            assert len(cells) == 1, f"{name}: {table[:200]}"
