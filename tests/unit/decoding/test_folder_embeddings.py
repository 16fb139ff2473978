"""What folders in the layout of sentence-transformers ask of embeddings: followed, or refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch.decoding.folder_embeddings import FolderEmbeddings, folder_embeddings

OLD, NEW = "sentence_transformers.models.", "sentence_transformers.base.modules.x."
FLAGS = {
    "cls": "cls_token",
    "max": "max_tokens",
    "mean": "mean_tokens",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens",
    "lasttoken": "lasttoken",
}
POOLINGS = {name: name for name in FLAGS} | {"mean_sqrt_len_tokens": "mean", "lasttoken": "last"}


def module(kind: str, path: str = "", package: str = OLD) -> dict[str, Any]:
    return {"idx": 0, "name": "0", "path": path, "type": f"{package}{kind}"}


PLAIN = [module("Transformer"), module("Pooling", "1_Pooling")]


def written(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def read(folder: Path, pooling: Any, modules: Any = PLAIN, **files: Any) -> FolderEmbeddings:
    names = {"prompts": "config_sentence_transformers.json", "texts": "sentence_bert_config.json"}
    others = {names[name]: content for name, content in files.items()}
    return folder_embeddings(
        written(folder, {"modules.json": modules, "1_Pooling/config.json": pooling, **others})
    )


def test_a_folder_that_says_nothing(tmp_path: Path) -> None:
    assert folder_embeddings(tmp_path) == FolderEmbeddings()
    assert folder_embeddings(tmp_path).notes("mean") == []


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("version", ["flags", "name", "list", "alone"])
def test_a_pooling_in_the_form_of_any_version(name: str, version: str, tmp_path: Path) -> None:
    source = str(tmp_path / "1_Pooling/config.json")
    flags = {f"pooling_mode_{flag}": own == name for own, flag in FLAGS.items()}
    content: dict[str, Any] = {"word_embedding_dimension": 8, **flags}
    if version != "flags":
        content = {"embedding_dimension": 8, "pooling_mode": [name] if version == "list" else name}
    found = read(tmp_path, content, [*PLAIN, module("Normalize", "2_Normalize", NEW)])
    if version == "alone":
        (tmp_path / "modules.json").unlink()
        found = folder_embeddings(tmp_path)
    assert found == FolderEmbeddings(POOLINGS[name], source=source)
    assert found.notes(None) == [f"{source}: embeddings have pooling={POOLINGS[name]}"]
    other = "max" if name != "max" else "mean"
    assert found.notes(other) == [
        f"{source}: asks for pooling={POOLINGS[name]}; decoding.pooling={other} overrides it"
    ]


def test_without_any_flag_it_is_the_mean(tmp_path: Path) -> None:
    assert read(tmp_path, {"word_embedding_dimension": 8}).pooling == "mean"


def test_the_default_prompt(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    found = read(tmp_path, {"pooling_mode": "mean"}, prompts=prompts)
    assert (found.prompt, found.errors) == ("query: ", ())
    assert "each text behind 'query: '" in found.notes(None)[0]
    assert read(tmp_path, {"pooling_mode": "mean"}, prompts={"prompts": {"query": "x"}}).prompt == ""
    none = read(tmp_path, {"pooling_mode": "mean"}, prompts={"default_prompt_name": "query"})
    assert "default_prompt_name='query': prompts has no such text" in none.errors[0]


@pytest.mark.parametrize(
    ("modules", "pooling", "files", "reason"),
    [
        ([*PLAIN, module("Dense", "2_Dense")], {}, {}, "modules.json: the module '2_Dense', Dense, is not"),
        ([*PLAIN, module("Own", "2_Own", "own.")], {}, {}, "'2_Own', code of the folder (own.Own), is not"),
        ([*PLAIN, module("Pooling", "2_P")], {}, {}, "poolings in 1_Pooling, 2_P; only one"),
        ([module("Pooling", "../1_Pooling")], {}, {}, "'../1_Pooling': must be the name of a folder"),
        ({"a": 1}, {}, {}, "modules.json: must be a list of modules"),
        ([module("Pooling", "9_P")], {}, {}, "9_P/config.json: missing"),
        (PLAIN, {"pooling_mode": ["mean", "max"]}, {}, "several poolings, mean, max; only one"),
        (PLAIN, {"pooling_mode_max_tokens": True, "pooling_mode_lasttoken": True}, {}, "max, lasttoken"),
        (PLAIN, {"pooling_mode": "median"}, {}, "pooling_mode='median'; must be one of lasttoken, mean, "),
        (PLAIN, [], {}, "1_Pooling/config.json: must be a JSON object"),
        (PLAIN, {}, {"texts": {"do_lower_case": True}}, "do_lower_case=true is not computed here"),
        (PLAIN, {}, {"texts": {"modality_config": {"message": {}}}}, "texts as messages of chats are not"),
        (
            PLAIN,
            {"include_prompt": False},
            {"prompts": {"prompts": {"q": "x"}, "default_prompt_name": "q"}},
            "include_prompt=false beside a default prompt",
        ),
    ],
)
def test_what_is_not_computed_is_named(
    modules: Any, pooling: Any, files: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    found = read(tmp_path, pooling, modules, **files)
    assert len([error for error in found.errors if reason in error]) == 1
    assert found.with_pooling("mean") == FolderEmbeddings("mean", found.prompt, found.source)
    assert found.with_pooling(None) is found
