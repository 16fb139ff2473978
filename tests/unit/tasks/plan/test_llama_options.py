"""Which models MindFormers' Llama covers, and what it is told about them."""

from typing import Any

import pytest

from mindbatch.io.errors import ConfigError
from mindbatch.models.architecture import Architecture
from mindbatch.models.registry import describe
from mindbatch.tasks.plan.mindformers_layout import llama_options

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
}


def arch(**changes: Any) -> Architecture:
    return describe(LLAMA | changes)


def faults(described: Architecture, ways: int = 1) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        llama_options(described, 1, ways)
    return [fault.removeprefix("model.provider=mindformers: ") for fault in caught.value.faults]


def test_a_llama_keeps_its_sizes() -> None:
    options = llama_options(arch(tie_word_embeddings=True), 2, 4)
    assert options == {
        "batch_size": 2,
        "seq_length": 32,
        "hidden_size": 64,
        "num_layers": 3,
        "num_heads": 8,
        "n_kv_heads": 4,
        "intermediate_size": 96,
        "vocab_size": 100,
        "qkv_has_bias": False,
        "attn_proj_has_bias": False,
        "qkv_concat": False,
        "tie_word_embeddings": True,
    }


def test_queries_keys_and_values_may_be_one_parameter() -> None:
    assert llama_options(arch(), 1, 1, qkv_concat=True) == llama_options(arch(), 1, 1) | {"qkv_concat": True}


def test_biases_are_those_of_the_model() -> None:
    qwen2 = llama_options(arch(model_type="qwen2"), 1, 1)
    assert (qwen2["qkv_has_bias"], qwen2["attn_proj_has_bias"]) == (True, False)
    biased = llama_options(arch(attention_bias=True), 1, 1)
    assert (biased["qkv_has_bias"], biased["attn_proj_has_bias"]) == (True, True)


def test_everything_it_has_not_is_named_at_once() -> None:
    found = faults(arch(mlp_bias=True, hidden_act="relu", head_dim=16))
    assert found == [
        "this llama model has mlp_bias=true, which MindFormers' Llama has not",
        "this llama model has hidden_act=relu; MindFormers' Llama has silu",
        "head_dim=16: MindFormers' Llama has hidden_size=64 divided by the 8 heads",
    ]


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "qwen3", "head_dim": 8}, "norms of queries and keys"),
        ({"model_type": "mistral", "sliding_window": 4}, "sliding windows"),
    ],
)
def test_relatives_that_differ_are_refused(changes: dict[str, Any], fault: str) -> None:
    (found,) = faults(arch(**changes))
    assert fault in found


def test_another_family_is_refused() -> None:
    gpt2 = describe({"model_type": "gpt2", "vocab_size": 9, "n_embd": 8, "n_layer": 1, "n_head": 2})
    assert faults(gpt2) == ["a gpt2 model is no Llama; allowed are llama, mistral and qwen2"]


def test_ways_must_divide_what_is_cut() -> None:
    assert faults(arch(), 5) == [
        "parallel.model_parallel=5: must divide attention heads, 8",
        "parallel.model_parallel=5: must divide key/value heads, 4",
        "parallel.model_parallel=5: must divide intermediate_size, 96",
    ]
    assert faults(arch(), 8) == ["parallel.model_parallel=8: must divide key/value heads, 4"]
