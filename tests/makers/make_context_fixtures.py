"""Writes tests/numerics/fixtures/contexts.npz: tiny ChatGLM-6Bs, whose prompts have a context.

Their reference is tests/makers/twins.py. See make_model_fixtures.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from model_folders import CONTEXTS

from make_model_fixtures import write_references
from twin_models import twin_case
from twins import Chatglm6bTwin

MASK, GMASK, START = 90, 91, 94
CHATGLM_6B: dict[str, Any] = {
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "bos_token_id": START,
    "eos_token_id": None,
    "mask_token_id": MASK,
    "gmask_token_id": GMASK,
    "pad_token_id": 3,
    "hidden_size": 32,
    "inner_hidden_size": 56,
    "layernorm_epsilon": 1e-5,
    "max_sequence_length": 128,
    "num_attention_heads": 4,
    "num_layers": 2,
    "position_encoding_2d": True,
    "vocab_size": 101,
}
UNTIED = CHATGLM_6B | {"tie_word_embeddings": False}
CASES = {
    "chatglm_6b": (UNTIED, "float16", 2),
    "chatglm_6b_odd": (
        UNTIED | {"hidden_size": 60, "num_attention_heads": 3, "inner_hidden_size": 37, "num_layers": 3},
        "float32",
        1,
    ),
    "chatglm_6b_tied": (
        CHATGLM_6B | {"hidden_size": 40, "num_attention_heads": 2, "inner_hidden_size": 91, "vocab_size": 97},
        "float16",
        3,
    ),
}


def with_context(number: int, prompt: list[int]) -> list[int]:
    """A random prompt with what makes a context of its tokens, or of some of them.

    Prompts begin differently: what follows a context's beginning depends on all of it.
    """
    plain = [number, *(token % MASK for token in prompt[1:])]
    half = len(plain) // 2
    if number % 5 == 3:
        return [*plain[:half], MASK, *plain[half:], START]
    cut = half if number % 4 == 2 else len(plain)
    return [*plain[:cut], GMASK, START, *plain[cut:]]


if __name__ == "__main__":
    cases = {name: twin_case(Chatglm6bTwin, *described) for name, described in CASES.items()}
    write_references(CONTEXTS, {name: replace(case, dress=with_context) for name, case in cases.items()})
