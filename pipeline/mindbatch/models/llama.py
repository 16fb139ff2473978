"""llama: RMS norm, rotary positions, grouped key/value heads, gated MLP. Also the base of its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mindbatch.layers.parameters import ColumnLinear, Head, Module, RmsNorm, RowLinear, TokenEmbedding
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.model_type import ModelType
from mindbatch.models.rope import RotaryReader, read_rotary
from mindbatch.models.tensor_spec import Part, fused

if TYPE_CHECKING:
    from mindbatch.kernels.layer import Operation
    from mindbatch.layers.builder import Layers
    from mindbatch.layers.decoder import Network

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
}
# Of transformers' LlamaConfig.
DEFAULTS = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a `llama` configuration; faults are left in the reader."""
    bias = reader.flag("attention_bias")
    return describe_family(reader, qkv_bias=bias, output_bias=bias, mlp_bias=reader.flag("mlp_bias"))


def describe_family(
    reader: ConfigReader,
    *,
    default_intermediate: int | None = None,
    windows: tuple[int, ...] | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    epsilon_key: str = "rms_norm_eps",
    activation_key: str = "hidden_act",
    rotary: RotaryReader = read_rotary,
) -> Architecture:
    """What all relatives of Llama read from config.json in the same way.

    default_intermediate: the intermediate_size where that is null; None: it must not be.
    """
    hidden, layers = reader.positive("hidden_size"), reader.positive("num_hidden_layers")
    heads = reader.positive("num_attention_heads")
    kv_heads = reader.positive("num_key_value_heads", heads)
    head_dim = reader.positive("head_dim", hidden // heads or 2)
    if heads % kv_heads:
        reader.fault("num_key_value_heads", f"must divide num_attention_heads={heads}")
    if head_dim % 2:
        reader.fault("head_dim", "must be even for rotary positions")
    max_positions = reader.positive("max_position_embeddings")
    return Architecture(
        model_type="llama",
        vocab_size=reader.positive("vocab_size"),
        hidden_size=hidden,
        num_layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=reader.positive("intermediate_size", default_intermediate),
        max_positions=max_positions,
        norm_epsilon=reader.number(epsilon_key),
        activation=reader.choice(activation_key, ACTIVATIONS),
        tied=reader.flag("tie_word_embeddings"),
        rotary=rotary(reader, head_dim, max_positions),
        windows=windows or (0,) * layers,
        attention_scales=(head_dim**-0.5,) * layers,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )


def network(layers: Layers) -> Network:
    """Blocks between the token embedding and a last RMS norm; positions enter by rotation alone."""
    return layers.network(layers.embedding, block, partial(layers.rms_norm, "norm"))


def block(layers: Layers, index: int, mlp: Operation | None = None) -> Operation:
    """x + attention(norm(x)), then x + mlp(norm(x)). mlp: None for the plain gated one."""
    name = f"layers.{index}"
    return layers.block(
        layers.rms_norm(f"{name}.attention_norm"),
        layers.attention(f"{name}.attention", index),
        layers.rms_norm(f"{name}.mlp_norm"),
        layers.gated_mlp(f"{name}.mlp") if mlp is None else mlp,
    )


class Attention(Module):
    """Query, key and value by one matrix, the output by another; norms where the type has them.

    output: the name of its matrix below `source`. after_norm: of what is added.
    """

    q_norm: Module
    k_norm: Module
    after_norm: Module

    def __init__(self, a: Architecture, source: str, output: str = "o_proj") -> None:
        if a.qk_norm:
            self.q_norm, self.k_norm = (RmsNorm(f"{source}.{which}_norm", a.head_dim) for which in "qk")
        self.qkv = ColumnLinear(*self.projections(a, source), bias=a.qkv_bias)
        joined = Part(f"{source}.{output}.weight", a.hidden_size, a.heads * a.head_dim)
        self.output = RowLinear(joined, bias=a.output_bias)

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        """Query, key and value."""
        return qkv_parts(a, *(f"{source}.{which}_proj.weight" for which in "qkv"))


class Mlp(Module):
    """down(act(gate(x)) * up(x)), of a gate and up that are one matrix; or down(act(up(x))).

    up, down: the names of the matrices below `source`. is_fused: the one in `up` is the gate's, too.
    after_norm: of what is added.
    """

    after_norm: Module

    def __init__(
        self,
        a: Architecture,
        source: str,
        up: Sequence[str] = ("gate_proj", "up_proj"),
        down: str = "down_proj",
        *,
        is_fused: bool = False,
    ) -> None:
        hidden, inner = a.hidden_size, a.intermediate_size
        if is_fused:
            parts = fused(f"{source}.{up[0]}.weight", (inner, inner), hidden)
        else:
            parts = tuple(Part(f"{source}.{name}.weight", inner, hidden) for name in up)
        self.up = ColumnLinear(*parts, bias=a.mlp_bias)
        self.down = RowLinear(Part(f"{source}.{down}.weight", hidden, inner), bias=a.mlp_bias)


class Block(Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, a: Architecture, index: int) -> None:
        source = f"model.layers.{index}"
        self.attention_norm = RmsNorm(f"{source}.input_layernorm", a.hidden_size)
        self.attention = Attention(a, f"{source}.self_attn")
        self.mlp_norm = RmsNorm(f"{source}.post_attention_layernorm", a.hidden_size)
        self.mlp = Mlp(a, f"{source}.mlp")


class Model(Module):
    """The token embedding, blocks, a last norm and the head."""

    def __init__(self, a: Architecture) -> None:
        self.embedding = TokenEmbedding("model.embed_tokens", a.vocab_size, a.hidden_size)
        self.norm = RmsNorm("model.norm", a.hidden_size)
        self.head = Head("lm_head", a.vocab_size, a.hidden_size, tied=a.tied)
        self.layers = [self.block(a, index) for index in range(a.num_layers)]

    def block(self, a: Architecture, index: int) -> Module:
        """The layer of an index."""
        return Block(a, index)


def qkv_parts(a: Architecture, *sources: str) -> tuple[Part, ...]:
    """Query, key and value of three tensors, or of one that has them one after another."""
    query, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    widths = (query, keys, keys)
    if len(sources) == 1:
        parts = fused(sources[0], widths, a.hidden_size, a.head_dim)
    else:
        sizes = zip(sources, widths, strict=True)
        parts = tuple(Part(source, width, a.hidden_size, unit=a.head_dim) for source, width in sizes)
    return parts[0], *(replace(part, is_shared=True) for part in parts[1:])


MODEL = ModelType(
    describe, Model, network, DEFAULTS, prefix="model.", unused_tensors=("*rotary_emb.inv_freq",)
)
