"""The section lora: which adapters there may be, and what is said of those that there cannot."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from mindbatch.config.llm_options import options_of
from mindbatch.config.lora_schema import LIST_NAME, AdapterFolder, LoraConfig, lora_errors
from mindbatch.io.error_lines import unknown_adapter
from mindbatch.io.errors import ConfigError
from mindbatch.run.batch_config import BatchConfig
from mindbatch.run.identity import _adapter_fields
from task_configs import config_of, faults_of_task


@pytest.fixture
def here(model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rows.jsonl").write_text("x\n")
    for name in ("law", "med"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def composed(*overrides: str) -> BatchConfig:
    given = ["model.checkpoint_name_or_path=llama-32-heads", "data.path=rows.jsonl", "output.dir=runs/a"]
    return config_of("batch", *given, *overrides)


def fields_of(*overrides: str) -> dict[str, Any]:
    """Of the fingerprint, with adapters that stand for their digests."""
    with patch("mindbatch.run.identity.open_adapters", return_value={"law": SimpleNamespace(digest="0a")}):
        return _adapter_fields(composed(*overrides), Path("llama-32-heads"))


def errors_of(*overrides: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        composed(*overrides)
    return tuple(caught.value.lines)


def test_adapters_are_folders_by_name(here: Path) -> None:
    config = composed(
        "lora.adapters={law: law, med: {path: ./med, scaling: 2}, base: null}",
        "lora.default=law",
    )
    assert config.lora.names == ("law", "med", "base")
    assert config.lora.folders == {"law": AdapterFolder(Path("law")), "med": AdapterFolder(Path("med"), 2)}
    assert composed().lora == LoraConfig()


def test_a_saved_configuration_has_absolute_folders(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = "lora.adapters={law: law, med: {path: med}, tiny: 'shipped:examples/tiny_gpt2', base: null}"
    config = composed(written)
    (here / "elsewhere").mkdir()
    (here / "elsewhere/saved.yaml").write_text(config.unresolved_yaml)
    monkeypatch.chdir(here / "elsewhere")
    again = config_of("batch", file=here / "elsewhere/saved.yaml")
    folders = again.lora.folders
    assert [folders[name].path for name in ("law", "med")] == [here / "law", here / "med"]
    assert folders["tiny"].path == config.lora.folders["tiny"].path
    assert "tiny: shipped:examples/tiny_gpt2" in config.unresolved_yaml
    assert again.unresolved_yaml == config.unresolved_yaml
    assert again.resolved_settings["lora"]["adapters"]["law"] == f"{here}/law"


@pytest.mark.parametrize("value", ["{law: law, law: med}", "{a: {path: law, path: med}}"])
def test_a_name_that_is_given_twice_is_refused(here: Path, value: str) -> None:
    [line] = errors_of(f"lora.adapters={value}")
    assert line.endswith(" is given twice")
    assert errors_of('lora.adapters={"law": "law", "law": "med"}')


def test_neither_colons_in_values_nor_keys_of_mappings_are_names(here: Path) -> None:
    assert composed("lora.adapters={law: {path: law}, med: {path: med}}").lora.names == ("law", "med")
    both = "lora.adapters={one: shipped:examples/tiny_gpt2, two: shipped:examples/tiny_gpt2}"
    assert composed(both).lora.names == ("one", "two")
    [line] = errors_of("lora.adapters={one: shipped:examples/tiny_gpt2, one: shipped:examples/tiny_gpt2}")
    assert line.endswith(": one is given twice")


def test_all_faults_are_told_at_once(here: Path) -> None:
    found = errors_of(
        "lora.adapters={law: lw, med: {path: med, scale: 2}, odd: 7, "
        "zero: {path: law, scaling: 0}, none: {}}",
        "lora.default=lau",
    )
    assert found == (
        "lora.adapters.law=lw: no such folder; did you mean law?",
        "lora.adapters.med.scale: unknown; there are path and scaling; did you mean scaling?",
        "lora.adapters.odd=7: must be a folder or file, {path: PATH, scaling: NUMBER}, or null for the base",
        "lora.adapters.zero.scaling=0: must be a number other than 0, below 1e+09",
        "lora.adapters.none.path=null: must be the adapter's folder",
        "lora.default=lau: there is no adapter 'lau'; lora.adapters has law, med, odd, zero, none; "
        "did you mean law?",
    )


@pytest.mark.parametrize(
    ("adapters", "fault"),
    [
        (
            ["law"],
            "must be a mapping of names to folders, the path of MindFormers' lora_adapter.json, or null",
        ),
        ({"": None}, "'': a name must be a text"),
        ({7: None}, "7: a name must be a text"),
        ({"a" * 101: None}, "a name has at most 100 characters"),
        ({"a\x1b[31m": None}, "'a\\x1b[31m': a name has printable characters only"),
        ({" a": None}, "none that is blank at either end"),
        (dict.fromkeys(map(str, range(10_001))), "10,001 adapters; at most 10,000 are taken"),
    ],
)
def test_names_are_short_and_can_be_printed(adapters: Any, fault: str) -> None:
    [line] = lora_errors(LoraConfig(adapters))
    assert line.startswith("lora.adapters")
    assert fault in line


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"default": "a"}, "lora.default=a: there is no adapter 'a': lora.adapters names none"),
    ],
)
def test_what_has_no_effect_is_refused(options: dict[str, Any], fault: str) -> None:
    assert [*lora_errors(LoraConfig(**options))] == [fault]


def test_of_many_adapters_a_few_are_named() -> None:
    names = [f"n{number}" for number in range(30)]
    assert unknown_adapter("zzz", names) == (
        "there is no adapter 'zzz'; lora.adapters has n0, n1, n2, n3, n4, n5, n6, n7 and 22 more"
    )
    assert unknown_adapter("n29x", names).endswith("; did you mean n29?")


def test_python_takes_the_same_options(here: Path) -> None:
    config = options_of(
        "llama-32-heads", {"lora_adapters": {"law": here / "law", "base": None}, "lora_default": "law"}
    )
    assert config.lora.folders == {"law": AdapterFolder(here / "law")}
    with pytest.raises(ConfigError, match="lora.adapters.law=.*: no such folder"):
        options_of("llama-32-heads", {"lora_adapters": {"law": here / "lax"}})
    with pytest.raises(TypeError, match="did you mean lora_adapters"):
        options_of("llama-32-heads", {"lora_adapter": {}})


def test_one_adapter_is_merged_for_every_row(here: Path) -> None:
    config = composed("lora.adapters={law: law}", "lora.mode=merge")
    assert config.lora.is_merged
    assert config.lora.row_default == "law"
    assert composed("lora.adapters={law: law}").lora.row_default is None
    fields = {mode: fields_of("lora.adapters={law: law}", f"lora.mode={mode}") for mode in ("live", "merge")}
    assert fields["merge"] == fields["live"] | {"lora.mode": "merge", "lora.default": "law"}
    assert fields_of("lora.adapters={law: law}", "lora.mode=merge", "lora.default=law") == fields["merge"]


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        (
            ["lora.adapters=null"],
            "lora.mode=merge: has no effect without lora.adapters; give lora.adapters or remove it",
        ),
        (
            ["lora.adapters={law: law, med: med}"],
            "lora.mode=merge: makes one adapter part of the weights, and lora.adapters has 2 (law, med); "
            "give one folder and nothing else, or lora.mode=live",
        ),
        (
            ["lora.adapters={law: law, base: null}"],
            "lora.mode=merge: makes one adapter part of the weights, and lora.adapters has 2 (law, base); "
            "give one folder and nothing else, or lora.mode=live",
        ),
        (
            ["lora.adapters={base: null}"],
            "lora.mode=merge: makes one adapter part of the weights, and lora.adapters has none; give one "
            "folder and nothing else, or lora.mode=live",
        ),
        (
            ["lora.adapters={law: law}", "lora.max_loaded=1"],
            "lora.max_loaded=1: has no effect with lora.mode=merge; remove it",
        ),
        (
            ["lora.adapters={law: law}", "data.adapter_column=who"],
            "data.adapter_column=who: not with lora.mode=merge, where every row has the one adapter; remove "
            "it, or use lora.mode=live",
        ),
    ],
)
def test_a_merge_gives_rows_no_choice(here: Path, overrides: list[str], fault: str) -> None:
    assert errors_of("lora.mode=merge", *overrides) == (fault,)


def test_a_list_of_mindformers_stands_for_its_adapters(here: Path) -> None:
    """Folders are counted from the working directory, or from the list's own."""
    home = here / "lists"
    (home / "near").mkdir(parents=True)
    listed = home / LIST_NAME
    listed.write_text(json.dumps({"law": "law", "med": str(here / "med"), "near": "near"}))
    expected = {"law": Path("law"), "med": here / "med", "near": Path("lists/near")}
    for path in ("lists", f"lists/{LIST_NAME}"):
        config = composed(f"lora.adapters={path}", "lora.default=law")
        assert {name: folder.path for name, folder in config.lora.folders.items()} == expected
        assert f"law: {here}/law" in config.unresolved_yaml, "the list is needed no more"
    listed.write_text(json.dumps({"law": "lw"}))
    assert errors_of("lora.adapters=lists") == ("lora.adapters.law=lw: no such folder; did you mean law?",)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "lora.adapters=lists: holds no lora_adapter.json; must be {NAME: FOLDER, ...}, or"),
        ('{"law": 1}', "lora.adapters=lists: law has 1; must be a name with the folder of an adapter"),
        ('{"law": {"path": "law"}}', "lora.adapters=lists: lora_adapter.json: JSON is nested too deeply"),
        ('{"law": "law", "law": "med"}', "the key 'law' appears twice"),
        ("{}", "lora.adapters=lists: lora_adapter.json has {}; must be an object of folders by name"),
        ("PK", "lora.adapters=lists: lora_adapter.json: not valid JSON"),
        (json.dumps({"law": "x" * 5000}), "...: cannot be used (File name too long)"),
        (json.dumps({"law": "x\0"}), "lora.adapters.law=x\0: no such folder"),
    ],
)
def test_lists_that_are_none(here: Path, content: str | None, fault: str) -> None:
    (here / "lists").mkdir()
    if content is not None:
        (here / "lists" / LIST_NAME).write_text(content)
    [line] = errors_of("lora.adapters=lists", "lora.default=law")
    assert fault in line


