"""Writes a Hugging Face folder of GPT-2 or Qwen2 as a GGUF file, for llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
from safetensors.numpy import load_file


def write_gguf(source: Path, target: Path) -> None:
    """Writes the config, the weights and, where it has one, the byte-level BPE tokenizer of a folder."""
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    kind = config["model_type"].upper()
    layers = config.get("n_layer") or config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind], layers)
    writer = gguf.GGUFWriter(target, config["model_type"])
    _write_sizes(writer, config, layers)
    _write_tokenizer(writer, source / "tokenizer.json", config["vocab_size"])
    for name, array in load_file(source / "model.safetensors").items():
        known = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise SystemExit(f"{name}: GGUF has no name for it")
        # GPT-2's matrices are stored by inputs.
        transposed = array.T if kind == "GPT2" and array.ndim == 2 and ".h." in name else array
        writer.add_tensor(known, transposed.copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_sizes(writer: Any, config: dict[str, Any], layers: int) -> None:
    width = config.get("n_embd") or config["hidden_size"]
    heads = config.get("n_head") or config["num_attention_heads"]
    writer.add_block_count(layers)
    writer.add_context_length(config.get("n_positions") or config["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(config.get("intermediate_size") or 4 * width)
    writer.add_head_count(heads)
    if config["model_type"] == "gpt2":
        writer.add_layer_norm_eps(config.get("layer_norm_epsilon", 1e-5))
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-6))
        writer.add_rope_freq_base(config.get("rope_theta", 10000.0))


def _write_tokenizer(writer: gguf.GGUFWriter, path: Path, size: int) -> None:
    writer.add_vocab_size(size)
    if not path.exists():
        writer.add_tokenizer_model("no_vocab")
        return
    tokenizer = json.loads(path.read_text())
    added = tokenizer["added_tokens"]
    tokens = tokenizer["model"]["vocab"] | {token["content"]: token["id"] for token in added}
    special = {token["id"] for token in added if token["special"]}
    kinds = [gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL for number in range(size)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(tokens, key=tokens.__getitem__))
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_eos_token_id(max(special))
    writer.add_bos_token_id(max(special))
