"""Experts in two tensors a layer, as transformers 5 saves them with save_original_format=False."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import EXPERTS, descriptions, ragged, write_folder
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from mindbatch import LLM, DecodingParams
from mindbatch.tasks.reshard import task
from mindbatch.tasks.reshard.schema import ReshardConfig, ReshardTargetConfig

CASES = ("qwen3_moe", "mixtral", "qwen2_moe_mixed", "glm4_moe", "ernie4_5_moe", "minimax_m2")
_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(\w+)\.weight")
_OF_MIXTRAL = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}


def fused(tensors: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The same tensors, of each layer those of all experts in one, gates above ups."""
    made: dict[str, NDArray[Any]] = {}
    experts: dict[str, dict[str, dict[int, NDArray[Any]]]] = {}
    for name, tensor in tensors.items():
        if match := _EXPERT.fullmatch(name):
            place = match[1].replace("block_sparse_moe", "mlp")
            which = _OF_MIXTRAL.get(match[3], match[3])
            experts.setdefault(place, {}).setdefault(which, {})[int(match[2])] = tensor
        else:
            name = name.replace("block_sparse_moe", "mlp").replace(".moe_statics.", ".gate.moe_statics.")
            made[name] = tensor
    for place, by_kind in experts.items():
        gate, up, down = (
            np.stack([by_kind[which][number] for number in range(len(by_kind[which]))])
            for which in ("gate_proj", "up_proj", "down_proj")
        )
        made[f"{place}.experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
        made[f"{place}.experts.down_proj"] = down
    return made


@dataclass(frozen=True)
class Saved:
    """A folder with fused experts. tokens: that the model generates from the prompt with experts apart."""

    folder: Path
    prompt: list[int]
    tokens: list[int]

    def generated(self, **options: Any) -> list[int]:
        return generated(self.folder, self.prompt, **options)


def generated(folder: Path, prompt: list[int], **options: Any) -> list[int]:
    with LLM(folder, cache_memory="64MiB", **options) as llm:
        [result] = llm.generate([prompt], DecodingParams(max_new_tokens=32))
    return [*result.outputs[0].token_ids]


@pytest.fixture(params=[CASES[0], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES[1:])])
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Saved:
    """What transformers computes with the experts apart: see test_models.py."""
    case = str(request.param)
    write_folder(tmp_path, descriptions(EXPERTS)[case] | {"shards": 1, "dtype": "float32"})
    prompt, path = ragged(case, EXPERTS)[0], tmp_path / "model.safetensors"
    tokens = generated(tmp_path, prompt)
    save_file(fused(load_file(path)), path)
    return Saved(tmp_path, prompt, tokens)


def test_they_are_read_and_cut_like_others(saved: Saved, tmp_path: Path) -> None:
    folder = saved.folder
    assert saved.generated() == saved.tokens
    cut = ReshardTargetConfig(dir=str(tmp_path / "cut"), model_parallel=2)
    assert task.run(ReshardConfig(source=str(folder), target=cut, verify="logits")) == 0
    whole = ReshardTargetConfig(dir=str(tmp_path / "whole"))
    assert task.run(ReshardConfig(source=str(tmp_path / "cut"), target=whole, verify="logits")) == 0
    before, after = load_file(folder / "model.safetensors"), load_file(tmp_path / "whole/model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)


@pytest.mark.slow
@pytest.mark.processes
def test_ranks_take_their_slices_of_them(saved: Saved) -> None:
    assert saved.generated(model_parallel=2) == saved.tokens


def test_a_gpt_oss_whose_experts_are_always_so_is_compared_by_its_logits(tmp_path: Path) -> None:
    write_folder(tmp_path / "source", descriptions(EXPERTS)["gpt_oss"])
    target = ReshardTargetConfig(dir=str(tmp_path / "cut"), model_parallel=2)
    assert task.run(ReshardConfig(source=str(tmp_path / "source"), target=target, verify="logits")) == 0