def test_an_adapter_may_be_a_file(here: Path) -> None:
    (here / "lora.ckpt").write_bytes(b"")
    (here / "notes.txt").write_bytes(b"")
    found = composed("lora.adapters={law: {path: lora.ckpt, scaling: 2}}").lora.folders
    assert found == {"law": AdapterFolder(Path("lora.ckpt"), 2)}
    [line] = errors_of("lora.adapters={law: notes.txt}")
    assert line == "lora.adapters.law=notes.txt: is a file; give the folder that holds it: ."


def test_a_shipped_example_is_named_as_such(here: Path) -> None:
    """Commands of the documentation are typed where the examples are not."""
    [line] = errors_of("lora.adapters={one: examples/tiny_gpt2}")
    assert line == (
        "lora.adapters.one=examples/tiny_gpt2: no such folder; did you mean shipped:examples/tiny_gpt2?"
    )
    assert not any(
        "shipped:" in line for line in errors_of("lora.adapters={one: examples/../x, two: examples/x}")
    )


def test_prompts_without_a_default_would_have_no_adapter(here: Path) -> None:
    given = ["model.checkpoint_name_or_path=llama-32-heads", "prompts=[x]", "lora.adapters={law: law}"]
    assert tuple(faults_of_task("generate", *given)) == (
        "lora.adapters: law: no prompt would have one; give lora.default=law, or remove them",
    )
    config_of("generate", *given, "lora.default=law")
    config_of("generate", *given, "lora.mode=merge")
