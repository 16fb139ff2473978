"""Tensors that a checkpoint holds besides: compared with what the model takes in their place."""

import json
from pathlib import Path

import numpy as np
import pytest
from model_folders import ENCODERS, FIXTURE, descriptions, write_folder
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from mindbatch import LLM
from mindbatch.cli import main
from mindbatch.config.model_schema import ModelConfig
from mindbatch.io.errors import CheckpointError
from mindbatch.loading.providers import open_model
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.parallel.topology import RankPart, TensorSlice

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
DIFFERS = f"tensor '{HEAD}' differs from '{EMBEDDING}', which is used instead; remove it, or set tie"


def folder_of(case: str, path: Path, fixture: Path = FIXTURE) -> Path:
    """A model in one file of float32."""
    write_folder(path, descriptions(fixture)[case] | {"dtype": "float32", "shards": 1})
    return path


def with_tensor(folder: Path, name: str, like: str, change: float = 0.0, dtype: type = np.float32) -> None:
    """Adds a tensor that is another one but for its type and its last number."""
    tensors: dict[str, NDArray[np.floating]] = dict(load_file(folder / "model.safetensors"))
    tensors[name] = tensors[like].astype(dtype)
    tensors[name][-1, -1] += change
    save_file(tensors, folder / "model.safetensors")


def opened(folder: Path, provider: str = "native") -> ModelSpec:
    return open_model(ModelConfig(checkpoint_name_or_path=str(folder), provider=provider)).spec


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return folder_of("qwen3", tmp_path / "tied")


@pytest.mark.parametrize("provider", ["native", "mindformers"])
def test_a_head_that_is_not_the_embedding_of_a_tied_model_is_refused(tied: Path, provider: str) -> None:
    with_tensor(tied, HEAD, EMBEDDING)
    opened(tied, provider)
    with_tensor(tied, HEAD, EMBEDDING, 0.5)
    with pytest.raises(CheckpointError, match=DIFFERS):
        opened(tied, provider)


def test_copies_may_be_stored_in_another_type(tied: Path) -> None:
    tensors = load_file(tied / "model.safetensors")
    tensors[EMBEDDING] = tensors[EMBEDDING].astype(np.float16).astype(np.float32)
    save_file(tensors, tied / "model.safetensors")
    with_tensor(tied, HEAD, EMBEDDING, dtype=np.float16)
    opened(tied)
    with_tensor(tied, HEAD, EMBEDDING, 0.5, np.float16)
    with pytest.raises(CheckpointError, match=DIFFERS):
        opened(tied)


