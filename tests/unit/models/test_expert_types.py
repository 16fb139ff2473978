"""Mixtures of experts: which layers have experts, what is refused, and how ranks share the matrices."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.ascend_simulation.no_weights import NoWeights
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.shapes import Routing
from mindbatch.model_spec.described_folder import check_tensors
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.parallel.topology import RankPart, TensorSlice
from small_configs import EXPERTS, LLAMA


def described(model_type: str, **settings: Any) -> Architecture:
    base = LLAMA | {"model_type": model_type, "num_key_value_heads": 2}
    return describe(base | EXPERTS[model_type] | settings)


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({}, (0, 1, 2, 3, 4)),
        ({"decoder_sparse_step": 2}, (1, 3)),
        ({"mlp_only_layers": [0, 3]}, (1, 2, 4)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [3]}, (1,)),
    ],
)
def test_which_layers_have_experts(settings: dict[str, Any], layers: tuple[int, ...]) -> None:
    arch = described("qwen3_moe", num_hidden_layers=5, **settings)
    assert arch.experts is not None
    assert arch.experts.layers == layers
    shapes = source_shapes(tensor_specs(arch))
    for layer in range(5):
        assert (f"model.layers.{layer}.mlp.up_proj.weight" in shapes) == (layer not in layers)
        assert (f"model.layers.{layer}.mlp.experts.3.up_proj.weight" in shapes) == (layer in layers)


def test_how_experts_are_chosen() -> None:
    qwen, mixtral = described("qwen3_moe").experts, described("mixtral").experts
    assert qwen is not None
    assert mixtral is not None
    assert qwen.routing == Routing(4, 2, is_normalised=False)
    assert described("qwen3_moe", norm_topk_prob=True).experts != qwen
    assert mixtral.routing == Routing(4, 2)
    assert (qwen.intermediate_size, mixtral.intermediate_size) == (20, 48)


def test_what_configurations_of_gpt_oss_mean() -> None:
    """Windows, positions and limits; which release's keys are whose."""
    arch = described("gpt_oss", num_hidden_layers=3, swiglu_limit=2.5)
    assert arch.experts is not None
    assert (arch.windows, arch.has_sinks, arch.experts.limit) == ((8, 0, 8), True, 2.5)
    assert (arch.qkv_bias, arch.output_bias) == (True, True)
    assert arch.rotary is not None
    assert arch.rotary.scale > 1  # YaRN, where nothing is said
    theta = {"rope_theta": 1e4}
    yarn = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    yarn |= {"original_max_position_embeddings": 4096}
    plain = described("gpt_oss", rope_parameters={"rope_type": "default", **theta})
    assert plain == described("gpt_oss", rope_scaling=None, **theta)
    assert plain.rotary is not None
    assert plain.rotary.scale == 1
    assert described("gpt_oss", rope_parameters=yarn | theta) == described("gpt_oss", **theta)
    assert described("gpt_oss", experts_per_token=9, initial_context_length=3) == described("gpt_oss")


