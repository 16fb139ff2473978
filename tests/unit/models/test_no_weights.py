"""A model without weights: shapes of one rank, and the layers that stand for all."""

from dataclasses import replace

from mindbatch.models.described_folder import check_tensors
from mindbatch.models.no_weights import NoWeights, sources_of_layers, with_layers
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.models.tensor_spec import shard_specs
from mindbatch.parallel.topology import WHOLE, TensorSlice
from mindbatch.tasks.plan.compilation import sampled_layers

CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "use_sliding_window": True,
    "sliding_window": 8,
    "max_window_layers": 4,
}
ARCH = describe(CONFIG)


def test_there_is_just_what_a_rank_wants() -> None:
    for shard in (WHOLE, TensorSlice(3, 4)):
        held = NoWeights.of(ARCH, shard)
        check_tensors(ARCH, shard_specs(tensor_specs(ARCH), shard), held)
    assert held.info("model.embed_tokens.weight").shape == (25, 32)
    assert held.floats("model.embed_tokens.weight", rows=slice(20, 30)).shape == (5, 32)
    assert not held.floats("model.norm.weight").any()


def test_a_sample_has_every_kind_of_layer() -> None:
    assert ARCH.windows == (0, 0, 0, 0, 8, 8)
    assert sampled_layers(ARCH, range(6)) == (0, 1, 4, 5)
    assert sampled_layers(ARCH, range(1, 4)) == (1, 2, 3)
    assert sampled_layers(ARCH, range(2, 6)) == (2, 3, 4, 5)
    assert with_layers(ARCH, (0, 4)).windows == (0, 8)
    assert with_layers(ARCH, (0, 4)).num_layers == 2
    assert sampled_layers(with_layers(ARCH, (0,)), range(1)) == (0,)


def test_rotary_positions_are_of_the_sampled_layers() -> None:
    """A layer that has none is of another kind."""
    rotaries = (*[ARCH.rotary] * 2, None, *[ARCH.rotary] * 3)
    arch = replace(ARCH, layer_rotaries=rotaries, windows=(0,) * 6)
    assert sampled_layers(arch, range(6)) == (0, 1, 2, 5)
    assert with_layers(arch, (0, 2)).layer_rotaries == (ARCH.rotary, None)


def test_tensors_of_some_layers_have_the_names_of_the_first() -> None:
    sample = tensor_specs(with_layers(ARCH, (1, 4)))
    names = sources_of_layers(tensor_specs(ARCH), sample, (1, 4))
    assert names["model.layers.4.mlp.up_proj.weight"] == "model.layers.1.mlp.up_proj.weight"
    assert names["model.layers.1.self_attn.q_proj.bias"] == "model.layers.0.self_attn.q_proj.bias"
    assert names["lm_head.weight"] == "lm_head.weight"
    assert not any(".layers.0." in name for name in names)
