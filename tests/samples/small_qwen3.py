"""A Qwen3 of random weights in a folder as a user would have it."""

import json
from pathlib import Path

import numpy as np
from safetensors_writer import safetensors_bytes
from small_tokenizers import CHATML, byte_level

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.model_spec.registry import describe, tensor_specs
from mindformers_configs import config


def write_small_qwen3(folder: Path) -> Path:
    """Writes the folder; `<|im_end|>` (id 2) ends an answer."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = byte_level()
    settings = config("qwen3", vocab_size=backend.get_vocab_size(), eos_token_id=2, tie_word_embeddings=True)
    (folder / "config.json").write_text(json.dumps(settings))
    random = np.random.default_rng(11)
    weights = {
        name: (random.normal(0, 0.3, shape) + (len(shape) == 1)).astype(np.float32)
        for name, shape in source_shapes(tensor_specs(describe(settings))).items()
    }
    (folder / "model.safetensors").write_bytes(safetensors_bytes(weights))
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "chat_template": CHATML,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return folder
