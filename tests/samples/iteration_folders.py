"""Checkpoints 2.0 that MindFormers has written (make_iteration_fixtures.py), and what they hold."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

FIXTURES = Path(__file__).parents[1] / "numerics/fixtures"
PACKED = {"2.0": ["iterations.tar.xz"], "2.1": ["iterations.tar.xz", "iterations_2_1.tar.xz"]}
"""By release of MindFormers, its archives: 2.1 saves the same tensors, and another JSON."""
CASES = {"a": 10, "b": 20, "c": 30, "d": 40, "e": 50}
"""By case the number of its iteration.

a: one rank. b: two slices. c: two copies x two slices x two stages, of which each shard is written once, in
bfloat16. d: two slices, and the optimizer's over copies. e: two copies.
"""
CONFIG = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
RENAMED = {
    "model.embed_tokens": "embedding.word_embeddings",
    "model.norm": "decoder.final_layernorm",
    "lm_head": "output_layer",
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "pre_mlp_layernorm",
    "self_attn.q_norm": "self_attention.q_layernorm",
    "self_attn.k_norm": "self_attention.k_layernorm",
    "self_attn.o_proj": "self_attention.linear_proj",
    "mlp.down_proj": "mlp.linear_fc2",
}


def unpacked_iterations(folder: Path, release: str = "2.0") -> Path:
    """Unpacks all cases into a folder, each with the config.json of its model."""
    for name in PACKED[release]:
        with tarfile.open(FIXTURES / name) as files:
            files.extractall(folder, filter="data")
    for case in CASES:
        (folder / case / "config.json").write_text(json.dumps(CONFIG))
    return folder


def expected_tensors(home: Path) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of a case under Hugging Face's names, from the values that MindFormers was given."""
    stored = np.load(home / "expected.npz")
    made = {
        f"{theirs}.weight": stored[f"{name}.weight"]
        for theirs, name in RENAMED.items()
        if f"{name}.weight" in stored
    }
    for layer in range(CONFIG["num_hidden_layers"]):  # type: ignore[call-overload]
        ours, place = f"model.layers.{layer}", f"decoder.layers.{layer}"
        for theirs, name in [*RENAMED.items()][3:]:
            made[f"{ours}.{theirs}.weight"] = stored[f"{place}.{name}.weight"]
        groups = stored[f"{place}.self_attention.linear_qkv.weight"].reshape(2, 4, 8, 32)
        for letter, heads in (("q", groups[:, :2]), ("k", groups[:, 2:3]), ("v", groups[:, 3:])):
            made[f"{ours}.self_attn.{letter}_proj.weight"] = heads.reshape(-1, 32)
        pairs = stored[f"{place}.mlp.linear_fc1.weight"].reshape(48, 2, 32)
        for number, which in enumerate(("gate", "up")):
            made[f"{ours}.mlp.{which}_proj.weight"] = pairs[:, number]
    return made
