"""Writes tests/numerics/fixtures/pangu.npz: tiny models of PanGu-alpha. See make_model_fixtures.py.

Their reference is tests/makers/twins.py.
"""

from __future__ import annotations

from typing import Any

from model_folders import PANGU

from make_model_fixtures import Case, write_references
from twin_models import twin_case
from twins import PanguTwin

BASE: dict[str, Any] = {
    "model_type": "gpt_pangu",
    "architectures": ["GPTPanguForCausalLM"],
    "vocab_size": 101,
    "max_position_embeddings": 128,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_layers": 3,
    "num_heads": 4,
    "activation_function": "gelu",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "bos_token_id": None,
    "eos_token_id": None,
}
CASES = {
    "pangu_alpha": (BASE, "float16", 2),
    "pangu_alpha_quick": (
        BASE | {"activation_function": "quick_gelu", "hidden_size": 30, "num_heads": 3, "num_layers": 2},
        "float32",
        1,
    ),
    "pangu_alpha_one": (
        BASE
        | {"num_layers": 1, "hidden_size": 20, "num_heads": 2, "intermediate_size": None, "vocab_size": 97}
        | {"scale_attn_weights": False, "tie_word_embeddings": False},
        "float16",
        1,
    ),
}

EMBEDDING_SPREAD = 0.25
"""No norm is in front of the head: logits grow with it."""


def case_of(config: dict[str, Any], dtype: str, shards: int) -> Case:
    case = twin_case(PanguTwin, config, dtype, shards)
    for name in ("transformer.wte.weight", "lm_head.weight"):
        if name in case.description["tensors"]:
            case.description["tensors"][name][1] = EMBEDDING_SPREAD
    return case


if __name__ == "__main__":
    write_references(PANGU, {name: case_of(*described) for name, described in CASES.items()})
