"""opt: GPT-2's shape with ReLU, and positions that are counted from 2."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.models import gpt2, gpt_neox
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import ACTIVATIONS
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec, linear, norm, vocabulary

if TYPE_CHECKING:
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Block, Network

# Of transformers' OPTConfig.
DEFAULTS = {
    "vocab_size": 50272,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "ffn_dim": 3072,
    "max_position_embeddings": 2048,
    "do_layer_norm_before": True,
    "num_attention_heads": 12,
    "activation_function": "relu",
    "enable_bias": True,
    "layer_norm_elementwise_affine": True,
    "tie_word_embeddings": True,
}
FIRST_POSITION = 2
"""The row of the first token's position; nothing reads the rows before it."""
EPSILON = 1e-5  # of the layer norms; no key says it


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of an `opt` configuration; faults are left in the reader."""
    hidden, layers = reader.positive("hidden_size"), reader.positive("num_hidden_layers")
    heads = reader.positive("num_attention_heads")
    head_dim = gpt_neox.whole_heads(reader, "hidden_size", hidden, heads, "num_attention_heads")
    width = reader.positive("word_embed_proj_dim", hidden)
    reader.needs("layer_norm_elementwise_affine", [True])
    norms_before = reader.flag("do_layer_norm_before")
    if norms_before:
        reader.needs("_remove_final_layer_norm", [False])
    else:
        reader.ignore(["_remove_final_layer_norm"])  # there is none
    bias = reader.flag("enable_bias")
    return Architecture(
        model_type="opt",
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("ffn_dim"),
        max_positions=reader.positive("max_position_embeddings"),
        norm_epsilon=EPSILON,
        activation=reader.choice("activation_function", ACTIVATIONS),
        tied=reader.flag("tie_word_embeddings"),
        windows=(0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        adds_normed=not norms_before,
        embedding_size=0 if width == hidden else width,
    )


def network(layers: Layers) -> Network:
    """Blocks between token and position embedding and a last layer norm."""
    positions = partial(layers.learned_positions, first=FIRST_POSITION)
    embedding = layers.projected_embedding if layers.arch.embedding_size else layers.embedding
    return layers.network(embedding, block, partial(layers.layer_norm, "norm"), positions)


def block(layers: Layers, index: int) -> Block:
    """GPT-2's; or x = norm(x + attention(x)), then norm(x + mlp(x)), whose norm begins the next one."""
    if not layers.arch.adds_normed:
        return gpt2.block(layers, index)
    name = f"layers.{index}"
    return layers.block(
        layers.layer_norm(f"{name}.attention_norm") if index else layers.residual_sum(),
        layers.attention(f"{name}.attention", index),
        layers.layer_norm(f"{name}.mlp_norm"),
        layers.mlp(f"{name}.mlp"),
    )


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Every parameter and the checkpoint tensors it is made of."""
    hidden, decoder = arch.hidden_size, "model.decoder"
    positions = Part(f"{decoder}.embed_positions.weight", arch.max_positions + FIRST_POSITION, hidden)
    width, last = arch.embedding_size or hidden, arch.num_layers - 1
    final = f"{decoder}.layers.{last}" if arch.adds_normed else decoder
    specs = [
        vocabulary("embedding.weight", f"{decoder}.embed_tokens.weight", arch.vocab_size, width),
        TensorSpec("positions.weight", (positions,)),
        *norm("norm", f"{final}.final_layer_norm", hidden, "bias"),
    ]
    if not arch.tied:
        specs.append(vocabulary("head.weight", "lm_head.weight", arch.vocab_size, width))
    if arch.embedding_size:
        into, out_of = (
            Part(f"{decoder}.project_in.weight", hidden, width),
            Part(f"{decoder}.project_out.weight", width, hidden),
        )
        specs += linear("embedding.project", (into,), Sharding.REPLICATED, False)
        specs += linear("head.project", (out_of,), Sharding.REPLICATED, False)
    for layer in range(arch.num_layers):
        source, name = f"{decoder}.layers.{layer}", f"layers.{layer}"
        if arch.adds_normed:
            before = f"{decoder}.layers.{layer - 1}.final_layer_norm"
            norms = norm(f"{name}.attention_norm", before, hidden, "bias") if layer else []
            norms += norm(f"{name}.mlp_norm", f"{source}.self_attn_layer_norm", hidden, "bias")
        else:
            norms = norm(f"{name}.attention_norm", f"{source}.self_attn_layer_norm", hidden, "bias")
            norms += norm(f"{name}.mlp_norm", f"{source}.final_layer_norm", hidden, "bias")
        specs += [*norms, *_block_tensors(arch, source, name)]
    return specs


def _block_tensors(arch: Architecture, source: str, name: str) -> list[TensorSpec]:
    hidden, inner, attention = arch.hidden_size, arch.intermediate_size, f"{source}.self_attn"
    qkv = tuple(
        Part(f"{attention}.{which}_proj.weight", hidden, hidden, unit=arch.head_dim) for which in "qkv"
    )
    output = (Part(f"{attention}.out_proj.weight", hidden, hidden),)
    up, down = (Part(f"{source}.fc1.weight", inner, hidden),), (Part(f"{source}.fc2.weight", hidden, inner),)
    return [
        *linear(f"{name}.attention.qkv", qkv, Sharding.OUTPUTS, arch.qkv_bias),
        *linear(f"{name}.attention.output", output, Sharding.INPUTS, arch.output_bias),
        *linear(f"{name}.mlp.up", up, Sharding.OUTPUTS, arch.mlp_bias),
        *linear(f"{name}.mlp.down", down, Sharding.INPUTS, arch.mlp_bias),
    ]


MODEL = replace(
    gpt2.MODEL,
    describe=describe,
    tensors=tensors,
    network=network,
    defaults=DEFAULTS,
    prefix="model.",
    unused_tensors=(),
)
