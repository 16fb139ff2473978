"""config.json of published models, as their owners or a later transformers wrote them: all are read.

tests/published holds one file each; `published_configs.py` says what is in it.
"""

import math
from typing import Any

import pytest

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.config_json.forms import TEXT_TYPES, text_part
from mindbatch.config_json.reader import computed_anyway, keys_without_effect
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.registry import MODEL_TYPES, describe, other_keys, tensor_specs
from published_configs import published


def test_every_type_is_among_them() -> None:
    """But for TeleChat's types, whose published files are not to be had here."""
    configs = [model.config for model in published().values()]
    assert {describe(config).model_type for config in configs} == {*MODEL_TYPES} - {"telechat", "telechat3"}
    assert {config["model_type"] for config in configs} >= TEXT_TYPES.keys()


@pytest.mark.parametrize("name", published())
def test_a_published_config_is_read(name: str) -> None:
    config, parameters = published()[name].config, published()[name].parameters
    arch = describe(config)
    part = text_part(config)
    theirs = {
        "hidden_size": arch.hidden_size,
        "n_embd": arch.hidden_size,
        "num_hidden_layers": arch.num_layers,
        "n_layer": arch.num_layers,
        "num_attention_heads": arch.heads,
        "n_head": arch.heads,
        "num_key_value_heads": arch.heads if arch.latent else arch.kv_heads,
        "head_dim": arch.head_dim,
        "vocab_size": arch.vocab_size,
        "max_position_embeddings": arch.max_positions,
        "rms_norm_eps": arch.norm_epsilon,
        "tie_word_embeddings": arch.tied,
    }
    if arch.latent:
        del theirs["head_dim"]  # of the class, whatever the file says
    if shorter := {"glm_moe_dsa": "index_topk", "phi3": "original_max_position_embeddings"}.get(
        arch.model_type
    ):
        theirs["max_position_embeddings"] = config["max_position_embeddings"]
        assert arch.max_positions == config.get(shorter, arch.max_positions)
    assert {key: value for key, value in theirs.items() if key in config} == {
        key: config[key] for key in theirs.keys() & config
    }
    by_layer = arch.model_type in (
        *("cohere2", "exaone4", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "llama4_text", "olmo3"),
    )
    key = "attention_chunk_size" if arch.windows_are_chunks else "sliding_window"
    is_used = by_layer or arch.model_type in ("mistral", "phi3", "starcoder2")
    window = part.get(key) if is_used else 0
    assert set(arch.windows) == {window or 0, *([0] if by_layer else [])}
    if parameters is not None:
        shapes = source_shapes(tensor_specs(arch)).values()
        assert sum(map(math.prod, shapes)) == parameters


def test_without_the_keys_that_do_not_count_all_is_equal() -> None:
    """Those that say nothing, and those that say what is computed anyway."""
    for name, model in published().items():
        arch, config = describe(model.config), model.config
        own = arch.model_type
        known = keys_without_effect("*") | keys_without_effect(own) | computed_anyway(own).keys()
        for key in sorted(known & text_part(config).keys() - {"model_type"}):
            bare = {other: config[other] for other in config if other != key}
            if isinstance(text := bare.get("text_config"), dict):
                bare["text_config"] = {other: text[other] for other in text if other != key}
            assert describe(bare) == arch, (name, key)


def test_a_key_under_its_other_name_is_the_key() -> None:
    """Both that a configuration class takes, which must not say two things."""
    num_renamed = 0
    for name, model in published().items():
        for key, other in other_keys(describe(model.config).model_type).items():
            part = text_part(model.config)
            if model.config.get(key) is None or other in part:
                continue
            num_renamed += 1
            bare = {old: value for old, value in model.config.items() if old != key}
            assert describe(bare | {other: model.config[key]}) == describe(model.config), (name, key)
            assert describe(model.config | {other: model.config[key]}) == describe(model.config), (name, key)
            with pytest.raises(CheckpointError, match="remove one of them"):
                describe(model.config | {other: model.config[key] + 1})
    assert num_renamed > 80


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Qwen-Qwen3-Coder-480B-A35B-Instruct", {"use_qk_norm": "some"}),
        ("zai-org-GLM-5.2", {"moe_router_dtype": "bfloat16"}),
        ("zai-org-GLM-5.2", {"head_dim": 128}),
        ("zai-org-GLM-5.2", {"num_experts": 128}),
        ("zai-org-GLM-5.2", {"layer_types": ["sliding_attention"] * 78}),
        ("tencent-Hunyuan-0.5B-Instruct", {"attention_head_dim": 64}),
        ("Phi-4-mini-instruct", {"full_attn_mod": 2}),
        ("Phi-4-mini-instruct", {"interpolate_factor": 2}),
        ("gpt2-xl", {"hidden_size": 64}),
        ("starcoder2", {"norm_type": "rms_norm"}),
    ],
)
def test_other_values_stay_refused_and_no_way_round_is_offered(name: str, change: dict[str, Any]) -> None:
    """They would ask for another network, which no setting makes out of this one."""
    with pytest.raises(CheckpointError) as refused:
        describe(published()[name].config | change)
    [line] = refused.value.lines
    assert next(iter(change)) in line
    assert "ignore_config_keys" not in line
