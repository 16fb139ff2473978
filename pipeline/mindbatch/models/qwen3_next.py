"""qwen3_next: gated delta rules, gated attention in some of the layers, and experts.

Of arrays: see `models.llama`.
"""

from collections.abc import Sequence
from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Recurrence
from mindbatch.architecture.tensor_spec import Part, interleaved
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import read_partial_rotary
from mindbatch.config_json.sizes import FULL, kinds_of_layers, read_kernel, recurrent_layers
from mindbatch.kernels.operations.dense import columns
from mindbatch.kernels.operations.recurrent import gated
from mindbatch.kernels.shapes import DeltaShape
from mindbatch.layers.attention import CausalConvolution, GatedDelta, channels
from mindbatch.layers.linear import ColumnLinear, RmsNorm, RowLinear
from mindbatch.layers.rank import Module, Tensor, Tokens
from mindbatch.models import llama, qwen2_moe, qwen3_moe

LINEAR = "linear_attention"


def describe(reader: ConfigReader) -> Architecture:
    arch = describe_family(reader)
    shared = reader.positive("shared_expert_intermediate_size")
    experts = qwen3_moe.read_experts(reader, arch.num_layers)
    return replace(arch, experts=replace(experts, shared=(shared,), shared_is_gated=True))


def describe_family(reader: ConfigReader, default_intermediate: int | None = None) -> Architecture:
    """Reads what qwen3_next and its successors have in common; see `llama.describe_family`."""
    reader.needs("hidden_act", ["silu", "swish"])  # the convolution's, too
    arch = llama.describe_family(
        reader,
        default_intermediate=default_intermediate,
        bias_key="attention_bias",
        qk_norm=True,
        rotary=read_partial_rotary,
    )
    every = reader.positive("full_attention_interval")
    usual = [LINEAR if (layer + 1) % every else FULL for layer in range(arch.num_layers)]
    kinds = kinds_of_layers(reader, (FULL, LINEAR), usual)
    layers = recurrent_layers(reader, kinds, LINEAR)
    recurrence = read_recurrence(reader, layers)
    return replace(arch, norm_offset=1.0, recurrence=recurrence if layers else None)


def read_recurrence(reader: ConfigReader, layers: tuple[int, ...]) -> Recurrence:
    keys, values = reader.positive("linear_num_key_heads"), reader.positive("linear_num_value_heads")
    sizes = reader.positive("linear_key_head_dim"), reader.positive("linear_value_head_dim")
    if values % keys:
        reader.error("linear_num_value_heads", f"must be a multiple of linear_num_key_heads={keys}")
        values = keys
    count = 2 * keys * sizes[0] + values * sizes[1]
    kernel = read_kernel(reader, "linear_conv_kernel_dim")
    return Recurrence(layers, count, kernel, DeltaShape(keys, values, *sizes))


class Attention(llama.Attention):
    """Llama's, and each head's output times the sigmoid of a gate, which is beside its query."""

    def projections(self, a: Architecture, source: str) -> tuple[Part, ...]:
        """Gate, query, key and value: what is of one tensor lies together, for its adapters."""
        size = a.head_dim
        _, key, value = super().projections(a, source)
        query, gate = interleaved(f"{source}.q_proj.weight", (size, size), a.heads, a.hidden_size, size)
        return gate, query, key, value

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        shape = self.attend.shape
        width = shape.heads * shape.head_dim
        gates_qkv = self.qkv(x_TH, tokens)
        qkv = columns(gates_qkv, first=width, count=shape.qkv_width)
        y = self.attend(self.rotate(qkv, tokens, self.q_norm, self.k_norm), tokens)
        y = gated(y, gates_qkv, None, kind="sigmoid", width=width, first=0, epsilon=0.0)
        return self.output(y, tokens)


class DeltaNet(Module):
    """norm(delta(convolution(q, k, v))) * silu(z), of heads, and a matrix of all."""

    def __init__(self, a: Architecture, source: str, layer: int) -> None:
        assert a.recurrence is not None
        heads, kernel = heads_of(a), a.recurrence.kernel
        together = heads.value_heads // heads.key_heads  # value heads of a key head, which stay on one rank
        units = (heads.key_dim, heads.key_dim, together * heads.value_dim)
        qkvz, gates = self.projections(a, source, units, together)
        self.qkvz, self.gates = ColumnLinear(*qkvz), ColumnLinear(*gates)
        widths = [heads.key_heads * unit for unit in units]
        parts = channels(f"{source}.conv1d.weight", widths, kernel, units)
        self.convolve = CausalConvolution(a, layer, *parts)
        decay, bias = (
            Part(f"{source}.{name}", heads.value_heads, unit=together) for name in ("A_log", "dt_bias")
        )
        self.delta = GatedDelta(a, layer, decay, bias)
        self.norm = RmsNorm(f"{source}.norm", heads.value_dim, a.norm_epsilon)
        self.output = RowLinear(Part(f"{source}.out_proj.weight", a.hidden_size, widths[2], unit=units[2]))

    def projections(
        self, a: Architecture, source: str, units: Sequence[int], together: int
    ) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
        """Query, key, value and z, which are interleaved, and what beta and decay are made of.

        units: of query, key and value, the numbers of a key head. together: value heads of one.
        """
        groups = heads_of(a).key_heads
        qkvz = interleaved(f"{source}.in_proj_qkvz.weight", (*units, units[2]), groups, a.hidden_size, 1)
        gates = interleaved(f"{source}.in_proj_ba.weight", (together,) * 2, groups, a.hidden_size, 1)
        return tuple(map(_by_group, qkvz)), tuple(map(_by_group, gates))

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        qkvz, shape = self.qkvz(x_TH, tokens), self.delta.shape
        y = self.delta(self.convolve(qkvz, tokens), self.gates(x_TH, tokens), tokens)
        width, first = shape.value_heads * shape.value_dim, self.convolve.shape.channels
        y = gated(y, qkvz, self.norm.weight, kind="silu", width=width, first=first, epsilon=self.norm.epsilon)
        return self.output(y, tokens)


def heads_of(a: Architecture) -> DeltaShape:
    assert a.recurrence is not None
    return a.recurrence.delta_of(ranks=1)


def _by_group(part: Part) -> Part:
    return replace(part, unit=part.group_size)


class Block(qwen3_moe.Block):
    """x + mixer(norm(x)), then x + experts(norm(x)); the mixer is a delta net or gated attention."""

    expert_names, attention_type = qwen2_moe.NAMES, Attention
    delta_net = DeltaNet

    def __init__(self, a: Architecture, layer: int) -> None:
        super().__init__(a, layer)
        if a.is_recurrent(layer):
            self.attention = self.delta_net(a, self.names.in_layer(layer, "linear_attn"), layer)


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block),
    unused_tensors=(*llama.MODEL.unused_tensors, "mtp.*"),
    beyond_ascend="the gated delta rule",
)