@pytest.mark.parametrize(
    ("model_type", "settings", "said"),
    [
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok=5: must be at most num_local_experts=4"),
        ("qwen3_moe", {"num_experts": 1 << 16}, "num_experts=65536: must be at most 65536 over all layers"),
        ("qwen3_moe", {"mlp_only_layers": "none"}, "mlp_only_layers='none': must be a list of layers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0: must be a whole number above 0"),
        ("qwen3_moe", {"n_shared_experts": 1}, "n_shared_experts=1: unknown key"),
        ("qwen2_moe", {"shared_expert_intermediate_size": 0}, "must be a whole number above 0"),
        ("gpt_oss", {"swiglu_alpha": 1.5}, "swiglu_alpha=1.5: not supported; allowed: 1.702"),
        ("gpt_oss", {"swiglu_limit": 0}, "swiglu_limit=0: must be a number above 0"),
        ("gpt_oss", {"norm_topk_prob": True}, "norm_topk_prob=true: unknown key"),
        ("gpt_oss", {"sliding_window": None}, "sliding_window=null: must be a whole number above 0"),
        ("glm4_moe", {"n_group": 3}, "n_group=3: must divide the 4 experts"),
        ("glm4_moe", {"n_group": 4, "topk_group": 2}, "must leave at least 2 experts in a group"),
        ("glm4_moe", {"n_group": 2, "topk_group": 3}, "topk_group=3: must be at most n_group=2"),
        ("glm4_moe", {"n_group": 2, "num_experts_per_tok": 3}, "must have num_experts_per_tok=3 experts"),
        ("glm4_moe", {"first_k_dense_replace": -1}, "must be a whole number from 0"),
        ("glm4_moe", {"scoring_func": "softmax"}, "scoring_func='softmax': not supported"),
        ("glm4_moe", {"topk_method": "greedy"}, "topk_method='greedy': not supported"),
        ("deepseek_v3", {"head_dim": 26}, "head_dim=26: not supported; allowed: 4"),
        ("deepseek_v3", {"num_key_value_heads": 2}, "must be num_attention_heads=4"),
        ("deepseek_v3", {"qk_rope_head_dim": 5, "head_dim": 5}, "qk_rope_head_dim=5: must be even"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank=null: must be a whole number above 0"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func='softmax': not supported"),
        ("deepseek_v2", {"mlp_bias": True}, "mlp_bias=true: not supported"),
        ("deepseek_v2", {"n_shared_experts": None}, "n_shared_experts=null: must be a whole number above 0"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method='noaux_tc': must be one of greedy"),
        ("deepseek_v2", {"rope_interleave": False, "x": 1}, "x=1: unknown key"),
        ("ernie4_5_moe", {"use_bias": True}, "use_bias=true: not supported"),
        ("ernie4_5_moe", {"moe_k": 65}, "moe_k=65: must be at most moe_num_experts=4"),
        ("ernie4_5_moe", {"moe_norm_min": 0.5}, "moe_norm_min=0.5: not supported"),
        ("ernie4_5_moe", {"moe_layer_start_index": -1}, "must be a whole number from 0 to"),
        ("ernie4_5_moe", {"moe_num_shared_experts": 65}, "must be a whole number from 0 to 64"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense"]}, "must name 2 layers, each one of dense, sparse"),
        ("glm4_moe_lite", {"mlp_layer_types": ["dense", 1]}, "must name 2 layers"),
        ("glm4_moe_lite", {"first_k_dense_replace": 2}, "first_k_dense_replace=2: not supported"),
        ("minimax_m2", {"rotary_dim": 9}, "rotary_dim=9: must be even and at most the 16 numbers"),
        ("minimax_m2", {"rotary_dim": 8, "partial_rotary_factor": 0.25}, "allowed: 0.5"),
        ("minimax_m2", {"attn_type_list": [1, 0]}, "attn_type_list=.1, 0.: must be 1"),
        ("minimax_m2", {"attn_type_list": 1}, "attn_type_list=1: must be 1"),
        ("minimax_m2", {"use_qk_norm": False}, "use_qk_norm=false: not supported"),
        ("minimax_m2", {"scoring_func": "softmax"}, "scoring_func='softmax': not supported"),
        ("minimax_m2", {"sliding_window": 8}, "sliding_window=8: not supported"),
        ("minimax_m2", {"shared_intermediate_size": 8}, "shared_intermediate_size=8: not supported"),
    ],
)
def test_what_is_refused(model_type: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        described(model_type, **settings)


@pytest.mark.parametrize("count", [3, 5])
def test_other_numbers_of_experts_than_there_are_tensors_are_refused(count: int) -> None:
    arch, folder = described("qwen3_moe", num_experts=count), NoWeights.of(described("qwen3_moe"))
    with pytest.raises(CheckpointError, match=r"experts\.[34]\.up_proj.*"):
        check_tensors(arch, tensor_specs(arch), folder)


def test_experts_that_every_row_passes() -> None:
    qwen, glm = (tensor_specs(described(name, num_hidden_layers=2)) for name in ("qwen2_moe", "glm4_moe"))
    specs = {spec.name: spec for spec in qwen}
    half = TensorSlice(1, 2)
    assert specs["layers.0.experts.shared.0.up.weight"].local_outputs(half) == 24
    assert specs["layers.0.experts.shared.0.down.weight"].local_inputs(half) == 12
    assert source_shapes(qwen)["model.layers.1.mlp.shared_expert_gate.weight"] == (1, 32)
    assert not specs["layers.0.experts.shared.0.up.weight"].is_linear
    names = {spec.name: spec.is_linear for spec in glm}
    assert names["layers.1.experts.shared.0.up.weight"]
    assert "layers.0.mlp.up.weight" in names
    assert "layers.0.experts.up.weight" not in names
    assert source_shapes(glm)["model.layers.1.mlp.gate.e_score_correction_bias"] == (4,)


def test_sigmoids_among_groups() -> None:
    found = described("glm4_moe", n_group=2, routed_scaling_factor=2.5).experts
    assert found is not None
    assert found.routing == Routing(4, 2, True, True, 2.5, groups=2, chosen_groups=1, group_best=2)
    assert found.has_correction


def test_ranks_share_the_inside_of_each_expert() -> None:
    specs = {spec.name: spec for spec in tensor_specs(described("qwen3_moe"))}
    up, down = (specs[f"layers.1.experts.{name}.weight"] for name in ("up", "down"))
    half = TensorSlice(1, 2)
    assert (up.local_outputs(half), up.local_inputs(half)) == (4 * 2 * 10, 32)
    assert (down.local_outputs(half), down.local_inputs(half)) == (4 * 32, 10)
    assert up.matrices == down.matrices == 4
    assert not up.is_linear
    assert specs["layers.1.attention.qkv.weight"].is_linear


def test_groups_of_the_second_deepseek_count_where_they_are_asked_for() -> None:
    greedy = described("deepseek_v2", n_group=2, topk_group=1, norm_topk_prob=True).experts
    grouped = described("deepseek_v2", n_group=2, topk_method="group_limited_greedy").experts
    assert greedy is not None
    assert grouped is not None
    assert greedy.routing == Routing(4, 2, is_normalised=False)
    assert grouped.routing == Routing(4, 2, is_normalised=False, groups=2, chosen_groups=1)


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_scores_for_long_contexts(model_type: str) -> None:
    scaling = {"rope_type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}
    arch = described(model_type, rope_scaling=scaling)
    factor = (0.1 * 0.707 * math.log(40) + 1) ** 2
    assert arch.attention_scales[0] == pytest.approx(10**-0.5 * factor)
    assert arch.rotary is not None
    assert arch.rotary.scale == pytest.approx(1.0)


def test_scores_for_long_contexts_under_the_later_name_of_the_key() -> None:
    """transformers 5 writes rope_theta and the scaling into one dictionary."""
    scaling = {"rope_type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}
    old = described("deepseek_v3", rope_scaling=scaling, rope_theta=5e5)
    new = described("deepseek_v3", rope_parameters=scaling | {"rope_theta": 5e5})
    assert new.attention_scales == old.attention_scales
    assert new.rotary == old.rotary


@pytest.mark.parametrize("weight", ["a", [1], True, 1e200, -1e308])
def test_a_weight_of_scores_that_is_none_is_refused(weight: Any) -> None:
    scaling = {"rope_type": "yarn", "factor": 40.0, "mscale_all_dim": weight}
    with pytest.raises(CheckpointError, match="rope_scaling=.*mscale_all_dim must be a number"):
        described("deepseek_v3", rope_scaling=scaling)


def test_what_is_kept_of_latent_attention() -> None:
    arch = described("deepseek_v3")
    assert (arch.heads, arch.kv_heads, arch.head_dim) == (4, 1, 14)
    specs = {spec.name: spec for spec in tensor_specs(arch)}
    half = TensorSlice(1, 2)
    both = specs["layers.0.attention.kv_b.weight"]
    assert (both.split, both.local_outputs(half), both.is_linear) == (6, 28, False)
    assert both.numbers(half) * 2 == both.numbers(TensorSlice()) == 4 * 14 * 10
    queries = specs["layers.0.attention.q_b.weight"]
    assert [part.source_ranges(*part.output_bounds(queries.sharding, half)) for part in queries.parts] == [
        [(20, 26), (30, 36)],
        [(26, 30), (36, 40)],
    ]
    assert specs["layers.0.attention.kv_a.weight"].local_outputs(half) == 14


@pytest.mark.parametrize(
    ("model_type", "model_parallel", "numbers"),
    [
        ("mixtral", 1, 4 + 2 * (32 + 3 * 48)),
        ("mixtral", 2, 4 + 2 * (32 + 3 * 24)),
        ("qwen2_moe", 1, 4 + 2 * (32 + 3 * 20)),
    ],
)
def test_what_a_layer_keeps_of_each_row_is_counted(
    model_type: str, model_parallel: int, numbers: int
) -> None:
    spec = ModelSpec.of(described(model_type), RankPart(TensorSlice(0, model_parallel)))
    assert spec.expert_bytes(512, "CPU") == 512 * 4 * numbers
    assert spec.expert_bytes(512, "Ascend") == 0


def test_the_network_beside_the_experts_counts_where_it_is_larger() -> None:
    arch = described("qwen2_moe", shared_expert_intermediate_size=200)
    assert ModelSpec.of(arch).expert_numbers == 1 + 32 + 3 * 200


def sparse_layers(model_type: str, **settings: Any) -> tuple[int, ...]:
    arch = described(model_type, num_hidden_layers=4, **settings)
    assert arch.experts is not None
    return arch.experts.layers


def test_which_layers_of_ernie_have_experts() -> None:
    """Every so many-th from one to another; -1 is the last."""
    assert sparse_layers("ernie4_5_moe") == (1, 2, 3)
    assert sparse_layers("ernie4_5_moe", moe_layer_end_index=2) == (1, 2)
    assert sparse_layers("ernie4_5_moe", moe_layer_interval=2, moe_layer_start_index=0) == (1, 3)


def test_which_layers_of_glm_lite_have_experts() -> None:
    assert sparse_layers("glm4_moe_lite") == (1, 2, 3)
    kinds = ["sparse", "dense", "dense", "sparse"]
    assert sparse_layers("glm4_moe_lite", mlp_layer_types=kinds, first_k_dense_replace=3) == (0, 3)


def test_the_part_of_a_head_that_minimax_rotates() -> None:
    """By the key of its first files, or what transformers 5 writes."""
    older = described("minimax_m2", rotary_dim=8, rope_theta=1e4)
    newer = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    assert described("minimax_m2", rope_parameters=newer) == older
    assert described("minimax_m2", rope_parameters=newer, rotary_dim=8) == older
    whole = described("minimax_m2")
    assert [len(each.rotary.inverse_frequencies) for each in (older, whole) if each.rotary] == [4, 8]
