"""The reference that the site has: every key, parameter and keyword of the package."""

import inspect
import re

import docs_reference
from mindbatch import LLM
from mindbatch.config.schema import schema_keys
from mindbatch.decoding.params import PARAMETERS
from mindbatch.tasks.registry import TASKS

PAGES = docs_reference.pages()


def test_every_key_of_every_task_is_there() -> None:
    tasks, shared = PAGES["reference/tasks.md"], PAGES["reference/sections.md"]
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
    assert "| `model.batch_size` | `32` | a whole number, at least 1 | " in PAGES["reference/sections.md"]
    assert "| `launch.hang_seconds` | " in PAGES["reference/sections.md"]
    assert "| `output.format` | `text` | text, json | " in PAGES["reference/tasks.md"]


def test_every_parameter_and_keyword_is_there() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGES["reference/decoding_params.md"], re.MULTILINE)
    assert rows == list(PARAMETERS)
    keywords = [
        each.name
        for each in inspect.signature(LLM.__init__).parameters.values()
        if each.kind is each.KEYWORD_ONLY
    ]
    rows = re.findall(r"^\| `(\w+)` \|", PAGES["reference/llm.md"], re.MULTILINE)
    assert rows == keywords


def test_signatures_are_shown_as_they_are_written() -> None:
    page = PAGES["reference/llm.md"]
    assert (
        "generate(\n    prompts: PromptInput | Sequence[PromptInput],\n    params: Params = None,\n" in page
    )
    assert "\nasync load(path: str | Path | None = None, **options: Any) -> AsyncLLM\n" in page
    assert "- `ConfigError`: " in page


def test_tables_have_as_many_cells_in_every_row() -> None:
    for name, page in PAGES.items():
        for table in re.findall(r"(?:^\|.*\|\n?)+", page, re.MULTILINE):
            cells = {len(re.findall(r"(?<!\\)\|", row)) for row in table.strip().splitlines()}
            assert len(cells) == 1, f"{name}: {table[:200]}"
