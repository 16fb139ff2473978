"""llama: RMS norm, rotary positions, grouped key/value heads, gated MLP. Also the base of its relatives.
from mindbatch.config_json.forms import Config

Of arrays: T tokens, H hidden_size, I intermediate_size, N query heads, K key/value heads, D head_dim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import Part, fused
from mindbatch.config_json.forms import Config
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import RotaryReader, read_rotary
from mindbatch.config_json.sizes import SizeKeys, read_sizes
from mindbatch.kernels.operations.dense import activation
from mindbatch.layers.attention import PagedAttention, Rotation
from mindbatch.layers.decoder import Decoder
from mindbatch.layers.linear import ColumnLinear, Head, Norm, RmsNorm, RowLinear, TokenEmbedding
from mindbatch.layers.rank import Module, Tensor, Tokens
from mindbatch.models import ModelType

ENDS = ("model.embed_tokens", "model.norm", "lm_head")


@dataclass(frozen=True)
class LayerNames:
    """The checkpoint's names of a layer's modules, each below `layers` and the number of the layer."""

    layers: str = "model.layers"
    attention_norm: str = "input_layernorm"
    attention: str = "self_attn"
    output: str = "o_proj"
    """Below `attention`."""
    mlp_norm: str = "post_attention_layernorm"
    mlp: str = "mlp"
    up: Sequence[str] = ("gate_proj", "up_proj")
    """Below `mlp`: gate and up, or the one that has both if `is_fused`, or up alone."""
    down: str = "down_proj"
    """Below `mlp`."""
    is_fused: bool = False
    after_attention: str = "post_attention_layernorm"
    after_mlp: str = "post_feedforward_layernorm"
    """Norms of what attention and MLP add, in blocks that have them."""

    def in_layer(self, layer: int, name: str) -> str:
        return f"{self.layers}.{layer}.{name}"


def describe_family(
    reader: ConfigReader,
    *,
    default_intermediate: int | None = None,
    windows: tuple[int, ...] = (),
    bias_key: str | None = None,
    qkv_bias: bool | str = False,
    output_bias: bool | str = False,
    mlp_bias: bool | str = False,
    qk_norm: bool | str = False,
    epsilon_key: str = "rms_norm_eps",
    activation_key: str = "hidden_act",
    rotary: RotaryReader = read_rotary,
    is_interleaved: bool = False,
) -> Architecture:
    """Reads what all relatives of Llama have in common in config.json.

    default_intermediate: intermediate_size if that is null; without a default null is refused.
    bias_key: key of one flag for the biases of query, key, value and output.
    qkv_bias, output_bias, mlp_bias, qk_norm: true, false, or the key of the flag that decides it.
    activation_key: "" for a type whose MLPs always have SiLU.
    is_interleaved: see `Rotary`.
    """

    def is_set(flag: bool | str) -> bool:
        return reader.flag(flag) if isinstance(flag, str) else flag

    qkv_bias, output_bias = is_set(bias_key or qkv_bias), is_set(bias_key or output_bias)
    mlp_bias, qk_norm = is_set(mlp_bias), is_set(qk_norm)
    hidden, heads = reader.positive("hidden_size"), reader.positive("num_attention_heads")
    kv_heads = reader.positive("num_key_value_heads", heads)
    head_dim = reader.positive("head_dim", hidden // heads or 2)
    if heads % kv_heads:
        reader.error("num_key_value_heads", f"must divide num_attention_heads={heads}")
    if head_dim % 2:
        reader.error("head_dim", "must be even for rotary positions")
    keys = SizeKeys(epsilon=epsilon_key, activation=activation_key)
    arch = read_sizes(reader, keys, head_dim=head_dim, default_inner=default_intermediate)
    positions = replace(rotary(reader, head_dim, arch.max_positions), is_interleaved=is_interleaved)
    return replace(
        arch,
        kv_heads=kv_heads,
        rotary=positions,
        windows=windows,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )


class Attention(Module):
    """Query, key and value by one matrix, the output by another; query and key heads may have norms.

    output: name of the output's matrix below `source`.
    """

    q_norm: Norm
    k_norm: Norm

    def __init__(self, a: Architecture, source: str, layer: int, output: str = "o_proj") -> None:
        self.has_norms = a.qk_norm
        if a.qk_norm:
            self.q_norm, self.k_norm = (norm(a, f"{source}.{which}_norm", a.head_dim) for which in "qk")
        self.qkv = ColumnLinear(*self.projections(a, source), bias=a.qkv_bias)
        self.rotate: Module = Rotation(a, layer)
        self.attend = PagedAttention(a, layer)
        joined = Part(f"{source}.{output}.weight", a.hidden_size, a.heads * a.head_dim, unit=a.head_dim)
        self.output = RowLinear(joined, bias=a.output_bias)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        norms = (self.q_norm, self.k_norm) if self.has_norms else ()
        qkv = self.rotate(self.qkv(x_TH, tokens), tokens, *norms)  # [T, (N + 2 K) D]
        return self.output(self.attend(qkv, tokens), tokens)

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        return qkv_parts(a, *(f"{source}.{which}_proj.weight" for which in "qkv"))


class Mlp(Module):
    """down(act(gate(x)) * up(x)), gate and up by one matrix; or down(act(up(x))).

    up, down: names of the matrices below `source`. is_fused: the checkpoint has gate and up in one tensor.
    inner: inner size, if it is not the architecture's.
    """

    def __init__(
        self,
        a: Architecture,
        source: str,
        up: Sequence[str] = ("gate_proj", "up_proj"),
        down: str = "down_proj",
        *,
        is_fused: bool = False,
        inner: int | None = None,
    ) -> None:
        hidden, inner = a.hidden_size, inner or a.intermediate_size
        if is_fused:
            parts = fused(f"{source}.{up[0]}.weight", (inner, inner), hidden)
        else:
            parts = tuple(Part(f"{source}.{name}.weight", inner, hidden) for name in up)
        self.up = ColumnLinear(*parts, bias=a.mlp_bias)
        self.activation, self.is_gated = a.activation, len(parts) > 1
        self.down = RowLinear(Part(f"{source}.{down}.weight", hidden, inner), bias=a.mlp_bias)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        active_TI = activation(self.up(x_TH, tokens), kind=self.activation, gated=self.is_gated)
        return self.down(active_TI, tokens)


class Block(Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    names = LayerNames()
    norm_type: type[RmsNorm] = RmsNorm
    attention_type: Callable[[Architecture, str, int, str], Module] = Attention
    mlp_type: Callable[..., Module] = Mlp
    attention: Module
    mlp: Module

    def __init__(self, a: Architecture, layer: int) -> None:
        names = self.names
        self.attention_norm = self.norm_of(a, layer, names.attention_norm)
        self.attention = self.attention_type(a, names.in_layer(layer, names.attention), layer, names.output)
        self.mlp_norm = self.norm_of(a, layer, names.mlp_norm)
        mlp = names.in_layer(layer, names.mlp)
        self.mlp = self.mlp_type(a, mlp, names.up, names.down, is_fused=names.is_fused)

    def norm_of(self, a: Architecture, layer: int, name: str) -> RmsNorm:
        return norm(a, self.names.in_layer(layer, name), kind=self.norm_type)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        x_TH = x_TH + self.attention(self.attention_norm(x_TH), tokens)
        return x_TH + self.mlp(self.mlp_norm(x_TH), tokens)


class FourNormBlock(Block):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x)))."""

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        self.after_attention = self.norm_of(a, layer, self.names.after_attention)
        self.after_mlp = self.norm_of(a, layer, self.names.after_mlp)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        x_TH = x_TH + self.after_attention(self.attention(self.attention_norm(x_TH), tokens))
        return x_TH + self.after_mlp(self.mlp(self.mlp_norm(x_TH), tokens))


