"""minimax_m2: Mixtral's layers with norms over all heads, a part of each head rotated, scores by sigmoid."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Experts, Rotary
from mindbatch.config_json import experts
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import read_partial_rotary, read_rotary, read_rotary_of
from mindbatch.models import llama, mixtral, olmo2

NAMES = replace(mixtral.NAMES, correction="e_score_correction_bias")
_BETAS = ("layernorm_full_attention_beta", "layernorm_linear_attention_beta", "layernorm_mlp_beta")


def describe(reader: ConfigReader) -> Architecture:
    for key in _BETAS:
        reader.needs(key, [1.0])
    reader.needs("use_qk_norm", [True])
    reader.needs("qk_norm_type", ["per_layer"])
    reader.needs("sliding_window", [None])
    reader.needs("shared_intermediate_size", [0])
    reader.needs("scoring_func", ["sigmoid"])
    reader.needs("use_routing_bias", [True])
    arch = llama.describe_family(reader, rotary=read_rotary_dim)
    kinds = reader.value("attn_type_list") or []
    if not isinstance(kinds, list) or any(kind != 1 for kind in kinds):
        reader.error("attn_type_list", "must be 1, of full attention, for each layer")
    further = 0
    if reader.has("num_mtp_modules"):
        further = experts.read_count(reader, "num_mtp_modules", experts.MAX_SHARED)
    return replace(arch, experts=read_experts(reader, arch), next_token_layers=further)


def read_experts(reader: ConfigReader, arch: Architecture) -> Experts:
    sparse = tuple(range(arch.num_layers))
    routing = experts.read_routing(reader, "num_local_experts", is_normalised=True, layers=sparse)
    return Experts(replace(routing, is_sigmoid=True), arch.intermediate_size, sparse, has_correction=True)


def read_rotary_dim(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
    """The rotary embedding of rotary_dim numbers of a head, or of the part that transformers 5 writes."""
    if reader.raw("rotary_dim") is None:
        is_part = reader.value("partial_rotary_factor") is not None
        return (read_partial_rotary if is_part else read_rotary)(reader, head_dim, max_positions)
    width = reader.positive("rotary_dim")
    if width % 2 or width > head_dim:
        reader.error("rotary_dim", f"must be even and at most the {head_dim} numbers of a head")
        width = 2
    reader.needs("partial_rotary_factor", [width / head_dim])
    return read_rotary_of(reader, width, max_positions)


class Block(mixtral.Block):
    expert_names, attention_type = NAMES, olmo2.Attention


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
