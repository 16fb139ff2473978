"""llama4_text: attention within chunks, layers without positions, experts beside a shared network.

Also the text part of llama4, whose images are not read. Of arrays: see `models.llama`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mindbatch.architecture.architecture import Architecture, Experts, TypeDetails
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.sizes import FULL, kinds_of_layers, layer_numbers
from mindbatch.layers.attention import TemperedQueries
from mindbatch.layers.linear import UnitNorm
from mindbatch.models import llama, qwen3_moe
from mindbatch.models.smollm3 import rotated_layers

CHUNKED = "chunked_attention"


@dataclass(frozen=True)
class Tempering:
    """Factors by position of queries without rotary positions, see `operations.rotation.tempered`."""

    floor: float
    factor: float


@dataclass(frozen=True)
class Llama4Details(TypeDetails):
    """tempering: of queries in layers without positions; None where they stay as they are."""

    tempering: Tempering | None


def describe(reader: ConfigReader) -> Architecture:
    arch = llama.describe_family(reader, bias_key="attention_bias", is_interleaved=True)
    rotated = rotated_layers(reader, reader.raw("no_rope_layers") or None)  # [] in published files
    mixtures = read_experts(reader, arch)
    return replace(
        arch,
        intermediate_size=reader.positive("intermediate_size_mlp"),
        qk_norm=reader.flag("use_qk_norm"),
        layer_rotaries=tuple(arch.rotary if is_rotated else None for is_rotated in rotated),
        windows=read_chunks(reader, rotated),
        windows_are_chunks=True,
        details=Llama4Details(read_tempering(reader)),
        experts=mixtures if mixtures.layers else None,
    )


def read_chunks(reader: ConfigReader, rotated: Sequence[bool]) -> tuple[int, ...]:
    """Chunk of each layer, 0 for none: by layer_types, else of those with positions."""
    is_given = reader.raw("attention_chunk_size") is not None
    chunk = reader.positive("attention_chunk_size") if is_given else 0
    usual = [CHUNKED if is_rotated and chunk else FULL for is_rotated in rotated]
    kinds = kinds_of_layers(reader, (FULL, CHUNKED), usual)
    if not chunk and CHUNKED in kinds:
        reader.error("layer_types", "names layers with chunks, and attention_chunk_size is null")
    return tuple(chunk if kind == CHUNKED else 0 for kind in kinds)


def read_tempering(reader: ConfigReader) -> Tempering | None:
    """How queries of layers without positions grow; the release has 4 where its class has true."""
    is_tuned = reader.value("attn_temperature_tuning")
    if not isinstance(is_tuned, bool | int):
        reader.error("attn_temperature_tuning", "must be true or false")
    tempering = Tempering(reader.number("floor_scale"), reader.number("attn_scale"))
    return tempering if is_tuned else None


def read_experts(reader: ConfigReader, arch: Architecture) -> Experts:
    """Experts in moe_layers, else in every interleave_moe_layer_step-th layer."""
    step, layers = reader.positive("interleave_moe_layer_step"), layer_numbers(reader, "moe_layers")
    if layers is None:
        layers = range(step - 1, arch.num_layers, step)
    sparse = tuple(layer for layer in range(arch.num_layers) if layer in layers)
    routing = experts.read_routing(reader, "num_local_experts", is_normalised=False, layers=sparse)
    inner = arch.intermediate_size
    routing = replace(routing, is_sigmoid=True)
    return Experts(routing, inner, sparse, shared=(inner,), is_fused=True, weighs_inputs=True)


class Attention(llama.Attention):
    """Llama's; where it has positions, query and key heads are normed, and elsewhere queries are tempered.

    A norm without weights is the same before the rotation and behind it.
    """

    def __init__(self, a: Architecture, source: str, layer: int, output: str) -> None:
        super().__init__(replace(a, qk_norm=False), source, layer, output)
        self.has_norms = a.qk_norm and a.rotary_of(layer) is not None
        self.q_norm = self.k_norm = UnitNorm(a.head_dim)
        tempering = a.details_of(Llama4Details).tempering
        if tempering is not None and a.rotary_of(layer) is None:
            self.rotate = TemperedQueries(a, layer, tempering.floor, tempering.factor)


class Block(qwen3_moe.Block):
    names, attention_type = llama.LayerNames(mlp="feed_forward"), Attention
    expert_names = qwen3_moe.ExpertNames(
        "feed_forward", "feed_forward", "router.weight", shared="shared_expert", fused_is_transposed=True
    )


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block),
)
