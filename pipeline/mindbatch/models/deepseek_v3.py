"""deepseek_v3: latent attention, and experts behind the first layers. Also DeepSeek-R1, and base of v2."""

from collections.abc import Mapping
from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Latent, Rotary
from mindbatch.architecture.tensor_spec import Part
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import read_rotary, yarn_scale
from mindbatch.kernels.operations.attention import latent_heads
from mindbatch.kernels.operations.dense import columns
from mindbatch.layers.attention import PagedAttention, Rotation
from mindbatch.layers.linear import ColumnLinear, ReplicatedLinear, RmsNorm, RowLinear, SplitLinear
from mindbatch.layers.rank import Module, Tensor, Tokens
from mindbatch.models import llama, qwen3_moe

NORM_EPSILON = 1e-6
"""Epsilon of the norms before queries and the latent, whatever rms_norm_eps says: their class's own."""

MAX_YARN_WEIGHT = 1e6
"""Largest mscale_all_dim, far above the published 1: its square is finite whatever the factor."""


def describe(reader: ConfigReader) -> Architecture:
    arch = describe_attention(reader)
    return replace(arch, experts=experts.read_scored_experts(reader, arch.num_layers))


def describe_attention(reader: ConfigReader) -> Architecture:
    is_interleaved = reader.flag("rope_interleave")
    return with_yarn_scale(reader, describe_latent(reader, is_interleaved=is_interleaved))


def with_yarn_scale(reader: ConfigReader, arch: Architecture) -> Architecture:
    """Multiplies scores by the square of what `mscale_all_dim` of the rotary scaling gives."""
    key = "rope_scaling"
    scaling = reader.value(key)
    if not isinstance(scaling, Mapping) or scaling.get("mscale_all_dim") is None:
        return arch
    weight, context = scaling["mscale_all_dim"], scaling.get("factor", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) <= MAX_YARN_WEIGHT:
        reader.error(key, f"mscale_all_dim must be a number of at most {MAX_YARN_WEIGHT}")
        return arch
    if weight == 0 or not isinstance(context, (int, float)):
        return arch  # of a factor that is no number the rotary positions complain
    factor = yarn_scale(float(context), float(weight)) ** 2
    return replace(arch, attention_scales=tuple(scale * factor for scale in arch.attention_scales))


def describe_latent(reader: ConfigReader, *, is_interleaved: bool) -> Architecture:
    """Reads what both generations have in common. is_interleaved: of rotary positions."""
    rotated = reader.positive("qk_rope_head_dim")
    if rotated % 2:
        reader.error("qk_rope_head_dim", "must be even for rotary positions")
    # The class itself makes it this, whatever files say: published ones have a head's size in some sense.
    plain, value = reader.positive("qk_nope_head_dim"), reader.positive("v_head_dim")
    reader.needs("head_dim", [rotated, plain, plain + rotated, value])
    reader.overwrite("head_dim", rotated)

    def rotary(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
        return read_rotary(reader, rotated, max_positions)

    arch = llama.describe_family(
        reader, bias_key="attention_bias", rotary=rotary, is_interleaved=is_interleaved
    )
    if arch.kv_heads != arch.heads:
        reader.error("num_key_value_heads", f"must be num_attention_heads={arch.heads}")
    reader.needs("qk_head_dim", [rotated + reader.positive("qk_nope_head_dim")])
    query_rank = reader.raw("q_lora_rank")
    latent = Latent(
        rank=reader.positive("kv_lora_rank"),
        query_rank=0 if query_rank is None else reader.positive("q_lora_rank"),
        plain=reader.positive("qk_nope_head_dim"),
        rotated=rotated,
        value=reader.positive("v_head_dim"),
        norm_epsilon=NORM_EPSILON,
    )
    return replace(
        arch,
        kv_heads=1,
        head_dim=rotated + latent.rank,
        attention_scales=((latent.plain + rotated) ** -0.5,) * arch.num_layers,
        latent=latent,
        next_token_layers=experts.read_further_layers(reader),
    )


class Attention(Module):
    """Latent attention: what is cached of a token is one vector for the keys and values of all heads.

    The matrices that make latents and queries are whole on every rank. The up-projections are absorbed: a
    query is multiplied with the latent itself, and each head's values come from the weighted sum of latents.
    The one key/value head is [rotated, latent], and on every rank.
    Source: DeepSeek-AI, "DeepSeek-V2" (2024).
    """

    def __init__(self, a: Architecture, source: str, layer: int, output: str) -> None:
        latent, hidden, bias = a.latent, a.hidden_size, a.qkv_bias
        assert latent is not None, "every deepseek describes it"
        self.latent, self.head_dim = latent, a.head_dim
        if latent.query_rank:
            self.q_a = ReplicatedLinear(
                Part(f"{source}.q_a_proj.weight", latent.query_rank, hidden), bias=bias
            )
            self.q_norm = RmsNorm(f"{source}.q_a_layernorm", latent.query_rank, latent.norm_epsilon)
            self.q_b = ColumnLinear(*_queries(f"{source}.q_b_proj.weight", a, latent.query_rank))
        else:
            self.q = ColumnLinear(*_queries(f"{source}.q_proj.weight", a, hidden))
        kv_a = Part(f"{source}.kv_a_proj_with_mqa.weight", latent.rank + latent.rotated, hidden)
        self.kv_a = ReplicatedLinear(kv_a, bias=bias)
        self.kv_norm = RmsNorm(f"{source}.kv_a_layernorm", latent.rank, latent.norm_epsilon)
        unit = latent.plain + latent.value
        self.kv_b = SplitLinear(
            Part(f"{source}.kv_b_proj.weight", a.heads * unit, latent.rank, unit=unit), latent.plain
        )
        self.rotate, self.attend = Rotation(a, layer), PagedAttention(a, layer)
        joined = Part(f"{source}.{output}.weight", hidden, a.heads * latent.value, unit=latent.value)
        self.output = RowLinear(joined, bias=a.output_bias)

    def forward(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        queries, keys = self.queries(x_TH, tokens), self.kv_a(x_TH, tokens)
        latents = self.kv_norm(columns(keys, first=0, count=self.latent.rank))
        absorbed = self.kv_b.absorbed(queries)
        sizes = {"heads": self.kv_b.heads, "rope": self.latent.rotated}
        qkv = self.rotate(latent_heads(queries, absorbed, keys, latents, **sizes), tokens)
        seen = self.attend(qkv, tokens)  # of each head [rotated, latent]
        return self.output(self.kv_b.expanded(seen, self.head_dim, self.latent.rotated), tokens)

    def queries(self, x_TH: Tensor, tokens: Tokens) -> Tensor:
        """Computes queries: for all heads first the parts that multiply latents, then the rotated ones."""
        if not self.latent.query_rank:
            return self.q(x_TH, tokens)
        return self.q_b(self.q_norm(self.q_a(x_TH, tokens)), tokens)


class Block(qwen3_moe.Block):
    attention_type = Attention


def _queries(source: str, arch: Architecture, inputs: int) -> tuple[Part, ...]:
    """The plain parts of all heads, then those that are rotated; in the checkpoint they are interleaved."""
    latent = arch.latent
    assert latent is not None
    size, first_rows = latent.plain + latent.rotated, (0, latent.plain)
    return tuple(
        Part(source, arch.heads * width, inputs, first, unit=width, group_size=width, stride=size)
        for width, first in zip((latent.plain, latent.rotated), first_rows, strict=True)
    )


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block),
    # The layer that guesses a token more, behind the last one of the published size.
    unused_tensors=(*llama.MODEL.unused_tensors, "model.layers.61.*"),
)
