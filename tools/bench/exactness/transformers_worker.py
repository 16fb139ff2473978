"""Makes a random model with transformers, and its logits in float32 and float64.

Arguments: folder, model type, lengths of the prompts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
import transformers

VOCABULARY = 1000
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "max_position_embeddings": 4096,
}
GROUPED = {**SIZES, "num_key_value_heads": 4, "head_dim": 64}
SIZES_OF = {
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 512, "n_layer": 6, "n_head": 8, "n_positions": 4096},
    "gpt_neox": SIZES,
    "phi3": {**SIZES, "num_key_value_heads": 4, "original_max_position_embeddings": 4096},
}
NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
SPREAD = 0.05
"""Standard deviation of the weights: about what trained ones of this width have."""


@contextmanager
def in_float64() -> Iterator[None]:
    """Makes transformers compute in float64 what it computes in float32 in a model of any type."""
    names = {"float32": torch.float64, "float": torch.float64}
    with patch.multiple(torch, **names), patch.object(torch.Tensor, "float", torch.Tensor.double):
        torch.set_default_dtype(torch.float64)
        yield


@torch.inference_mode()
def main() -> None:
    """Writes the model, and LENGTH.npz for each length: ids, float32 and exact."""
    folder, name, *lengths = sys.argv[1:]
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **SIZES_OF.get(name, GROUPED), **NO_TOKENS)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(0, SPREAD)
    model.save_pretrained(folder)
    prompts = {int(length): torch.randint(0, VOCABULARY, (1, int(length))) for length in lengths}
    rounded = {length: model(ids).logits[0].numpy() for length, ids in prompts.items()}
    with in_float64():
        exact = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
        exact.load_state_dict(model.state_dict())
        for length, ids in prompts.items():
            logits = exact(ids).logits[0].numpy()
            assert logits.dtype == np.float64
            np.savez(
                Path(folder) / f"{length}.npz", ids=ids[0].numpy(), float32=rounded[length], exact=logits
            )
