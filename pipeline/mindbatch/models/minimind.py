"""minimind: MiniMind's dense model, which has Llama's shape; its mixture of experts is refused."""

from __future__ import annotations

from mindbatch.layers.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader
from mindbatch.models.llama import PREFIX, UNUSED_TENSORS, describe_family, tensors

__all__ = ["PREFIX", "UNUSED_TENSORS", "describe", "tensors"]

# Settings of the mixture of experts: without effect in a dense model.
EXPERT_KEYS = (
    "num_experts_per_tok",
    "n_routed_experts",
    "n_shared_experts",
    "scoring_func",
    "aux_loss_alpha",
    "seq_aux",
    "norm_topk_prob",
)


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a dense `minimind` configuration."""
    reader.needs("use_moe", [False])
    reader.needs("inference_rope_scaling", [False])
    reader.ignore(EXPERT_KEYS)
    return describe_family(reader, default_kv_heads=2, default_max_positions=32768, default_tied=True)
