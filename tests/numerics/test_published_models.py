"""Published models made small: the tokens and logits that transformers computes for the same folders.

tests/published has their config.json files; tests/makers/make_published_fixtures.py records what transformers
saves, loads and computes of each.
"""

from __future__ import annotations

import json
import lzma
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import write_folder
from recording import LastRun, gap, load

from mindbatch import DecodingParams
from mindbatch.config.model_schema import ModelConfig
from mindbatch.loading.providers import open_model
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe
from published_configs import RECORDED, published
from small_published import description, small

TOLERANCE = 1e-4
SHORT_FORM = ("Qwen-Qwen3.5-27B", "zai-org-GLM-5.2")
"""A head outside the prefix of a multimodal folder; keys of several kinds that change nothing."""
WITHOUT_A_CLASS = {"chatglm", "chatglm_6b", "minimind", "pangu_alpha"}
"""Types that transformers has not."""
FAILING = {"Hunyuan-7B-its-sizes": "without head_dim transformers 5.24 fails on the type's own scaling"}


@lru_cache(maxsize=1)
def recorded() -> dict[str, Any]:
    """By name: tensors, prompt, tokens, logits."""
    content: dict[str, Any] = json.loads(lzma.decompress(RECORDED.read_bytes()))
    return content


def type_of(name: str) -> str:
    return describe(published()[name].config).model_type


@pytest.mark.parametrize("name", published())
def test_a_published_model_is_described_when_it_is_small(name: str) -> None:
    """All that decides what is computed stays as published."""
    arch = describe(small(published()[name].config))
    if arch.model_type == "chatglm":  # its vocabulary has another key
        return
    assert (arch.model_type, arch.tied) == (type_of(name), describe(published()[name].config).tied)
    assert arch.vocab_size <= 128


# The patterns that transformers 5.24's classes have of names that they do not miss, as examples of them.
NOT_READ = {
    "baidu-ERNIE-4.5-21B-A3B-PT": "model.mtp_block.0.mlp.up_proj.weight",
    "deepseek-ai-DeepSeek-R1-unquantised": "model.layers.61.eh_proj.weight",
    "zai-org-GLM-4.6": "model.layers.92.eh_proj.weight",
    "zai-org-GLM-4.7-Flash": "model.layers.47.eh_proj.weight",
    "zai-org-GLM-5.2": "model.layers.78.eh_proj.weight",
    "Qwen3-Next-80B-A3B-Instruct": "mtp.fc.weight",
    "Qwen-Qwen3.5-27B": "mtp.fc.weight",
    "Qwen-Qwen3.5-122B-A10B": "mtp.fc.weight",
    "pythia-160m": "gpt_neox.layers.0.attention.masked_bias",
    "gpt-j-6b": "transformer.h.0.attn.masked_bias",
    "gpt2-xl": "transformer.h.0.attn.bias",
    "gemma-4-E2B-it": "model.layers.34.self_attn.k_proj.weight",
}


@pytest.mark.parametrize("name", NOT_READ)
def test_tensors_that_published_folders_hold_and_nothing_reads(name: str) -> None:
    assert ModelSpec.of(describe(published()[name].config)).is_unused(NOT_READ[name])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("gemma-4-E2B-it", "model.language_model.layers.9.self_attn.k_proj.weight"),
        ("Qwen-Qwen3.5-27B", "mtp.fc.weight"),
        ("Qwen-Qwen3.5-27B", "model.visual.merger.extra.weight"),
    ],
)
def test_they_may_lie_in_multimodal_folders(name: str, tensor: str, tmp_path: Path) -> None:
    shapes = recorded()[name]["tensors"] | {tensor: [3, 4]}
    write_folder(tmp_path, description(small(published()[name].config), shapes))
    assert open_model(ModelConfig(checkpoint_name_or_path=str(tmp_path))).spec.model_type == type_of(name)


def test_what_is_not_compared() -> None:
    """A new file is compared once `tests/makers/make_published_fixtures.py` has run."""
    assert {name for name in published() if type_of(name) not in WITHOUT_A_CLASS} - FAILING.keys() == {
        *recorded()
    }


def check(name: str, folder: Path) -> None:
    theirs = recorded()[name]
    config = small(published()[name].config)
    write_folder(folder, description(config, theirs["tensors"]))
    params = DecodingParams(max_new_tokens=len(theirs["tokens"]))
    run = LastRun(load(folder, max_batched_tokens=32), [theirs["prompt"]], params)
    assert run.tokens == [theirs["tokens"]]
    last = run.logits[max(run.logits, key=len)]
    assert gap(last, np.array(theirs["logits"], np.float32)) < TOLERANCE


@pytest.mark.parametrize("name", SHORT_FORM)
def test_tokens_and_logits_of_two(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.on_demand
@pytest.mark.parametrize("name", sorted(recorded().keys() - SHORT_FORM))
def test_tokens_and_logits_of_all(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


def test_the_table_of_published_configurations_has_all() -> None:
    """Prints the table that docs/models.md should have."""
    by_type: dict[str, list[str]] = {}
    for name in sorted(recorded(), key=str.lower):
        by_type.setdefault(type_of(name), []).append(name)
    table = "\n".join(f"| `{kind}` | {', '.join(names)} |" for kind, names in sorted(by_type.items()))
    assert table in (Path(__file__).parents[2] / "docs/models.md").read_text("utf-8"), table
