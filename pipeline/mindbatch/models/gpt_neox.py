"""gpt_neox (GPT-NeoX, Pythia): attention and MLP side by side, fused heads, a part of each head rotated."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.models import gpt2
from mindbatch.models.architecture import Architecture, Rotary
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import ACTIVATIONS
from mindbatch.models.model_type import ModelType
from mindbatch.models.rope import plain_frequencies, rotary_width
from mindbatch.models.tensor_spec import (
    Part,
    Sharding,
    TensorSpec,
    linear,
    norm,
    taking_turns,
    vocabulary,
)

if TYPE_CHECKING:
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Block, Network, ParallelBlock

# Of transformers' GPTNeoXConfig.
DEFAULTS = {
    "vocab_size": 50432,
    "hidden_size": 6144,
    "num_hidden_layers": 44,
    "num_attention_heads": 64,
    "intermediate_size": 24576,
    "hidden_act": "gelu",
    "rotary_pct": 0.25,
    "rotary_emb_base": 10000,
    "max_position_embeddings": 2048,
    "layer_norm_eps": 1e-5,
    "use_parallel_residual": True,
    "attention_bias": True,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `gpt_neox` configuration; faults are left in the reader."""
    hidden, layers = reader.positive("hidden_size"), reader.positive("num_hidden_layers")
    heads = reader.positive("num_attention_heads")
    head_dim = whole_heads(reader, "hidden_size", hidden, heads, "num_attention_heads")
    base = reader.number("rotary_emb_base")
    width = rotary_width(reader, head_dim, "rotary_pct")
    reader.needs("rope_scaling", [None])
    reader.needs("tie_word_embeddings", [False])
    bias = reader.flag("attention_bias")
    return Architecture(
        model_type="gpt_neox",
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("intermediate_size"),
        max_positions=reader.positive("max_position_embeddings"),
        norm_epsilon=reader.number("layer_norm_eps"),
        activation=reader.choice("hidden_act", ACTIVATIONS | {"gelu_fast": "gelu_tanh"}),
        tied=False,
        rotary=Rotary(tuple(map(float, plain_frequencies(base, width)))),
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
        is_parallel=reader.flag("use_parallel_residual"),
    )


def whole_heads(reader: ConfigReader, key: str, hidden: int, heads: int, heads_key: str) -> int:
    """Numbers of a head; a fault where the width, of `key`, is not divided evenly."""
    if hidden % heads:
        reader.fault(key, f"must be divisible by {heads_key}={heads}")
    return max(1, hidden // heads)


def network(layers: Layers) -> Network:
    """Blocks between the token embedding and a last layer norm."""
    return layers.network(layers.embedding, block, partial(layers.layer_norm, "norm"))


def block(layers: Layers, index: int) -> Block | ParallelBlock:
    """x + attention(norm(x)) + mlp(norm(x)), of one norm or two; GPT-2's where they follow one another."""
    if not layers.arch.is_parallel:
        return gpt2.block(layers, index)
    name = f"layers.{index}"
    return layers.parallel_block(
        layers.layer_norm(f"{name}.attention_norm"),
        layers.attention(f"{name}.attention", index),
        layers.mlp(f"{name}.mlp"),
        None if layers.arch.shares_norm else layers.plain_layer_norm(f"{name}.mlp_norm"),
    )


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Every parameter and the checkpoint tensors it is made of."""
    hidden, size = arch.hidden_size, arch.head_dim
    specs = [
        vocabulary("embedding.weight", "gpt_neox.embed_in.weight", arch.vocab_size, hidden),
        vocabulary("head.weight", "embed_out.weight", arch.vocab_size, hidden),
        *norm("norm", "gpt_neox.final_layer_norm", hidden, "bias"),
    ]
    for layer in range(arch.num_layers):
        source = f"gpt_neox.layers.{layer}"
        fused = f"{source}.attention.query_key_value.weight"
        qkv = taking_turns(fused, (size,) * 3, arch.heads, hidden, size)
        specs += block_tensors(arch, layer, source, qkv, "attention")
    return specs


def block_tensors(
    arch: Architecture,
    layer: int,
    source: str,
    qkv: tuple[Part, ...],
    attention: str,
    norms: Sequence[str] = ("input_layernorm", "post_attention_layernorm"),
) -> list[TensorSpec]:
    """A layer as Megatron names it. qkv: of the fused matrix. attention, norms: names below `source`."""
    hidden, inner, name = arch.hidden_size, arch.intermediate_size, f"layers.{layer}"
    output = (Part(f"{source}.{attention}.dense.weight", hidden, arch.heads * arch.head_dim),)
    up = (Part(f"{source}.mlp.dense_h_to_4h.weight", inner, hidden),)
    down = (Part(f"{source}.mlp.dense_4h_to_h.weight", hidden, inner),)
    specs = [
        *linear(f"{name}.attention.qkv", qkv, Sharding.OUTPUTS, arch.qkv_bias),
        *linear(f"{name}.attention.output", output, Sharding.INPUTS, arch.output_bias),
        *linear(f"{name}.mlp.up", up, Sharding.OUTPUTS, arch.mlp_bias),
        *linear(f"{name}.mlp.down", down, Sharding.INPUTS, arch.mlp_bias),
    ]
    for ours, theirs in zip(("attention_norm", "mlp_norm"), norms, strict=False):
        specs += norm(f"{name}.{ours}", f"{source}.{theirs}", hidden, "bias")
    return specs


MODEL = ModelType(
    describe,
    tensors,
    network,
    DEFAULTS,
    prefix="gpt_neox.",
    unused_tensors=("*.attention.bias", "*.attention.masked_bias", "*rotary_emb.inv_freq"),
    newer_names={"rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor"},
)
