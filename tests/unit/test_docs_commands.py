"""Commands and programs of the documentation: keys, options and values exist, code compiles."""

import re
import subprocess
from pathlib import Path

import pytest

from doc_pages import CHECKOUT, PAGES, Block, blocks, commands, commands_of
from mindbatch.cli import SHORT_FLAGS, SWITCHES, VALUED_FLAGS
from mindbatch.config.schema import schema_keys
from mindbatch.model_spec.registry import MODEL_TYPES
from mindbatch.tasks.registry import TASKS

COMMANDS = commands()
CONFIGS = CHECKOUT / "configs"
PLACEHOLDERS = {"...", "[KEY=VALUE", "...]", "[FLAGS]", "TASK"}
MISSPELT = "runtime.cache_memry"  # on purpose: the README shows the answer


def errors_of(words: list[str]) -> list[str]:
    """The words of a command that name no task, key, option or value that there is."""
    name, *rest = words
    if name in PLACEHOLDERS:
        return []
    if name not in TASKS:
        return [name]
    schema = TASKS[name].schema
    faults, plain, flag = [], 0, ""
    for word in rest:
        if flag in VALUED_FLAGS:
            flag = ""
        elif word.startswith("-"):
            name, has_value, _ = SHORT_FLAGS.get(word, word).partition("=")
            faults += [] if name in {*SWITCHES, *VALUED_FLAGS} else [word]
            flag = "" if has_value else name
        elif "=" in word:
            faults += [] if is_known(word, schema) else [word]
        elif word not in PLACEHOLDERS:
            plain += 1
            faults += [] if plain <= len(schema.positional) or schema.positional_rest else [word]
    return faults


def is_known(word: str, schema: type) -> bool:
    """True of `key=value` with a value that the key takes, and of `group=option`."""
    name, _, value = word.lstrip("+").partition("=")
    keys = schema_keys(schema)
    if name in keys.keys:
        key = keys.keys[name]
        values = {"...", *(str(name).lower() for name in key.kind.names), *["null"] * key.optional}
        return not key.kind.names or value.lower() in values
    options = re.findall(r"[\w.]+", value)
    in_group = name in keys.sections or (CONFIGS / name).is_dir()
    return in_group and all(value == "..." or (CONFIGS / name / f"{one}.yaml").exists() for one in options)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_what_there_is(page: Path) -> None:
    faults = [fault for at, words in COMMANDS if at == page for fault in errors_of(words)]
    assert [fault for fault in faults if not fault.startswith(MISSPELT)] == []


def test_enough_commands_are_looked_at() -> None:
    assert len(COMMANDS) > 150
    assert {words[0] for _, words in COMMANDS} >= TASKS.keys()


@pytest.mark.parametrize(
    ("command", "faults"),
    [
        ("mindbatch generat model=tiny_gpt2", ["generat"]),
        ("mindbatch generate model=tiny_gpt3 decoding.topp=1", ["model=tiny_gpt3", "decoding.topp=1"]),
        ("mindbatch generate --config FILE --verbos", ["--verbos"]),
        ("mindbatch compare decoding='[greedy,beam5]'", ["decoding=[greedy,beam5]"]),
        ("mindbatch batch output.format=xml launch=srun data.path=a | cat", ["output.format=xml"]),
        ("echo '{}' | mindbatch diff a b c", ["c"]),
        ('bash scripts/run_dist_gen.sh "mindbatch generate modle=x" table.json', ["modle=x"]),
        ("mindbatch evaluate \\\n  task=gsm9k  # a comment", ["task=gsm9k"]),
        ("cat <<'END'\nmindbatch nothing\nEND\nmindbatch inspect FOLDER format=yaml > out", ["format=yaml"]),
    ],
)  # fmt: skip
def test_a_wrong_command_is_found(command: str, faults: list[str]) -> None:
    assert [fault for words in commands_of(command) for fault in errors_of(words)] == faults


