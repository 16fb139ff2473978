"""Writes tests/numerics/fixtures/encoders.npz: tiny encoder-decoders, their logits, greedy tokens and beams.

Run with a Python that has torch and transformers 4.57; the tests need neither. See make_model_fixtures.py.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_folders import ENCODERS, write_folder
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from make_model_fixtures import LEAST_GAP, PROMPTS, STEPS

BEAM_STEPS = 24
T5: dict[str, Any] = {
    "model_type": "t5",
    "vocab_size": 97,
    "d_model": 24,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
    "eos_token_id": None,
}
CASES: dict[str, tuple[dict[str, Any], str, int]] = {
    "t5": (T5, "float16", 1),
    "t5_gated": (
        T5
        | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "d_kv": 9, "num_heads": 2}
        | {"num_layers": 3, "num_decoder_layers": 2, "d_ff": 34},
        "bfloat16",
        3,
    ),
    "mt5": (
        T5
        | {"model_type": "mt5", "d_model": 36, "d_kv": 16, "num_heads": 4, "d_ff": 28, "vocab_size": 131}
        | {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 12, "num_layers": 3},
        "float32",
        2,
    ),
}


def spread(name: str, shape: list[int], tied: bool) -> float:
    """Half the width of the uniform distribution: scores are unscaled, so that queries are small."""
    if len(shape) == 1:
        return 0.3
    if name == "shared.weight" and tied:
        return 0.3
    if "relative_attention_bias" in name or name == "shared.weight":
        return 1.5
    matrices = 0.9 if tied else 0.4
    return matrices / 4 if name.endswith(".q.weight") else matrices


def described(settings: dict[str, Any], dtype: str, shards: int) -> dict[str, Any]:
    """Everything that the folder is made from."""
    config = AutoConfig.for_model(**settings)
    tied, state = config.tie_word_embeddings, AutoModelForSeq2SeqLM.from_config(config).state_dict()
    copies = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", *["lm_head.weight"] * tied}
    shapes = {name: list(tensor.shape) for name, tensor in state.items() if name not in copies}
    tensors = {name: [shape, spread(name, shape, tied)] for name, shape in shapes.items()}
    kept = config.to_diff_dict() | {"tie_word_embeddings": tied, "eos_token_id": None}
    kept.pop("transformers_version", None)
    return {"config": kept, "tensors": tensors, "dtype": dtype, "shards": shards}


def generated(model: Any, prompt: list[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Greedy tokens [STEPS], their logits, the best of 4 beams, and the least lead of a greedy choice."""
    ids, plain = torch.tensor([prompt]), {"do_sample": False, "eos_token_id": None}
    found = model.generate(
        ids, max_new_tokens=STEPS, num_beams=1, output_logits=True, return_dict_in_generate=True, **plain
    )
    logits = torch.cat(found.logits)
    top = logits.topk(2).values
    beams = model.generate(ids, max_new_tokens=BEAM_STEPS, num_beams=4, **plain)
    tokens = found.sequences[0, 1:].numpy()
    return tokens, logits.numpy(), beams[0, 1:].numpy(), float((top[:, 0] - top[:, 1]).min())


@torch.no_grad()
def main() -> None:
    """Prompts of many lengths whose greedy continuations are no matter of rounding."""
    arrays: dict[str, np.ndarray] = {}
    meta = {}
    for number, (name, case) in enumerate(CASES.items()):
        description, generator = described(*case), np.random.default_rng(number)
        with tempfile.TemporaryDirectory() as folder:
            description["digest"] = write_folder(Path(folder), description)
            model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
        lengths, prompts, rows = [*(40 - 3 * i for i in range(PROMPTS - 3)), 1, 2, 50], [], []
        for length in lengths:
            while True:
                prompt = generator.integers(2, model.config.vocab_size, length).tolist()
                row = generated(model, prompt)
                if row[-1] >= LEAST_GAP:
                    break
            prompts.append(prompt)
            rows.append(row)
        print(name, "different tokens:", [len({*row[0].tolist()}) for row in rows], rows[0][1].std())
        arrays |= {
            f"{name}.prompts": np.concatenate(prompts).astype(np.int16),
            f"{name}.lengths": np.array(lengths, np.int16),
            f"{name}.tokens": np.stack([row[0] for row in rows]).astype(np.int16),
            f"{name}.beams": np.stack([row[2] for row in rows]).astype(np.int16),
            f"{name}.logits": rows[0][1],
        }
        meta[name] = description
    np.savez_compressed(ENCODERS, meta=json.dumps(meta), **arrays)


if __name__ == "__main__":
    main()