class Llama(Decoder):
    """The token embedding, blocks, a last norm and the head; relatives have blocks and norms of their own.

    ends: the checkpoint's names of embedding, norm and head.
    """

    def __init__(
        self,
        a: Architecture,
        block: Callable[[Architecture, int], Module] = Block,
        norm_type: type[RmsNorm] = RmsNorm,
        ends: tuple[str, str, str] = ENDS,
    ) -> None:
        super().__init__(a)
        self.embedding = TokenEmbedding(ends[0], a.vocab_size, a.hidden_size)
        self.norm: Module = norm(a, ends[1], kind=norm_type)
        self.head = Head(ends[2], a.vocab_size, a.hidden_size, tied=a.tied)
        self.layers = [block(a, layer) for layer in range(a.num_layers)]

    def embed(self, tokens: Tokens) -> Tensor:
        return self.embedding(tokens) * self.arch.embedding_factor


def with_blocks(
    block: Callable[[Architecture, int], Module],
    norm_type: type[RmsNorm] = RmsNorm,
    ends: tuple[str, str, str] = ENDS,
) -> Callable[[Architecture], Llama]:
    """Returns the tree of a relative of Llama, with its own blocks, last norm or names of the ends."""
    return partial(Llama, block=block, norm_type=norm_type, ends=ends)


def norm(a: Architecture, source: str, width: int | None = None, kind: type[RmsNorm] = RmsNorm) -> RmsNorm:
    return kind(source, width or a.hidden_size, a.norm_epsilon, a.norm_offset)


def qkv_parts(a: Architecture, *sources: str) -> tuple[Part, ...]:
    """The parts of query, key and value, from three tensors or from one in which they follow one another."""
    query, keys = a.heads * a.head_dim, a.kv_heads * a.head_dim
    widths = (query, keys, keys)
    if len(sources) == 1:
        parts = fused(sources[0], widths, a.hidden_size, a.head_dim)
    else:
        sizes = zip(sources, widths, strict=True)
        parts = tuple(Part(source, width, a.hidden_size, unit=a.head_dim) for source, width in sizes)
    return parts[0], *(replace(part, is_shared=True) for part in parts[1:])


def relative(
    tree: Callable[[Architecture], Decoder] = Llama,
    windows: Callable[[ConfigReader], tuple[int, ...]] = lambda reader: (),
    always: Config = MappingProxyType({}),
    **settings: Any,
) -> ModelType:
    """Declares a type that `describe_family` reads with these settings.

    windows: reads the windows of the layers. always: the only value that each of these keys may have.
    """

    def describe(reader: ConfigReader) -> Architecture:
        for key, only in always.items():
            reader.needs(key, [only])
        return describe_family(reader, windows=windows(reader), **settings)

    return ModelType(describe, tree, prefix="model.", unused_tensors=("*rotary_emb.inv_freq",))


MODEL = relative(bias_key="attention_bias", mlp_bias="mlp_bias")