@pytest.mark.parametrize("task", TASKS)
def test_examples_of_help_name_what_there_is(task: str) -> None:
    found = [words for example in TASKS[task].examples for words in commands_of(example)]
    assert len(found) == len(TASKS[task].examples)
    assert [fault for words in found for fault in errors_of(words)] == []


def test_keys_in_the_text_exist() -> None:
    keys = {key for task in TASKS.values() for key in schema_keys(task.schema).keys}
    sections = "|".join({key.partition(".")[0] for key in keys if "." in key})
    named = re.compile(rf"(?<![\w./-])((?:{sections})\.\w+)=")
    found = {key for page in PAGES for key in named.findall(page.read_text("utf-8"))} - {MISSPELT}
    assert len(found) > 80
    assert found - keys == set()


def test_the_short_table_of_decoding_has_every_parameter() -> None:
    page = (CHECKOUT / "docs/decoding.md").read_text("utf-8")
    short = page.partition("In short")[2].partition("All of them:")[0]
    rows = re.findall(r"^\| (`.*?) \|", short, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    keys = schema_keys(TASKS["generate"].schema).of_section("decoding")
    assert named == {key.partition(".")[2] for key in keys} - {"skip_special_tokens"}


def test_the_table_of_groups_has_the_keys_and_options_that_there_are() -> None:
    page = (CHECKOUT / "docs/generate.md").read_text("utf-8").partition("options (`group=NAME`)")[2]
    rows = {name: rest for name, *rest in re.findall(r"^\| `(\w+)` \| (.*) \|(.*)\|$", page, re.MULTILINE)}
    options = {path.name: {each.stem for each in path.glob("*.yaml")} for path in CONFIGS.iterdir()}
    keys = schema_keys(TASKS["generate"].schema)
    for group, (named, shown) in rows.items():
        assert {*re.findall(r"`(\w+)`", shown)} == options.get(group, set()), group
        listed = {f"{group}.{key}" for key in re.findall(r"`(\w+)`", named)}
        if group not in ("data", "decoding"):  # of batch, and in a table of its own
            assert listed == {*keys.of_section(group)}, group
    assert rows.keys() == {*keys.sections, "data"}


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.page.name)
def test_programs_compile(block: Block) -> None:
    compile(block.code, str(block.page), "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_scripts_are_read_by_bash(page: Path) -> None:
    scripts = [block.code for block in blocks("bash") if block.page == page]
    checked = subprocess.run(
        ["bash", "-n"], input="\n".join(scripts), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_blocks_say_their_language() -> None:
    assert {block.language for block in blocks()} <= {"bash", "python", "text", "yaml", "json"}


def test_types_of_models_are_all_named() -> None:
    readme, models = ((CHECKOUT / name).read_text("utf-8") for name in ("README.md", "docs/models.md"))
    assert f"Hugging Face folders of {len(MODEL_TYPES)} types" in readme
    rows = re.findall(r"^\| (.*?) \|", models.partition("## Types")[2].partition("\n## ")[0], re.MULTILINE)
    assert sorted(name for row in rows[1:] for name in re.findall(r"`(\w+)`", row)) == sorted(MODEL_TYPES)


@pytest.mark.parametrize("page", ["architecture.md", "design.md", "contributing.md"])
def test_modules_that_the_map_names_exist(page: str) -> None:
    named = re.findall(r"`([\w/]+\.(?:py|cpp|h)|[a-z_/]+/)`", (CHECKOUT / "docs" / page).read_text("utf-8"))
    folders = ("pipeline/mindbatch", "tests", "tools", "docs", "configs", "examples")
    there = {
        f"{path.as_posix()}{'/' * path.is_dir()}" for top in folders for path in (CHECKOUT / top).rglob("*")
    } | {f"{CHECKOUT.as_posix()}/{top}/" for top in folders}
    assert len(named) > 10
    assert [name for name in named if not any(path.endswith(f"/{name}") for path in there)] == []
