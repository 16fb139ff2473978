"""ernie4_5_moe: ERNIE 4.5's attention, and experts that are chosen by softmax with a correction."""

from dataclasses import replace

from mindbatch.architecture.architecture import Architecture, Experts
from mindbatch.config_json import experts
from mindbatch.config_json.reader import MAX_LAYERS, ConfigReader
from mindbatch.models import ernie4_5, llama, qwen3_moe

_CORRECTION = "moe_statics.e_score_correction_bias"
NAMES = qwen3_moe.ExpertNames(
    correction=_CORRECTION, correction_is_row=True, fused_correction=f"gate.{_CORRECTION}"
)
LEAST_SUM = (1e-12, 1e-9, 1e-6)
"""Least divisors of the weights that are far below the sum of the chosen, and so without effect."""


def describe(reader: ConfigReader) -> Architecture:
    reader.needs("use_bias", [False])  # experts would have biases, too
    reader.needs("moe_gate", ["topk"])
    reader.needs("moe_gate_act", ["softmax"])
    reader.needs("moe_use_aux_free", [True])
    reader.needs("moe_norm_min", LEAST_SUM)
    arch = ernie4_5.MODEL.describe(reader)
    return replace(
        arch,
        experts=read_experts(reader, arch.num_layers),
        next_token_layers=experts.read_further_layers(reader),
    )


def read_experts(reader: ConfigReader, layers: int) -> Experts:
    """Experts in every moe_layer_interval-th layer from one to another, beside one shared network."""
    first = experts.read_count(reader, "moe_layer_start_index", layers)
    last, step = layers - 1, reader.positive("moe_layer_interval")
    if reader.raw("moe_layer_end_index") != -1:
        last = experts.read_count(reader, "moe_layer_end_index", MAX_LAYERS)
    sparse = tuple(layer for layer in range(layers) if (layer + 1) % step == 0 and first <= layer <= last)
    routing = experts.read_routing(reader, "moe_num_experts", "moe_k", is_normalised=True, layers=sparse)
    inner = reader.positive("moe_intermediate_size")
    shared = experts.read_count(reader, "moe_num_shared_experts", experts.MAX_SHARED)
    return Experts(routing, inner, sparse, has_correction=True, shared=(inner * shared,) if shared else ())


class Block(qwen3_moe.Block):
    expert_names = NAMES


MODEL = replace(
    llama.MODEL,
    describe=describe,
    tree=llama.with_blocks(Block),
    # The layer that guesses a token more.
    unused_tensors=(*llama.MODEL.unused_tensors, "*mtp*"),
)
