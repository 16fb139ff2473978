"""LFM2, Qwen3-Next and Qwen3.5, Llama 4 and Gemma 4: what their configurations mean, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mindbatch.architecture.architecture import Architecture, HeadSizes
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.config_json.forms import UNUSED
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.kernels.shapes import ConvolutionShape, DeltaShape
from mindbatch.model_spec.described_folder import check_division
from mindbatch.model_spec.model_spec import ModelSpec
from mindbatch.model_spec.registry import MODEL_TYPES, declaration, describe, tensor_specs, unused_tensors
from mindbatch.models.llama4_text import Llama4Details
from small_configs import EXPERTS, LLAMA, RECURRENT

FULL, LINEAR, SLIDING = "full_attention", "linear_attention", "sliding_attention"


def described(model_type: str, **settings: Any) -> Architecture:
    return describe(LLAMA | {"model_type": model_type} | EXPERTS[model_type] | settings)


def recurrent_layers(model_type: str, **settings: Any) -> tuple[int, ...]:
    recurrence = described(model_type, **settings).recurrence
    return () if recurrence is None else recurrence.layers


def test_layers_without_attention() -> None:
    """By layer_types, else by what each type had before."""
    assert recurrent_layers("qwen3_next") == (0,)
    assert recurrent_layers("qwen3_next", num_hidden_layers=9, full_attention_interval=4) == (
        0,
        1,
        2,
        4,
        5,
        6,
        8,
    )
    assert recurrent_layers("qwen3_5_text", layer_types=[FULL, LINEAR]) == (1,)
    assert recurrent_layers("qwen3_5_text", layer_types=[FULL, FULL]) == ()
    assert recurrent_layers("lfm2") == (0,)
    assert recurrent_layers("lfm2", full_attn_idxs=None) == ()
    assert recurrent_layers("lfm2", full_attn_idxs=None, layer_types=["conv", FULL]) == (0,)


def test_a_rank_has_heads_that_go_together() -> None:
    recurrence = described("qwen3_next").recurrence
    assert recurrence is not None
    assert recurrence.shapes(1) == (
        ConvolutionShape(2 * 4 * 6 + 8 * 4, 4, is_activated=True),
        DeltaShape(4, 8, 6, 4),
    )
    assert recurrence.shapes(2) == (ConvolutionShape(40, 4, is_activated=True), DeltaShape(2, 4, 6, 4))
    with pytest.raises(ConfigError, match=r"model_parallel=8: .*linear_attn"):
        check_division(described("qwen3_next"), 8)


def test_bytes_of_a_sequence_s_state() -> None:
    """In float32, of the rank with most; keys and values are of the other layers alone."""
    spec = ModelSpec.of(described("qwen3_next", num_hidden_layers=4))
    panels = 1  # value_dim 4 within 16 columns
    assert spec.state_bytes == 2 * 4 * (3 * 80 + 8 * panels * 6 * 16)
    assert spec.cached_numbers == 2 * 2 * (8 + 16)
    assert ModelSpec.of(described("lfm2")).state_bytes == 4 * 2 * 32
    assert ModelSpec.of(describe(LLAMA)).state_bytes == 0


def test_lfm2_s_inner_size() -> None:
    """Two thirds, times a factor, rounded up to a multiple; or as it is."""
    sizes = {"intermediate_size": 6656, "block_multiple_of": 256}
    assert described("lfm2", **sizes).intermediate_size == 4608
    assert described("lfm2", **sizes, block_ffn_dim_multiplier=1.5).intermediate_size == 6656
    assert described("lfm2", **sizes, block_auto_adjust_ff_dim=False).intermediate_size == 6656
    assert described("lfm2", **sizes, block_ff_dim=3000).intermediate_size == 2048
    assert described("lfm2", **sizes, block_ffn_dim_multiplier=None).intermediate_size == 4437
    assert described("lfm2", tie_embedding=False).tied is False


def test_positions_of_images_are_one_for_a_text() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5}
    plain = described("qwen3_5_text", rope_parameters=rope)
    of_images = rope | {"mrope_section": [1, 1, 0], "mrope_interleaved": True}
    assert described("qwen3_5_text", rope_parameters=of_images) == plain


def test_the_text_part_of_multimodal_models() -> None:
    around = {"vision_config": {"depth": 1}, "image_token_id": 5, "tie_word_embeddings": True}
    inner = LLAMA | EXPERTS["qwen3_5_text"] | {"model_type": "qwen3_5_text"}
    arch = describe({"model_type": "qwen3_5", "text_config": inner, **around})
    assert (arch.model_type, arch.tied) == ("qwen3_5_text", True)
    assert "mtp.*" in unused_tensors(arch)
    assert "model.visual.*" in UNUSED


def test_chunks_and_positions_of_llama4() -> None:
    arch = described("llama4_text", num_hidden_layers=5, no_rope_layers=[])
    assert [rotary is not None for rotary in arch.layer_rotaries] == [True, True, True, False, True]
    assert arch.windows == (8, 8, 8, 0, 8)
    assert arch.windows_are_chunks
    assert arch.rotary is not None
    assert arch.rotary.is_interleaved
    assert arch.details_of(Llama4Details).tempering is not None
    assert described("llama4_text", attn_temperature_tuning=4).details == arch.details
    assert described("llama4_text", attn_temperature_tuning=False).details == Llama4Details(None)
    assert described("llama4_text", attention_chunk_size=None).windows == (0, 0)
    experts = described("llama4_text", num_hidden_layers=4, interleave_moe_layer_step=2).experts
    assert experts is not None
    assert experts.layers == (1, 3)
    assert described("llama4_text", moe_layers=[]).experts is None


def test_heads_and_shared_layers_of_gemma4() -> None:
    arch = described("gemma4_text")
    assert arch.layer_heads == (HeadSizes(4, 8), HeadSizes(4, 12)) * 2
    assert arch.cache_layers == (0, 1, 0, 1)
    shapes = source_shapes(tensor_specs(arch))
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == (48, 32)
    assert "model.layers.3.self_attn.k_proj.weight" not in shapes
    assert [name for name in unused_tensors(arch) if "layers" in name] == [
        f"model.layers.{layer}.self_attn.[kv]_*" for layer in (2, 3)
    ]
    given = {str(layer): {"head_dim": 12} for layer in (1, 3)}
    saved = described("gemma4_text", per_layer_config=given, global_head_dim=None)
    assert saved.layer_heads == arch.layer_heads
    whole, local = arch.layer_rotaries[1], arch.layer_rotaries[0]
    assert whole is not None
    assert local is not None
    assert [value > 0 for value in whole.inverse_frequencies] == [True] + [False] * 5
    assert len(local.inverse_frequencies) == 4
    with pytest.raises(ConfigError, match="pipeline_stage=2: layers of this gemma4_text take in what others"):
        check_division(arch, 1, 2)


def test_glm_5_has_the_positions_that_its_indexer_chooses_all_of() -> None:
    settings = {"index_topk": 256, "max_position_embeddings": 4096, "indexer_types": ["full", "shared"]}
    arch = described("glm_moe_dsa", **settings)
    assert arch.max_positions == 256
    assert "model.layers.*.self_attn.indexer.*" in unused_tensors(arch)
    with pytest.raises(CheckpointError, match="each one of deepseek_sparse_attention, indexed_attention"):
        described("glm_moe_dsa", layer_types=[FULL, FULL])


def test_what_ascend_does_not_compute_is_refused_by_name() -> None:
    beyond = {name for name in MODEL_TYPES if declaration(name).beyond_ascend}
    assert beyond == {*RECURRENT, "gemma4_text"}
    for name in beyond:
        faults = [*ModelSpec.of(described(name)).ascend_errors(16)]
        assert faults[0].startswith(f"runtime.device_target=Ascend: {name} has ")
        assert faults[0].endswith("which is not computed there; allowed: CPU")


@pytest.mark.parametrize(
    ("model_type", "settings", "said"),
    [
        ("lfm2", {"layer_types": ["conv"]}, "must name 2 layers, each one of conv, full_attention"),
        ("lfm2", {"full_attn_idxs": "all"}, "full_attn_idxs='all': must be a list of layers"),
        ("lfm2", {"full_attn_idxs": []}, "one with full_attention"),
        ("lfm2", {"conv_L_cache": 1}, "conv_L_cache=1: must be at least 2"),
        ("lfm2", {"sliding_window": 8}, "sliding_window=8: unknown key"),
        ("qwen3_next", {"layer_types": [LINEAR, LINEAR]}, "one with full_attention"),
        ("qwen3_next", {"linear_num_value_heads": 6}, "must be a multiple of linear_num_key_heads=4"),
        (
            "qwen3_next",
            {"linear_conv_kernel_dim": 0},
            "linear_conv_kernel_dim=0: must be a whole number above 0",
        ),
        ("qwen3_next", {"hidden_act": "gelu"}, "hidden_act='gelu': not supported"),
        ("qwen3_next", {"linear_attention_gate": "x"}, "unknown key of what a model computes"),
        ("qwen3_5_text", {"attn_output_gate": False}, "attn_output_gate=false: not supported"),
        ("qwen3_5_moe_text", {"norm_topk_prob": False}, "norm_topk_prob=false: not supported"),
        ("llama4_text", {"no_rope_layers": [1]}, "no_rope_layers=.1.: must have 1"),
        ("llama4_text", {"moe_layers": "all"}, "moe_layers='all': must be a list of layers"),
        ("llama4_text", {"attn_temperature_tuning": "yes"}, "must be true or false"),
        (
            "llama4_text",
            {"attention_chunk_size": None, "layer_types": ["chunked_attention", FULL]},
            "is null",
        ),
        ("llama4_text", {"layer_types": [SLIDING, FULL]}, "each one of chunked_attention, full_attention"),
        ("gemma4_text", {"enable_moe_block": True}, "num_experts=null: must be a whole number above 0"),
        ("gemma4_text", {"enable_moe_block": "yes"}, "enable_moe_block='yes': must be true or false"),
        (
            "gemma4_text",
            {"use_bidirectional_attention": "all"},
            "use_bidirectional_attention='all': not suppo",
        ),
        ("gemma4_text", {"layer_types": [FULL, SLIDING] * 2}, "must end with full_attention"),
        ("gemma4_text", {"num_kv_shared_layers": 3}, "leaves layers without one of their kind to share with"),
        ("gemma4_text", {"num_kv_shared_layers": 4}, "must be a whole number from 0 to 3"),
        ("gemma4_text", {"vocab_size_per_layer_input": 99}, "must be at least vocab_size=100"),
        ("gemma4_text", {"global_head_dim": 13}, "heads must have an even size"),
        (
            "gemma4_text",
            {"attention_k_eq_v": True, "num_global_key_value_heads": 3},
            "must divide num_attention",
        ),
        ("gemma4_text", {"per_layer_config": {"9": {"head_dim": 4}}}, "settings by the number of a layer"),
        (
            "gemma4_text",
            {"per_layer_config": {"1": {"head_dim": 4}, "3": {"head_dim": 6}}},
            "must have one head_d",
        ),
        ("gemma4_text", {"per_layer_config": []}, "must have"),
        ("gemma4_text", {"per_layer_config": {"1": 4}}, "must be settings with their keys"),
        (
            "gemma4_text",
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            "must have rope_type proportional",
        ),
    ],
)
def test_what_these_types_cannot_be(model_type: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        described(model_type, **settings)
