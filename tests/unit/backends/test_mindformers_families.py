"""What of a config.json MindFormers' models compute, what is refused, and layers that stand for all."""

import math
import re
from collections.abc import Mapping
from typing import Any

import pytest

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.backends.mindformers.families import (
    MindFormersSpec,
    describe,
    layer_sample,
)
from mindbatch.backends.mindformers.provider import adapter_specs
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.registry import tensor_specs, unused_tensors
from mindformers_configs import CONFIGS, YARN, config
from published_configs import published


def fault(family: str, **changes: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        describe(config(family, **changes))
    (line,) = caught.value.lines
    return line.removeprefix("config.json: ")


def shapes_of(model: MindFormersSpec) -> Mapping[str, tuple[int, ...]]:
    return source_shapes(tensor_specs(model.architecture))


def test_its_class_is_given_what_distinguishes_them() -> None:
    assert describe(config("qwen2")).arguments["attention_bias"]
    assert describe(config("glm4_moe", use_qk_norm=True)).arguments["use_qk_norm"]
    model = describe(config("deepseek_v3"))
    assert model.arguments["kv_lora_rank"] == 32
    assert [model.arguments[key] for key in ("n_routed_experts", "n_shared_experts")] == [8, 1]
    assert "model.layers.2.*" in unused_tensors(model.architecture)


def test_telechat2_has_names_of_its_own_and_keys_beside_values() -> None:
    model = describe(config("telechat"))
    assert model.max_positions == 128
    shapes = shapes_of(model)
    assert shapes["transformer.h.1.self_attention.key_value.weight"] == (2 * 2 * 16, 64)
    assert shapes["transformer.h.1.self_attention.dense.bias"] == (64,)
    assert shapes["transformer.h.1.mlp.down_proj.bias"] == (64,)
    assert shapes["transformer.word_embeddings.weight"] == (96, 64)
    assert not [name for name in shapes if "_proj.bias" in name and "down" not in name]
    assert not [name for name in shapes if name.startswith("model.")]


def test_adapters_act_on_all_matrices_but_those_of_experts_and_compressed_vectors() -> None:
    left = {}
    for family in CONFIGS:
        model = describe(config(family))
        acting, shapes = source_shapes(adapter_specs(model)), shapes_of(model)
        assert acting.items() <= shapes.items(), family
        matrices = {name for name, shape in shapes.items() if len(shape) == 2} - acting.keys()
        left[family] = sorted(
            {re.sub(r".*\.(?:mlp|self_attn|self_attention)\.|\d+\.", "", name) for name in matrices}
        )
    of_experts = ["experts.down_proj", "experts.gate_proj", "experts.up_proj", "gate"]
    shared = [f"shared_{name}" for name in of_experts[:3]]
    compressed = ["kv_a_proj_with_mqa", "kv_b_proj", "q_a_proj", "q_b_proj"]
    assert {
        family: [name.removesuffix(".weight") for name in names] for family, names in left.items() if names
    } == {
        "qwen3_moe": of_experts,
        "glm4_moe": [*of_experts, *shared],
        "deepseek_v3": [*of_experts, *compressed, *shared],
        "telechat": ["key_value", "query"],
    }


def test_yarn_is_completed_and_limits_the_positions() -> None:
    model = describe(config("qwen3", rope_scaling=YARN))
    assert model.max_positions == 64
    assert model.arguments["rope_scaling"] == YARN | {"beta_fast": 32.0, "beta_slow": 1.0}
    assert describe(config("qwen3")).max_positions == 128


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen3-30B-A3B", 30.5),
        ("GLM-4-9B-0414", 9.4),
        ("GLM-4.5-Air", 106.9),
        ("DeepSeek-V3-converted-to-bfloat16", 671.0),
    ],
)
def test_published_configurations_have_the_published_sizes(name: str, parameters: float) -> None:
    """In billions, without the layers that predict further tokens."""
    found = published()[f"{name}-every-key"].config
    model = describe(found)
    assert sum(map(math.prod, shapes_of(model).values())) / 1e9 == pytest.approx(parameters, abs=0.1)
    assert model.max_positions == found["max_position_embeddings"]


