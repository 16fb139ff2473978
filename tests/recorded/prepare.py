"""Makes the models that the recorded commands are given: without MindBatch, and the same every time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from numpy.typing import NDArray
from safetensors.numpy import save_file

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 440, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0,
    "torch_dtype": "float32",
}  # fmt: skip
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
ADAPTED = ("q_proj", "v_proj", "down_proj")
ADAPTER_RANK = 3
LONG_AGO = 1_700_000_000
Arrays = Mapping[str, NDArray[Any]]


def prepare(folder: Path, tokenizer: Path) -> None:
    """Fills the folder. tokenizer: the folder of the shipped model."""
    _write_model(folder / "llama", LLAMA, llama_weights(LLAMA), tokenizer)
    half = {name: array.astype(np.float16) for name, array in llama_weights(LLAMA).items()}
    _write_model(folder / "llama_f16", {**LLAMA, "torch_dtype": "float16"}, half, tokenizer)
    _write_chat_model(folder / "chat", tokenizer)
    missing = dict(llama_weights(LLAMA))
    missing["model.layers.7.extra.weight"] = missing.pop("model.layers.1.mlp.up_proj.weight")
    _write_model(folder / "damaged", LLAMA, missing, tokenizer)
    _write_model(folder / "unknown_type", {**LLAMA, "model_type": "mamba"}, llama_weights(LLAMA), tokenizer)
    _write_model(
        folder / "unknown_key",
        {**LLAMA, "attn_window": 5, "hidden_act": "tanh"},
        llama_weights(LLAMA),
        tokenizer,
    )
    write_adapter(folder / "adapter", {"lora_alpha": 6})
    write_adapter(folder / "bad_adapter", {"lora_alpha": 6, "use_qalora": True, "bias": "all", "r": 4})
    (folder / "pickled").mkdir()
    (folder / "pickled/config.json").write_text(json.dumps(LLAMA))
    (folder / "pickled/pytorch_model.bin").write_bytes(b"\x80\x02}q\0.")
    write_side_by_side(folder / "side_by_side.safetensors")
    rows = {"name": ["a", "b"], "prompt": ["9 + 8 =", "three plus four is"], "label": [1, None]}
    pyarrow.parquet.write_table(pyarrow.table(rows), folder / "rows.parquet")
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))  # a reshard notes the times of files without digests


def llama_weights(config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Random weights under Hugging Face's names, large enough that outputs depend on the prompt."""
    chance = np.random.default_rng(11)
    hidden, inner, vocab = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    key_value = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(config["num_hidden_layers"]):
        own = {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (key_value, hidden),
            "self_attn.v_proj": (key_value, hidden), "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }  # fmt: skip
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in own.items()}
    shapes |= {"model.norm.weight": (hidden,), "lm_head.weight": (vocab, hidden)}
    return {name: (chance.normal(size=shape) * 0.4).astype(np.float32) for name, shape in shapes.items()}


def adapter_weights() -> dict[str, NDArray[np.float32]]:
    """lora_A and lora_B under PEFT's names."""
    chance, found = np.random.default_rng(12), {}
    for name, array in llama_weights(LLAMA).items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in ADAPTED:
            outputs, inputs = array.shape
            for which, shape in (("A", (ADAPTER_RANK, inputs)), ("B", (outputs, ADAPTER_RANK))):
                key = f"base_model.model.{module}.lora_{which}.weight"
                found[key] = chance.normal(size=shape).astype(np.float32)
    return found


def write_adapter(folder: Path, settings: Mapping[str, Any]) -> None:
    """A PEFT folder for the Llama."""
    content = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": ADAPTER_RANK, "target_modules": [*ADAPTED]}
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({**content, **settings}))
    save_file(adapter_weights(), folder / "adapter_model.safetensors")


def write_side_by_side(file: Path) -> None:
    """Base weights and an adapter's matrices in one file, named as MindFormers' training names them."""
    chance = np.random.default_rng(13)
    names = {"model.layers.0.attention.wq": (32, 32), "model.layers.0.attention.wv": (16, 32)}
    arrays: dict[str, NDArray[np.float32]] = {}
    for name, (outputs, inputs) in names.items():
        for key, shape in (
            ("weight", (outputs, inputs)),
            ("mindpet_delta_lora_a", (ADAPTER_RANK, inputs)),
            ("mindpet_delta_lora_b", (outputs, ADAPTER_RANK)),
        ):
            arrays[f"{name}.{key}"] = chance.normal(size=shape).astype(np.float32)
    save_file(arrays, file)


def _write_model(folder: Path, config: Mapping[str, Any], weights: Arrays, tokenizer: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    if weights:
        save_file(dict(weights), folder / "model.safetensors")
    for name in TOKENIZER:
        shutil.copy(tokenizer / name, folder / name)


def _write_chat_model(folder: Path, tokenizer: Path) -> None:
    """A Llama with a chat template, and settings of generation for decoding=model_defaults."""
    _write_model(folder, LLAMA, llama_weights(LLAMA), tokenizer)
    settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    settings["chat_template"] = (
        "{% for m in messages %}{% if m.role not in ('user', 'assistant', 'system', 'tool') %}"
        "{{ raise_exception('no such role: ' + m.role) }}{% endif %}"
        "[{{ m.role }}] {{ m.content }}\n{% endfor %}"
        "{% if tools %}({{ tools | length }} tools){% endif %}{% if loud %}!{% endif %}[assistant]"
    )
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(
        json.dumps({"do_sample": True, "top_k": 5, "temperature": 0.7, "eos_token_id": [0]})
    )
