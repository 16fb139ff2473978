"""opt: GPT-2's shape with ReLU, and positions that are counted from 2."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.layers.parameters import (
    Head,
    LayerNorm,
    Module,
    ReplicatedLinear,
    Table,
    TokenEmbedding,
)
from mindbatch.models import gpt2, gpt_neox, llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import ACTIVATIONS
from mindbatch.models.tensor_spec import Part

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

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

DECODER = "model.decoder"


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


def block(layers: Layers, index: int) -> Operation:
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


class Block(Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); or with norms behind the sums.

    Each of those begins what follows it: the first is of the layer before, and the last that of the model.
    """

    def __init__(self, a: Architecture, index: int) -> None:
        source, before = _layer(index), _layer(index - 1)
        first, second = f"{source}.self_attn_layer_norm", f"{source}.final_layer_norm"
        if a.adds_normed:
            first, second = f"{before}.final_layer_norm", first
        if index or not a.adds_normed:
            self.attention_norm = LayerNorm(first, a.hidden_size)
        self.attention = llama.Attention(a, f"{source}.self_attn", "out_proj")
        self.mlp_norm = LayerNorm(second, a.hidden_size)
        self.mlp = llama.Mlp(a, source, ["fc1"], "fc2")


class Model(Module):
    """Token and position embedding, blocks, a last norm and the head, between two matrices in OPT-350m."""

    def __init__(self, a: Architecture) -> None:
        hidden, width = a.hidden_size, a.embedding_size or a.hidden_size
        self.embedding = TokenEmbedding(f"{DECODER}.embed_tokens", a.vocab_size, width)
        self.positions = Table(f"{DECODER}.embed_positions", a.max_positions + FIRST_POSITION, hidden)
        last = _layer(a.num_layers - 1) if a.adds_normed else DECODER
        self.norm = LayerNorm(f"{last}.final_layer_norm", hidden)
        self.head = Head("lm_head", a.vocab_size, width, tied=a.tied)
        if a.embedding_size:
            self.embedding.project = ReplicatedLinear(Part(f"{DECODER}.project_in.weight", hidden, width))
            self.head.project = ReplicatedLinear(Part(f"{DECODER}.project_out.weight", width, hidden))
        self.layers = [Block(a, index) for index in range(a.num_layers)]


def _layer(index: int) -> str:
    return f"{DECODER}.layers.{index}"


MODEL = replace(
    gpt2.MODEL,
    describe=describe,
    tree=Model,
    network=network,
    defaults=DEFAULTS,
    prefix="model.",
    unused_tensors=(),
)
