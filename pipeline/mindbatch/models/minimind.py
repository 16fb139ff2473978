"""minimind: MiniMind's dense model, which has Llama's shape; its mixture of experts is refused."""

from __future__ import annotations

from dataclasses import replace

from mindbatch.models import llama
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_reader import ConfigReader

# Of MiniMind's own MiniMindConfig (2025: the models without norms of query and key heads).
DEFAULTS = llama.DEFAULTS | {
    "vocab_size": 6400,
    "hidden_size": 512,
    "intermediate_size": None,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
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
)


def describe(reader: ConfigReader) -> Architecture:
    """The architecture of a dense `minimind` configuration."""
    reader.needs("use_moe", [False])
    reader.needs("inference_rope_scaling", [False])
    reader.ignore(EXPERT_KEYS)
    width = reader.positive("hidden_size") * 8 // 3
    return llama.describe_family(reader, default_intermediate=-(-width // 64) * 64)


MODEL = replace(llama.MODEL, describe=describe, defaults=DEFAULTS)
