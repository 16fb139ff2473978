"""phi3, granite, starcoder2, SmolLM3, OLMo 3, MiniMind-3: what their configurations mean, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.config_json.rope import plain_frequencies
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.models.granite import GraniteDetails
from mindbatch.models.minimind import YARN
from small_configs import LLAMA

LONG = {"type": "longrope", "short_factor": [1.0, 2.0, 4.0, 4.0], "long_factor": [9.0] * 4}
EXPORTED = {"num_experts": 4, "moe_intermediate_size": 64, "head_dim": 8, "use_moe": False}


def config(model_type: str, **settings: Any) -> dict[str, Any]:
    return LLAMA | {"model_type": model_type} | settings


def test_longrope_is_computed_within_the_original_context() -> None:
    long = {"rope_scaling": LONG, "max_position_embeddings": 4096, "original_max_position_embeddings": 256}
    arch = describe(config("phi3", **long))
    assert arch.max_positions == 256
    assert arch.rotary is not None
    expected = plain_frequencies(10000.0, 8) / np.array(LONG["short_factor"], np.float32)
    np.testing.assert_allclose(arch.rotary.inverse_frequencies, expected)
    assert arch.rotary.scale == pytest.approx((1 + 4 / 8) ** 0.5)
    assert describe(config("phi3")).max_positions == 4096


def test_fused_matrices_are_one_tensor_each() -> None:
    shapes = source_shapes(tensor_specs(describe(config("phi3", num_key_value_heads=2))))
    assert shapes["model.layers.1.self_attn.qkv_proj.weight"] == ((4 + 2 + 2) * 8, 32)
    assert shapes["model.layers.1.mlp.gate_up_proj.weight"] == (2 * 48, 32)
    assert not [name for name in shapes if "q_proj" in name or "gate_proj" in name]


def test_factors_of_granite() -> None:
    arch = describe(config("granite", attention_multiplier=0.25, logits_scaling=4.0, residual_multiplier=0.5))
    assert (arch.attention_scales, arch.logits_factor) == ((0.25, 0.25), 0.25)
    assert (arch.details, arch.embedding_factor) == (GraniteDetails(residual_factor=0.5), 1.0)


def test_minimind_3_is_told_by_what_its_class_writes() -> None:
    assert not describe(config("minimind")).qk_norm
    arch = describe({"model_type": "minimind", "num_experts": 4})
    assert arch.qk_norm
    sizes = (arch.hidden_size, arch.kv_heads, arch.head_dim, arch.intermediate_size, arch.norm_epsilon)
    assert sizes == (768, 4, 96, 2432, 1e-6)


def test_yarn_of_minimind_3() -> None:
    scaled = EXPORTED | {"inference_rope_scaling": True, "rope_scaling": YARN}
    arch = describe(config("minimind", **scaled, max_position_embeddings=4096))
    plain = plain_frequencies(1e6, 8)
    assert arch.rotary is not None
    assert arch.rotary.scale == 1.0
    np.testing.assert_allclose(arch.rotary.inverse_frequencies[0], plain[0])
    np.testing.assert_allclose(arch.rotary.inverse_frequencies[-1], plain[-1] / 16, rtol=1e-6)
    short = describe(config("minimind", **scaled, max_position_embeddings=2048))
    assert short.rotary is not None
    np.testing.assert_allclose(short.rotary.inverse_frequencies, plain)


def layers_of_smollm3(**settings: Any) -> list[tuple[bool, int]]:
    """Of each layer, whether it is rotated, and its window."""
    arch = describe(config("smollm3", num_key_value_heads=2, num_hidden_layers=4, **settings))
    assert set(arch.layer_rotaries) <= {arch.rotary, None}
    return [(arch.rotary_of(layer) is not None, window) for layer, window in enumerate(arch.windows)]


def test_layers_of_smollm3_without_positions() -> None:
    assert layers_of_smollm3() == [(True, 0)] * 3 + [(False, 0)]
    assert layers_of_smollm3(no_rope_layer_interval=2) == [(True, 0), (False, 0)] * 2
    given = {"no_rope_layers": [0, 1, 1, 0, 1], "no_rope_layer_interval": 2}  # of a deeper model
    assert [is_rotated for is_rotated, _ in layers_of_smollm3(**given)] == [False, True, True, False]


def test_windows_of_smollm3() -> None:
    """Of the layers without positions, unless layer_types says which; an unused window is without effect."""
    window = {"use_sliding_window": True, "sliding_window": 6}
    assert layers_of_smollm3(**window) == [(True, 0)] * 3 + [(False, 6)]
    kinds = ["sliding_attention", "full_attention"] * 2
    assert layers_of_smollm3(**window, layer_types=kinds) == [(True, 6), (True, 0), (True, 6), (False, 0)]
    for unused in ({"use_sliding_window": False}, {"sliding_window": None}):
        assert layers_of_smollm3(**window | unused) == layers_of_smollm3()


def test_only_layers_of_olmo3_without_a_window_are_scaled() -> None:
    scaling = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    arch = describe(config("olmo3", num_hidden_layers=5, sliding_window=6, **scaling))
    assert arch.windows == (6, 6, 6, 0, 6)
    plain, scaled = (describe(config("olmo2", **each)).rotary for each in ({}, scaling))
    assert arch.layer_rotaries == (plain, plain, plain, scaled, plain)


def test_olmo3_as_transformers_5_writes_it() -> None:
    """With settings of each kind of layer, or one for all: a scaling never holds for layers with a window."""
    scaling = {"rope_type": "linear", "factor": 4.0}
    older = describe(config("olmo3", rope_theta=5e5, rope_scaling=scaling))
    one, local = scaling | {"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}
    by_kind = {"full_attention": one, "sliding_attention": local}
    for newer in (one, by_kind):
        assert describe(config("olmo3", rope_parameters=newer)) == older
    by_kind["sliding_attention"] = local | {"rope_theta": 1e4}
    with pytest.raises(CheckpointError, match="sliding_attention.rope_theta=10000.0: not supported"):
        describe(config("olmo3", rope_parameters=by_kind))


def layers_of_exaone4(**settings: Any) -> list[tuple[bool, int]]:
    """Of each layer, whether it is rotated, and its window."""
    arch = describe(config("exaone4", num_key_value_heads=2, num_hidden_layers=4, **settings))
    return [(arch.rotary_of(layer) is not None, window) for layer, window in enumerate(arch.windows)]


def test_layers_of_exaone4() -> None:
    """Those with a window are rotated, and all where there is none."""
    assert layers_of_exaone4(sliding_window=6) == [(True, 6)] * 3 + [(False, 0)]
    kinds = ["full_attention", "sliding_attention"] * 2
    for pattern in (4, "GL"):
        given = {"sliding_window": 6, "layer_types": kinds, "sliding_window_pattern": pattern}
        assert layers_of_exaone4(**given) == [(False, 0), (True, 6)] * 2
    for whole in ({}, {"layer_types": ["full_attention"] * 4}):
        assert layers_of_exaone4(sliding_window=None, **whole) == [(True, 0)] * 4


def test_alpha_raises_the_base_of_hunyuan() -> None:
    """By the power that keeps the slowest pair, at any length; other scalings are as elsewhere."""
    dynamic = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    scaled = describe(config("hunyuan_v1_dense", head_dim=16, rope_scaling=dynamic))
    raised = describe(config("hunyuan_v1_dense", head_dim=16, rope_theta=1e4 * 1000 ** (16 / 14)))
    assert scaled == raised
    newer = {"rope_type": "dynamic", "rope_theta": 1e4, "alpha": 1000.0}
    assert describe(config("hunyuan_v1_dense", head_dim=16, rope_parameters=newer)) == scaled
    linear = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    assert describe(config("hunyuan_v1_dense", **linear)).rotary == describe(config("llama", **linear)).rotary


def test_biases_of_seed_oss_and_ernie() -> None:
    """Each of three flags of Seed-OSS is one; ERNIE's is for all matrices."""
    seed = describe(config("seed_oss", head_dim=8, num_key_value_heads=2))
    assert (seed.qkv_bias, seed.output_bias, seed.mlp_bias) == (True, False, False)
    ernie = describe(config("ernie4_5", head_dim=8, use_bias=True))
    assert (ernie.qkv_bias, ernie.output_bias, ernie.mlp_bias) == (True, True, True)


