"""minimind: MiniMind's models, of Llama's shape and since 2026 of Qwen3's, with or without experts.

Source: model/model_minimind.py of github.com/jingyaogong/minimind.
"""

import math
from dataclasses import replace

import numpy as np

from mindbatch.architecture.architecture import Architecture, Experts, Rotary
from mindbatch.config_json import experts
from mindbatch.config_json.forms import JsonValue
from mindbatch.config_json.reader import ConfigReader
from mindbatch.config_json.rope import plain_frequencies, read_rotary
from mindbatch.models import llama, qwen3_moe

# Defaults that the same class has since minimind-3, whose models have norms of query and key heads.
DEFAULTS_OF_3 = {
    "hidden_size": 768,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "num_experts": 4,
    "num_experts_per_tok": 1,
}

# Settings of the mixture of experts: without effect in a dense model.
EXPERT_KEYS = (
    "num_experts_per_tok",
    "n_routed_experts",
    "n_shared_experts",
    "scoring_func",
    "aux_loss_alpha",
    "seq_aux",
    "norm_topk_prob",
    "num_experts",
    "moe_intermediate_size",
)
NAMES = qwen3_moe.ExpertNames(shared="shared_experts.{}")
# Their exports have all of these: the class writes whatever it has.
KEYS_OF_3 = ("num_experts", "moe_intermediate_size", "head_dim")

# What inference_rope_scaling stands for, whatever else the configuration says.
FAST, SLOW, FACTOR, ORIGINAL = 32, 1, 16, 2048
YARN: JsonValue = {
    "beta_fast": FAST,
    "beta_slow": SLOW,
    "factor": FACTOR,
    "original_max_position_embeddings": ORIGINAL,
    "attention_factor": 1.0,
    "type": "yarn",
}


def describe(reader: ConfigReader) -> Architecture:
    is_3 = reader.has(*KEYS_OF_3)
    arch = _describe_3(reader) if is_3 else _describe_2(reader)
    if not reader.flag("use_moe"):
        reader.ignore(EXPERT_KEYS)
        return arch
    layers = tuple(range(arch.num_layers))
    experts = _experts_of_3(reader, arch, layers) if is_3 else _experts_of_2(reader, arch, layers)
    return replace(arch, experts=experts)


def _describe_2(reader: ConfigReader) -> Architecture:
    reader.needs("inference_rope_scaling", [False])
    width = reader.positive("hidden_size") * 8 // 3
    return llama.describe_family(reader, default_intermediate=-(-width // 64) * 64)


def _describe_3(reader: ConfigReader) -> Architecture:
    reader.change_defaults(**DEFAULTS_OF_3)
    reader.ignore(["head_dim"])
    width = math.ceil(reader.positive("hidden_size") * math.pi / 64) * 64
    return llama.describe_family(reader, default_intermediate=width, qk_norm=True, rotary=_read_rotary)


def _experts_of_2(reader: ConfigReader, arch: Architecture, layers: tuple[int, ...]) -> Experts:
    """Experts, and shared networks beside them, all of an MLP's size; one chosen expert keeps its score."""
    reader.needs("scoring_func", ["softmax"])
    reader.ignore(["aux_loss_alpha", "seq_aux"])
    is_normalised = reader.flag("norm_topk_prob")
    routing = experts.read_routing(reader, "n_routed_experts", is_normalised=is_normalised, layers=layers)
    routing = replace(routing, is_normalised=is_normalised and routing.chosen > 1)
    shared = experts.read_count(reader, "n_shared_experts", experts.MAX_SHARED)
    return Experts(routing, arch.intermediate_size, layers, shared=(arch.intermediate_size,) * shared)


def _experts_of_3(reader: ConfigReader, arch: Architecture, layers: tuple[int, ...]) -> Experts:
    is_normalised = reader.flag("norm_topk_prob")
    routing = experts.read_routing(reader, "num_experts", is_normalised=is_normalised, layers=layers)
    return Experts(routing, reader.positive("moe_intermediate_size", arch.intermediate_size), layers)


class Block(qwen3_moe.Block):
    expert_names = NAMES


def _read_rotary(reader: ConfigReader, head_dim: int, max_positions: int) -> Rotary:
    """MiniMind's own: a scaling that its switch does not ask for has no effect there, so it is refused."""
    if not reader.flag("inference_rope_scaling"):
        reader.needs("rope_scaling", [None])
        return read_rotary(reader, head_dim, max_positions)
    reader.needs("rope_scaling", [YARN])
    return Rotary(_yarn(head_dim, reader.number("rope_theta"), max_positions))


def _yarn(head_dim: int, theta: float, max_positions: int) -> tuple[float, ...]:
    """YaRN's frequencies; its ramp ends at the last pair, where transformers' may end behind it."""
    frequencies, pairs = plain_frequencies(theta, head_dim), head_dim // 2
    if max_positions <= ORIGINAL:
        return tuple(map(float, frequencies))

    def pair_with(rotations: float) -> float:
        """The (fractional) pair that turns `rotations` times over the original context."""
        return head_dim * math.log(ORIGINAL / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair_with(FAST)), 0), min(math.ceil(pair_with(SLOW)), pairs - 1)
    slowed = np.clip((np.arange(pairs, dtype=np.float32) - low) / max(high - low, 0.001), 0, 1)
    return tuple(map(float, frequencies * (1 - slowed + slowed / FACTOR)))


MODEL = replace(llama.MODEL, describe=describe, tree=llama.with_blocks(Block))
