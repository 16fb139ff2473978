"""A GPT-2 of random weights in a folder as a user would have it: it runs in milliseconds and says nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors_writer import safetensors_bytes
from small_tokenizers import CHATML, byte_level

WIDTH, LAYERS, HEADS, POSITIONS = 32, 2, 2, 128


def write_small_gpt2(folder: Path, *, tokenizer: bool = True, chat_template: str | None = CHATML) -> Path:
    """Writes the folder; `<|im_end|>` (id 2) ends an answer. Without a tokenizer prompts are token ids."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = byte_level()
    vocab_size = backend.get_vocab_size()
    config = {
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_positions": POSITIONS,
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
    }
    _write_json(folder / "config.json", config)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(_weights(vocab_size)))
    if tokenizer:
        backend.save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
        if chat_template is not None:
            settings["chat_template"] = chat_template
        _write_json(folder / "tokenizer_config.json", settings)
    return folder


def _weights(vocab_size: int) -> dict[str, Any]:
    """Large enough that the outputs depend on the prompt."""
    random = np.random.default_rng(7)

    def normal(*shape: int) -> Any:
        return random.normal(0, 0.3, shape).astype(np.float32)

    weights = {"wte.weight": normal(vocab_size, WIDTH), "wpe.weight": normal(POSITIONS, WIDTH)}
    norms = ["ln_f"]
    for layer in range(LAYERS):
        norms += [f"h.{layer}.ln_1", f"h.{layer}.ln_2"]
        for name, into, out in (
            ("attn.c_attn", WIDTH, 3 * WIDTH),
            ("attn.c_proj", WIDTH, WIDTH),
            ("mlp.c_fc", WIDTH, 4 * WIDTH),
            ("mlp.c_proj", 4 * WIDTH, WIDTH),
        ):
            weights[f"h.{layer}.{name}.weight"] = normal(into, out)
            weights[f"h.{layer}.{name}.bias"] = normal(out)
    for name in norms:
        weights[f"{name}.weight"] = np.ones(WIDTH, np.float32)
        weights[f"{name}.bias"] = np.zeros(WIDTH, np.float32)
    return {f"transformer.{name}": array for name, array in weights.items()}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
