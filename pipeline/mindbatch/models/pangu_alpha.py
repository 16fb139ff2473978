"""pangu_alpha: GPT-2's blocks, and a last one whose queries are a table of positions.

The model_type of its folders is gpt_pangu. Sources: Zeng et al., "PanGu-alpha" (2021); the behaviour of
MindFormers 1.0's models/pangualpha and of modeling_gptpangu.py in the published folders.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mindbatch.models import gpt2, gpt_neox
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import ACTIVATIONS
from mindbatch.models.tensor_spec import Part, Sharding, TensorSpec, linear, norm, vocabulary

if TYPE_CHECKING:
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Block, Network, QueryBlock

# Of GPTPanguConfig of the published 2.6B model.
DEFAULTS = {
    "vocab_size": 40000,
    "max_position_embeddings": 1024,
    "hidden_size": 2560,
    "intermediate_size": None,
    "num_layers": 32,
    "num_heads": 32,
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "tie_word_embeddings": True,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `gpt_pangu` configuration; faults are left in the reader."""
    hidden, layers = reader.positive("hidden_size"), reader.positive("num_layers")
    heads = reader.positive("num_heads")
    head_dim = gpt_neox.whole_heads(reader, "hidden_size", hidden, heads, "num_heads")
    reader.ignore(gpt2.SUMMARY_KEYS)
    scale = head_dim**-0.5 if reader.flag("scale_attn_weights") else 1.0
    return Architecture(
        model_type="pangu_alpha",
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("intermediate_size", 4 * hidden),
        max_positions=reader.positive("max_position_embeddings"),
        norm_epsilon=reader.number("layer_norm_epsilon"),
        activation=reader.choice("activation_function", ACTIVATIONS),
        tied=reader.flag("tie_word_embeddings"),
        windows=(0,) * layers,
        attention_scales=(scale,) * layers,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
    )


def network(layers: Layers) -> Network:
    """Blocks between token and position embedding and the head, which no norm precedes."""
    table = f"layers.{layers.arch.num_layers - 1}.positions.weight"
    return layers.network(layers.embedding, block, None, layers.learned_positions, by_position=table)


def block(layers: Layers, index: int) -> Block | QueryBlock:
    """GPT-2's, and the one at the top."""
    if index < layers.arch.num_layers - 1:
        return gpt2.block(layers, index)
    return layers.query_block(f"layers.{index}", index)


def tensors(arch: Architecture) -> list[TensorSpec]:
    """Every parameter and the checkpoint tensors it is made of."""
    hidden, last = arch.hidden_size, f"layers.{arch.num_layers - 1}"
    specs = [
        vocabulary("embedding.weight", "transformer.wte.weight", arch.vocab_size, hidden),
        TensorSpec("positions.weight", (Part("transformer.wpe.weight", arch.max_positions, hidden),)),
        # They are of the last layer, so that they are in its stage.
        TensorSpec(f"{last}.positions.weight", (Part("transformer.wqe.weight", arch.max_positions, hidden),)),
        *norm(f"{last}.first_norm", "transformer.ln_f", hidden, "bias"),
    ]
    if not arch.tied:
        specs.append(vocabulary("head.weight", "lm_head.weight", arch.vocab_size, hidden))
    for layer in range(arch.num_layers):
        specs += _block_tensors(arch, layer)
    return specs


def _block_tensors(arch: Architecture, layer: int) -> list[TensorSpec]:
    hidden, inner = arch.hidden_size, arch.intermediate_size
    source, name = f"transformer.h.{layer}", f"layers.{layer}"
    query, *keys = (
        Part(f"{source}.attn.{which}_proj.weight", hidden, hidden, unit=arch.head_dim) for which in "qkv"
    )
    output = Part(f"{source}.attn.c_proj.weight", hidden, hidden)
    up, down = (
        Part(f"{source}.mlp.{which}.weight", *sizes)
        for which, sizes in (("c_fc", (inner, hidden)), ("c_proj", (hidden, inner)))
    )
    if layer == arch.num_layers - 1:
        qkv = [
            *linear(f"{name}.attention.q", (query,), Sharding.OUTPUTS, True),
            *linear(f"{name}.attention.kv", (*keys,), Sharding.OUTPUTS, True),
        ]
    else:
        qkv = linear(f"{name}.attention.qkv", (query, *keys), Sharding.OUTPUTS, True)
    return [
        *norm(f"{name}.attention_norm", f"{source}.ln_1", hidden, "bias"),
        *qkv,
        *linear(f"{name}.attention.output", (output,), Sharding.INPUTS, True),
        *norm(f"{name}.mlp_norm", f"{source}.ln_2", hidden, "bias"),
        *linear(f"{name}.mlp.up", (up,), Sharding.OUTPUTS, True),
        *linear(f"{name}.mlp.down", (down,), Sharding.INPUTS, True),
    ]


MODEL = replace(
    gpt2.MODEL,
    describe=describe,
    tensors=tensors,
    network=network,
    defaults=DEFAULTS,
    prefix="transformer.",
    unused_tensors=("*.attn.bias", "*.attn.masked_bias"),
)