def test_positions_of_apertus_are_scaled_unless_null() -> None:
    plain = describe(config("llama", rope_theta=1.2e7)).rotary
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled = describe(
        config("llama", rope_theta=1.2e7, rope_scaling=scaling | {"original_max_position_embeddings": 8192})
    ).rotary
    assert describe(config("apertus")).rotary == scaled != plain
    assert describe(config("apertus", rope_scaling=None)).rotary == plain


FOUR_LAYERS = {"num_key_value_heads": 2, "num_hidden_layers": 4}
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "phi3": [
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.4}, "must leave an even number of a head's 8 numbers"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "must be null or"),
        ({"rope_scaling": LONG | {"factor": 2.0}}, "must be null or"),
        ({"rope_scaling": [1]}, "must be null or"),
        ({"rope_scaling": LONG | {"short_factor": [1.0]}}, "must be 4 numbers above 0 each"),
        ({"rope_scaling": LONG | {"long_factor": [1.0, 1.0, 1.0, -1.0]}}, "must be 4 numbers above 0 each"),
        ({"rope_scaling": LONG | {"short_factor": [1.0, 1.0, 1.0, 1e300]}}, "must be 4 numbers above 0"),
    ],
    "minimind": [
        ({"inference_rope_scaling": True}, "inference_rope_scaling=true: not supported"),
        (EXPORTED | {"rope_scaling": YARN}, "rope_scaling=.*not supported"),
        (EXPORTED | {"inference_rope_scaling": True, "rope_scaling": YARN | {"factor": 4}}, "rope_scaling"),
        (EXPORTED | {"use_moe": True, "n_shared_experts": 1}, "n_shared_experts=1: unknown key"),
        (EXPORTED | {"use_moe": True, "num_experts_per_tok": 5}, "must be at most num_experts=4"),
        ({"use_moe": True, "scoring_func": "sigmoid"}, "scoring_func='sigmoid': not supported"),
        ({"use_moe": True, "n_shared_experts": 65}, "n_shared_experts=65: must be a whole number from 0 to"),
    ],
    "smollm3": [
        ({"no_rope_layers": [1, 1, 0]}, "must have 1 .rotated. or 0 for each of 4 layers"),
        ({"no_rope_layers": [1, 1, 0, 2]}, "must have 1 .rotated. or 0 for each of 4 layers"),
        ({"no_rope_layers": {}}, "must have 1 .rotated. or 0 for each of 4 layers"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval=0: must be a whole number above 0"),
        ({"layer_types": ["sliding_attention"] * 4}, "names layers with a sliding window, and there is none"),
        ({"layer_types": ["chunked_attention"] * 4}, "must name 4 layers"),
        ({"use_sliding_window": True, "sliding_window": 0}, "sliding_window=0: must be a whole number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5: not supported"),
    ],
    "exaone4": [
        ({"sliding_window_pattern": "LLLG"}, "sliding_window_pattern='LLLG': must be a whole number above 0"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern=0: must be a whole number above 0"),
        ({"sliding_window": None, "layer_types": ["sliding_attention"] * 4}, "and there is none"),
        ({"layer_types": ["sliding_attention"]}, "must name 4 layers"),
    ],
    "hunyuan_v1_dense": [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "of type dynamic needs an alpha above 0"),
        ({"rope_scaling": {"type": "dynamic", "alpha": "2"}}, "of type dynamic needs an alpha above 0"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 2.0, "new": 1}}, "and no other key"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 2.0}, "head_dim": 2}, "heads of 4 numbers"),
        ({"use_cla": True}, "use_cla=true: not supported"),
        ({"use_qk_norm": False}, "use_qk_norm=false: not supported"),
        ({"position_embedding_xdrope": True}, "position_embedding_xdrope=true: not supported"),
    ],
    "apertus": [
        ({"hidden_act": "silu"}, "hidden_act='silu': not supported; allowed: 'xielu'"),
        ({"qk_norm": False}, "qk_norm=false: not supported"),
        ({"post_norm": True}, "post_norm=true: not supported"),
        ({"mlp_bias": True}, "mlp_bias=true: not supported"),
    ],
    "starcoder2": [
        ({"mlp_type": "other"}, "mlp_type='other': not supported"),
        ({"norm_type": "other"}, "norm_type='other': not supported"),
    ],
    "seed_oss": [({"head_dim": 8, "use_bias": True}, "use_bias=true: unknown key")],
}


@pytest.mark.parametrize(
    ("model_type", "settings", "said"),
    [(model_type, *case) for model_type, refused in REFUSED.items() for case in refused],
)
def test_what_these_types_cannot_be(model_type: str, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        describe(config(model_type, **FOUR_LAYERS, **settings))
