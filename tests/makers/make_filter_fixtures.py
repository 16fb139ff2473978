"""Writes tests/numerics/fixtures/filters.npz: which tokens transformers' sampling filters keep.

Run with a Python that has torch and transformers 4.57; the tests need neither. With transformers 5 it writes
filters_top_h.npz instead, the settings with the one filter that 4.57 lacks, on the same logits.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import GenerationConfig, GenerationMixin

FIXTURES = Path(__file__).parents[1] / "numerics/fixtures"
EOS_TOKEN_IDS = [2, 7]
BEAMS = 3
SETTINGS: list[dict[str, Any]] = [
    {"typical_p": 0.2},
    {"typical_p": 0.9},
    {"typical_p": 0.999},
    {"typical_p": 0.01},
    {"epsilon_cutoff": 0.0003},
    {"epsilon_cutoff": 0.02},
    {"epsilon_cutoff": 0.9},
    {"eta_cutoff": 0.0003},
    {"eta_cutoff": 0.01},
    {"eta_cutoff": 0.6},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_p": 0.999},
    {"temperature": 0.7, "typical_p": 0.9},
    {"top_k": 40, "typical_p": 0.8},
    {"top_p": 0.9, "epsilon_cutoff": 0.01},
    {"min_p": 0.02, "eta_cutoff": 0.005},
    {"typical_p": 0.95, "epsilon_cutoff": 0.001, "eta_cutoff": 0.002},
    {
        "temperature": 1.3,
        "top_k": 300,
        "top_p": 0.95,
        "min_p": 0.01,
        "typical_p": 0.9,
        "epsilon_cutoff": 0.002,
    },
    {"top_k": 1, "num_beams": BEAMS},
    {"top_p": 0.01, "num_beams": BEAMS},
    {"min_p": 1.0, "num_beams": BEAMS},
    {"typical_p": 0.01, "num_beams": BEAMS},
    {"epsilon_cutoff": 0.99, "num_beams": BEAMS},
    {"eta_cutoff": 0.99, "num_beams": BEAMS},
    {"temperature": 0.6, "top_k": 30, "top_p": 0.5, "typical_p": 0.3, "eta_cutoff": 0.3, "num_beams": BEAMS},
]
"""Keyword arguments of GenerationConfig and of DecodingParams alike."""
TOP_H_SETTINGS: list[dict[str, Any]] = [
    {"top_h": 0.05},
    {"top_h": 0.4},
    {"top_h": 0.7},
    {"top_h": 0.99},
    {"temperature": 0.6, "top_h": 0.5},
    {"temperature": 2.0, "top_h": 0.6, "top_k": 20},
    {"top_h": 0.8, "top_p": 0.7, "min_p": 0.05},
    {"top_h": 0.05, "epsilon_cutoff": 0.1, "num_beams": BEAMS},
    {"top_h": 0.3, "epsilon_cutoff": 0.1, "num_beams": BEAMS},
    {"top_h": 0.6, "eta_cutoff": 0.6, "num_beams": BEAMS},
    {"top_h": 0.3, "top_k": 3, "min_p": 0.5, "typical_p": 0.01, "epsilon_cutoff": 0.001, "num_beams": BEAMS},
    {"top_h": 0.6, "top_p": 0.01, "eta_cutoff": 0.6, "eos_token_id": [0, 1, 2, 3, 4], "num_beams": BEAMS},
]


def random_logits(seed: int) -> dict[str, np.ndarray]:
    """Logits [rows, V] by case: of few tokens, of many that are peaked, of more that are nearly alike."""
    generator = np.random.default_rng(seed)
    small = generator.standard_normal((3, 61)) * 4
    peaked = generator.permutation(np.log(np.arange(1, 2501)) * -1.5)[np.newaxis]
    peaked = peaked + generator.standard_normal((1, 2500))
    flat = generator.standard_normal((1, 5000))
    return {
        "small": small.astype(np.float32),
        "peaked": peaked.astype(np.float32),
        "flat": flat.astype(np.float32),
    }


def kept(setting: dict[str, Any], logits: np.ndarray) -> np.ndarray:
    """Which tokens [rows, V] are left by the filters that generate() would build for the setting."""
    config = GenerationConfig(do_sample=True, **{"eos_token_id": EOS_TOKEN_IDS, "top_k": 0, **setting})
    config._eos_token_tensor = torch.tensor(config.eos_token_id)
    processors = GenerationMixin()._get_logits_processor(config, input_ids_seq_length=1, device="cpu")
    token_ids = torch.zeros((len(logits), 1), dtype=torch.int64)
    return torch.isfinite(processors(token_ids, torch.from_numpy(logits.copy()))).numpy()


def main() -> None:
    """Write the fixture: logits and, for each setting, the tokens kept, as packed bits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=FIXTURES)
    parser.add_argument("--seed", type=int, default=2026)
    arguments = parser.parse_args()
    with_top_h = hasattr(transformers, "TopHLogitsWarper")
    settings = TOP_H_SETTINGS if with_top_h else SETTINGS
    arrays: dict[str, np.ndarray] = {}
    for name, logits in random_logits(arguments.seed).items():
        if not with_top_h:
            arrays[f"{name}.logits"] = logits
        for number, setting in enumerate(settings):
            arrays[f"{name}.{number}"] = np.packbits(kept(setting, logits), axis=1)
    meta = {
        "settings": settings,
        "num_end_tokens": len(EOS_TOKEN_IDS),
        "transformers": transformers.__version__,
    }
    path = arguments.folder / ("filters_top_h.npz" if with_top_h else "filters.npz")
    np.savez_compressed(path, meta=np.array(json.dumps(meta)), **arrays)
    print(f"{path}: {path.stat().st_size} bytes, transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