ONLY_DEFAULT = "MindFormers 1.9 does not compute it"


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, ONLY_DEFAULT),
        ("qwen3", {"attention_bias": True}, ONLY_DEFAULT),
        ("qwen3", {"hidden_act": "gelu"}, "must be one of silu, swish"),
        ("qwen3", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "allowed: default, yarn"),
        ("qwen3", {"rope_scaling": YARN | {"attention_factor": 0.5}}, f"attention_factor: {ONLY_DEFAULT}"),
        ("qwen3", {"colour": "blue"}, "unknown key that may change what the model computes"),
        ("qwen3", {"trust_remote_code": True}, "is never run"),
        ("qwen3", {"register_path": "x.py"}, "is never run"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, ONLY_DEFAULT),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "allowed: 1"),
        ("qwen3_moe", {"num_experts_per_tok": 1}, "must be from 2 to num_experts=8"),
        ("glm4", {"partial_rotary_factor": 0.25}, "allowed: 0.5"),
        ("glm4_moe", {"rope_scaling": YARN}, f"{ONLY_DEFAULT} for this family"),
        ("deepseek_v3", {"topk_group": 2, "n_group": 4, "num_experts_per_tok": 2}, "rates a group by"),
        ("deepseek_v3", {"q_lora_rank": None}, "queries that are not compressed"),
        ("deepseek_v3", {"rope_scaling": YARN}, "mscale and mscale_all_dim must be equal"),
        ("deepseek_v3", {"rope_interleave": False}, "allowed: true"),
        ("telechat3", {"mlp_bias": True}, "allowed: false"),
        ("telechat3", {"rope_scaling": YARN}, "allowed: null"),
        ("telechat", {"training_seqlen": 256}, "must be at most base_seqlen=128"),
        ("telechat", {"base_seqlen": None}, "the first TeleChat is not run"),
        ("telechat", {"embed_layernorm": True}, "allowed: false"),
        ("telechat", {"logn": True}, "allowed: false"),
        ("telechat", {"n_embed": 32}, "allowed: 64"),
        ("telechat", {"n_head": 3, "num_key_value_heads": None}, "into heads of an even size"),
        ("telechat", {"rms_norm_epsilon": 1e-6}, "unknown key that may change what the model computes"),
        ("qwen3", {"quantization_config": {"quant_method": "awq", "bits": 4}}, "quantised (AWQ, 4 bits)"),
    ],
)
def test_what_is_not_computed_is_refused(family: str, changes: dict[str, Any], reason: str) -> None:
    line = fault(family, **changes)
    assert line.startswith("use_sliding_window" if "max_window_layers" in changes else next(iter(changes)))
    assert reason in line


def test_other_families_are_refused_with_what_runs_them() -> None:
    allowed = "allowed: qwen2, qwen3, qwen3_moe, glm4, glm4_moe, deepseek_v3, telechat3, telechat"
    for model_type, way_out in (
        ("llama", "model.provider=native runs it"),
        (
            "telechat2",
            "neither does model.provider=native, which runs apertus, bloom, chatglm, chatglm_6b",
        ),
    ):
        with pytest.raises(CheckpointError) as caught:
            describe({"model_type": model_type})
        (line,) = caught.value.lines
        assert line.startswith(
            f"config.json: model type {model_type!r}: model.provider=mindformers does not run it; {allowed}; "
            f"{way_out}"
        )


def architecture_of(given: Mapping[str, Any]) -> Architecture:
    return describe(given).architecture


def test_lists_with_an_entry_for_each_layer_become_those_of_the_sample() -> None:
    given = config(
        "deepseek_v3", num_hidden_layers=4, first_k_dense_replace=2, layer_types=["a", "b", "c", "d"]
    )
    _, sample = layer_sample(
        architecture_of({**given, "layer_types": None}), {**given, "eos_token_id": [1, 2, 3, 4]}
    )
    assert sample["layer_types"] == ["a", "c"]
    assert sample["eos_token_id"] == [1, 2, 3, 4]
    published = config("qwen2", num_hidden_layers=9, layer_types=["full_attention"] * 9)
    assert architecture_of(layer_sample(architecture_of(published), published)[1]).num_layers == 1


def test_all_layers_are_no_sample() -> None:
    given = config("glm4_moe", num_hidden_layers=3)
    assert layer_sample(architecture_of(given), given, all_layers=True) == ({0: 1, 1: 1, 2: 1}, given)