def test_nothing_is_resharded_with_a_head_left_out(
    tied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_tensor(tied, HEAD, EMBEDDING, 0.5)
    assert main(["reshard", f"source={tied}", f"target.dir={tmp_path / 'cut'}"]) == 1
    assert DIFFERS in capsys.readouterr().err
    assert not (tmp_path / "cut").exists()


def test_copies_of_the_shared_embedding_of_t5_are_compared(tmp_path: Path) -> None:
    folder = folder_of("t5", tmp_path / "t5", ENCODERS)
    with_tensor(folder, "encoder.embed_tokens.weight", "shared.weight")
    opened(folder)
    with_tensor(folder, "decoder.embed_tokens.weight", "shared.weight", 0.5)
    with pytest.raises(CheckpointError, match=r"'decoder.embed_tokens.weight' differs from 'shared.weight'"):
        opened(folder)


@pytest.mark.parametrize("case", ["t5_gated", "mt5"])
def test_t5_has_the_head_that_is_stored_whatever_its_config_says(case: str, tmp_path: Path) -> None:
    """transformers 5 writes tie_word_embeddings=true for all of them."""
    folder = folder_of(case, tmp_path / "own", ENCODERS)
    config = json.loads((folder / "config.json").read_text())
    config |= {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    (folder / "config.json").write_text(json.dumps(config))
    own, cut = opened(folder), tmp_path / "cut"
    assert main(["reshard", f"source={folder}", f"target.dir={cut}"]) == 0
    assert HEAD in load_file(cut / "model.safetensors")
    with_tensor(folder, HEAD, "shared.weight")
    shared = opened(folder)
    assert (own.architecture.tied, shared.architecture.tied) == (False, True)
    assert own.architecture.logits_factor == shared.architecture.logits_factor == 1


def test_ranks_of_another_tool_are_told_with_the_reshard_that_makes_a_model_of_them(tmp_path: Path) -> None:
    """As transform_ckpt.py leaves them, with config.json beside: MindFormers' names, and no marker."""
    whole, cut = folder_of("gpt2", tmp_path / "whole"), tmp_path / "cut"
    sizes = ["target.model_parallel=2", "target.names=mindformers"]
    assert main(["reshard", f"source={whole}", f"target.dir={cut}", *sizes]) == 0
    (cut / "reshard.json").unlink()
    with pytest.raises(
        CheckpointError, match=rf"make one model of them: `mindbatch reshard source={cut} "
    ) as told:
        open_model(ModelConfig(checkpoint_name_or_path=str(cut)), RankPart(TensorSlice(0, 2)))
    assert len(told.value.lines) == 1


@pytest.mark.parametrize(
    ("case", "own", "other"),
    [
        ("qwen3", EMBEDDING, HEAD),
        ("gpt2", "transformer.wte.weight", HEAD),
        ("t5", "shared.weight", HEAD),
        ("t5", "shared.weight", "decoder.embed_tokens.weight"),
    ],
)
def test_a_tensor_that_is_stored_under_the_other_name_alone_is_that(
    case: str, own: str, other: str, tmp_path: Path
) -> None:
    """As transformers 5 loads it."""
    folder = folder_of(case, tmp_path / case, ENCODERS if case == "t5" else FIXTURE)
    expected = generated(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors[other] = tensors.pop(own)
    save_file(tensors, folder / "model.safetensors")
    assert generated(folder) == expected
    assert main(["reshard", f"source={folder}", f"target.dir={tmp_path / 'again'}"]) == 0
    assert {*load_file(tmp_path / "again/model.safetensors")} == {*tensors}
    assert generated(tmp_path / "again") == expected


def test_a_tied_embedding_that_is_stored_as_the_head_becomes_mindformers_embedding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut, back = (folder_of("gpt2", tmp_path / "whole"), tmp_path / "cut", tmp_path / "back")
    tensors = load_file(whole / "model.safetensors")
    embedding = tensors.pop("transformer.wte.weight")
    save_file(tensors | {HEAD: embedding}, whole / "model.safetensors")
    assert main(["reshard", f"source={whole}", f"target.dir={cut}", "target.names=mindformers"]) == 0
    assert "left out" not in "".join(capsys.readouterr())
    assert main(["reshard", f"source={cut}", f"target.dir={back}"]) == 0
    again = load_file(back / "model.safetensors")
    assert again.keys() == tensors.keys() | {"transformer.wte.weight"}
    assert (again["transformer.wte.weight"] == embedding).all()


def generated(folder: Path) -> list[int]:
    with LLM(folder, cache_memory="4MiB") as llm:
        return [*llm.generate([[5, 6, 7]], max_new_tokens=6)[0].outputs[0].token_ids]


@pytest.mark.parametrize("module", ["lm_head", "model.embed_tokens"])
def test_an_adapter_of_a_head_that_is_stored_for_both_is_not_merged_into_both(
    tied: Path, tmp_path: Path, module: str
) -> None:
    tensors = load_file(tied / "model.safetensors")
    rows, width = tensors[EMBEDDING].shape
    tensors[HEAD] = tensors.pop(EMBEDDING)
    save_file(tensors, tied / "model.safetensors")
    parts = {"lora_A": np.ones((1, width)), "lora_B": np.ones((rows, 1))}
    if module != "lm_head":
        parts = {"lora_embedding_A": np.ones((1, rows)), "lora_embedding_B": np.ones((width, 1))}
    ends = {name: "" if "embedding" in name else ".weight" for name in parts}
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    names = {f"base_model.model.{module}.{name}{ends[name]}": part for name, part in parts.items()}
    save_file(
        {name: part.astype(np.float32) for name, part in names.items()}, adapter / "adapter_model.safetensors"
    )
    settings = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [module.rpartition(".")[2]]}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match="one tensor"):
        LLM(tied, cache_memory="4MiB", lora_adapters={"a": adapter}, lora_mode="merge")
