"""config.json of published models, as their owners or a later transformers wrote them: all are read.

published_configs.jsonl holds facts collected from public places: name, source, parameters (as published for
the model, where that is known) and the content of config.json.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mindbatch.models.registry import MODEL_TYPES, describe, tensor_specs
from mindbatch.models.tensor_spec import source_shapes

ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (Path(__file__).parent / "published_configs.jsonl").read_text("utf-8").splitlines()
]


def test_every_type_is_among_them() -> None:
    """But for TeleChat's types, whose published files are not to be had here."""
    assert len({row["name"] for row in ROWS}) == len(ROWS) >= 40
    assert {describe(row["config"]).model_type for row in ROWS} == {*MODEL_TYPES} - {"telechat", "telechat3"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_a_published_config_is_read(row: dict[str, Any]) -> None:
    config = row["config"]
    arch = describe(config)
    theirs = {
        "hidden_size": arch.hidden_size,
        "n_embd": arch.hidden_size,
        "num_hidden_layers": arch.num_layers,
        "n_layer": arch.num_layers,
        "num_attention_heads": arch.heads,
        "n_head": arch.heads,
        "num_key_value_heads": arch.heads if arch.latent else arch.kv_heads,
        "head_dim": arch.head_dim,
        "vocab_size": arch.vocab_size,
        "max_position_embeddings": arch.max_positions,
        "rms_norm_eps": arch.norm_epsilon,
        "tie_word_embeddings": arch.tied,
    }
    if arch.model_type == "glm_moe_dsa":
        theirs["max_position_embeddings"] = config["max_position_embeddings"]
        assert arch.max_positions == config["index_topk"]
    assert {key: value for key, value in theirs.items() if key in config} == {
        key: config[key] for key in theirs.keys() & config
    }
    by_layer = arch.model_type in (
        *("cohere2", "exaone4", "gemma2", "gemma3_text", "gemma4_text", "gpt_oss", "llama4_text", "olmo3"),
    )
    key = "attention_chunk_size" if arch.windows_are_chunks else "sliding_window"
    is_used = by_layer or arch.model_type in ("mistral", "phi3", "starcoder2")
    window = config.get("text_config", config).get(key) if is_used else 0
    assert set(arch.windows) == {window or 0, *([0] if by_layer else [])}
    if row["parameters"] is not None:
        shapes = source_shapes(tensor_specs(arch)).values()
        assert sum(map(math.prod, shapes)) == row["parameters"]
