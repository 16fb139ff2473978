"""Rank folders of small models, as `mindbatch reshard` makes them for MindFormers' legacy models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindbatch.config.compose import compose_task
from mindbatch.tasks.registry import TASKS
from reshard_models import write_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
CHATGLM: dict[str, Any] = {
    "model_type": "chatglm",
    "padded_vocab_size": 96,
    "hidden_size": 64,
    "ffn_hidden_size": 96,
    "num_layers": 1,
    "num_attention_heads": 4,
    "kv_channels": 16,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "seq_length": 64,
    "add_qkv_bias": True,
    "rope_ratio": 50,
}


def rank_folder(
    home: Path, *words: str, dtype: str = "BF16", config: Mapping[str, Any] = LLAMA, **changed: Any
) -> Path:
    """The rank files of a model with random weights. words: of the command; changed: keys of config.json."""
    source = write_model(home / "source", {**config, **changed}, dtype)
    command = [f"source={source}", f"target.dir={home / 'ranks'}", "target.names=mindformers", *words]
    task = TASKS["reshard"]
    assert task.run(compose_task(task, command).finish()) == 0
    return home / "ranks"
