"""A tiny TeleChat2 as transformers' Llama, for transformers has no TeleChat2.

It is a Llama with biases on two projections only, and with each head's key and value in one tensor.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from make_model_fixtures import GROUPED, Case, spread

HEADS = GROUPED["num_key_value_heads"]
CONFIG: dict[str, Any] = {
    "model_type": "telechat",
    "vocab_size": GROUPED["vocab_size"],
    "hidden_size": GROUPED["hidden_size"],
    "ffn_hidden_size": GROUPED["intermediate_size"],
    "n_layer": GROUPED["num_hidden_layers"],
    "n_head": GROUPED["num_attention_heads"],
    "num_key_value_heads": HEADS,
    "layer_norm_epsilon": GROUPED["rms_norm_eps"],
    "training_seqlen": GROUPED["max_position_embeddings"],
    "base_seqlen": GROUPED["max_position_embeddings"],
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}
LLAMA_NAMES = {
    "transformer.word_embeddings.": "model.embed_tokens.",
    "transformer.ln_f.": "model.norm.",
    "transformer.h.": "model.layers.",
    ".self_attention.query.": ".self_attn.q_proj.",
    ".self_attention.dense.": ".self_attn.o_proj.",
}
KEY_VALUE = ".self_attention.key_value."


def telechat2_case() -> Case:
    """Sizes of GROUPED, with the names of TeleChat2's checkpoints."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["ffn_hidden_size"]
    vocabulary = [CONFIG["vocab_size"], hidden]
    kept = 2 * HEADS * hidden // CONFIG["n_head"]
    shapes = {
        "transformer.word_embeddings.weight": vocabulary,
        "transformer.ln_f.weight": [hidden],
        "lm_head.weight": vocabulary,
    }
    for layer in range(CONFIG["n_layer"]):
        name = f"transformer.h.{layer}"
        shapes |= {
            f"{name}.input_layernorm.weight": [hidden],
            f"{name}.self_attention.query.weight": [hidden, hidden],
            f"{name}.self_attention.key_value.weight": [kept, hidden],
            f"{name}.self_attention.dense.weight": [hidden, hidden],
            f"{name}.self_attention.dense.bias": [hidden],
            f"{name}.post_attention_layernorm.weight": [hidden],
            f"{name}.mlp.gate_proj.weight": [inner, hidden],
            f"{name}.mlp.up_proj.weight": [inner, hidden],
            f"{name}.mlp.down_proj.weight": [hidden, inner],
            f"{name}.mlp.down_proj.bias": [hidden],
        }
    tensors = {name: [shape, spread("telechat", name, shape, False)] for name, shape in shapes.items()}
    return Case({"config": CONFIG, "tensors": tensors, "dtype": "float32", "shards": 1}, load)


def load(folder: Path) -> PreTrainedModel:
    """The folder's tensors in a Llama whose other biases are 0."""
    model = LlamaForCausalLM(
        LlamaConfig(
            **GROUPED,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="eager",
        )
    ).eval()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        tensors |= llama_tensors(name, tensor)
    zeros = {
        name: torch.zeros_like(tensor)
        for name, tensor in model.state_dict().items()
        if name.endswith(".bias")
    }
    model.load_state_dict(zeros | tensors)
    return model


def llama_tensors(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """What Llama makes of a tensor of TeleChat2: of each head the key stands before the value."""
    for own, llama in LLAMA_NAMES.items():
        name = name.replace(own, llama)
    if KEY_VALUE not in name:
        return {name: tensor}
    keys, values = tensor.unflatten(0, (HEADS, 2, -1)).unbind(1)
    return {
        name.replace(KEY_VALUE, ".self_attn.k_proj."): keys.flatten(0, 1),
        name.replace(KEY_VALUE, ".self_attn.v_proj."): values.flatten(0, 1),
    }
