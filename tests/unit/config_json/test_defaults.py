"""An absent key is what the model's own configuration class takes (config_defaults.json).

The file is made by tests/makers/make_config_fixtures.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from mindbatch.architecture.architecture import Architecture
from mindbatch.config_json.reader import config_keys
from mindbatch.model_spec.registry import MODEL_TYPES, defaults, describe

RECORDED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "config_defaults.json").read_text()
)["defaults"]
# With these the rest of the keys matters.
BASE: dict[str, dict[str, Any]] = {
    "chatglm": {"multi_query_attention": True},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},  # its own size has an odd half
    "qwen2": {"use_sliding_window": True, "max_window_layers": 3},
    "qwen3": {"use_sliding_window": True},
}


def described(model_type: str, config: dict[str, Any]) -> Architecture:
    return describe({"model_type": model_type} | config, to_be_run=False)


def test_every_type_is_recorded() -> None:
    """But for TeleChat's types, whose classes are in no package that installs."""
    assert set(RECORDED) == {*MODEL_TYPES} - {"telechat", "telechat3"}
    assert config_keys()["defaults"].keys() == {*MODEL_TYPES}


@pytest.mark.parametrize("model_type", RECORDED)
def test_absent_keys(model_type: str) -> None:
    recorded, base = RECORDED[model_type], BASE.get(model_type, {})
    declared = defaults(model_type)
    assert {key: recorded.get(key, False) for key in declared} == declared
    expected = described(model_type, recorded | base)
    assert described(model_type, base) == expected
    for key in recorded.keys() - base:
        rest = {name: value for name, value in recorded.items() if name != key}
        assert described(model_type, rest | base) == expected, key


@pytest.mark.parametrize(
    ("model_type", "null"),
    [
        (model_type, key)
        for model_type, recorded in RECORDED.items()
        for key in ("hidden_act", "rms_norm_eps", "rope_theta", "layer_norm_epsilon", "activation_function")
        if key in recorded
    ],
)
def test_null_where_a_value_must_be_is_the_default(model_type: str, null: str) -> None:
    base = BASE.get(model_type, {})
    assert described(model_type, base | {null: None}) == described(model_type, base)


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "minimind"])
def test_null_of_a_size(model_type: str) -> None:
    """num_key_value_heads null is as many as query heads; head_dim null follows from the other sizes."""
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": None, "head_dim": None}
    arch = described(model_type, sizes)
    assert (arch.kv_heads, arch.head_dim) == (16, 64)


def test_sizes_of_minimind() -> None:
    arch = described("minimind", {})
    assert (arch.norm_epsilon, arch.intermediate_size, arch.kv_heads, arch.tied) == (1e-5, 1408, 2, True)
    assert arch.rotary is not None
    assert arch.rotary.inverse_frequencies[1] == pytest.approx(1e6 ** (-2 / 64))


def test_null_flags_are_false() -> None:
    """As transformers takes them."""
    arch = described("gpt2", {"tie_word_embeddings": None, "scale_attn_weights": None})
    assert not arch.tied
    assert arch.attention_scales[0] == 1.0
