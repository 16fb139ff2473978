"""Writes tests/numerics/fixtures/processors.npz: transformers' logits processors on random logits.

Sampling's filters have settings of their own here; processor_cases.py makes the cases of all others.

Run with a Python that has torch and transformers 4.57; the tests need neither.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import processor_cases
import torch
from transformers import GenerationConfig, GenerationMixin, LogitsProcessorList

FIXTURE = Path(__file__).parents[1] / "numerics/fixtures/processors.npz"
PROMPT_LENGTH = 6
EOS_TOKEN_IDS = [2, 7]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.9},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 0.5},
    {"top_p": 0.05},
    {"top_p": 0.999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.8},
    {"min_length": 20},
    {"min_new_tokens": 30},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.8, "min_p": 0.05},
    {"repetition_penalty": 1.2, "temperature": 0.6, "top_p": 0.95},
    {
        "repetition_penalty": 1.1,
        "min_length": 20,
        "min_new_tokens": 12,
        "temperature": 0.9,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.02,
    },
]
"""Keyword arguments of GenerationConfig and of DecodingParams alike."""


def random_logits(seed: int) -> dict[str, np.ndarray]:
    """Logits [rows, V] by case: small and larger vocabularies, flat and peaked, and with many ties."""
    generator = np.random.default_rng(seed)
    small = generator.standard_normal((3, 61)) * 4
    peaked = generator.standard_normal((1, 2003)) * 3
    flat = generator.standard_normal((1, 2003)) * 0.5
    tied = np.round(generator.standard_normal((3, 61)) * 4) / 2
    cases = {"small": small, "peaked": peaked, "flat": flat, "tied": tied}
    return {name: logits.astype(np.float32) for name, logits in cases.items()}


def processors(setting: dict[str, Any]) -> LogitsProcessorList:
    """The processors that generate() would build for the setting, in its order."""
    config = GenerationConfig(do_sample=True, eos_token_id=EOS_TOKEN_IDS, **{"top_k": 0, **setting})
    config._eos_token_tensor = torch.tensor(EOS_TOKEN_IDS)
    return GenerationMixin()._get_logits_processor(config, input_ids_seq_length=PROMPT_LENGTH, device="cpu")


def expected_of_cases(seed: int) -> Iterator[tuple[processor_cases.Case, np.ndarray]]:
    """Each case with the scores [V] that transformers gives, but where those are not numbers."""
    scores = torch.from_numpy(processor_cases.random_scores(seed))
    for case in processor_cases.random_cases(seed):
        token_ids = torch.tensor([case.prompt + case.output])
        given = scores[case.scores : case.scores + 1].clone()
        expected = case_processors(case)(token_ids, given)[0].numpy()
        if not np.isnan(expected).any():
            yield case, expected


def case_processors(case: processor_cases.Case) -> LogitsProcessorList:
    """The processors that generate() would build for the case, in its order."""
    setting = dict(case.setting)
    modulus = setting.pop("modulus", None)
    if "sequence_bias" in setting:  # as a list it refuses token 0
        setting["sequence_bias"] = {tuple(word): bias for word, bias in setting["sequence_bias"]}
    config = GenerationConfig(eos_token_id=processor_cases.EOS_TOKEN_IDS, **setting)
    config._eos_token_tensor = torch.tensor(processor_cases.EOS_TOKEN_IDS)

    def allow(batch: int, token_ids: torch.Tensor) -> list[int]:
        return processor_cases.allowed_tokens(modulus, token_ids.tolist())

    return GenerationMixin()._get_logits_processor(
        config,
        input_ids_seq_length=len(case.prompt),
        encoder_input_ids=torch.tensor([case.prompt]),
        prefix_allowed_tokens_fn=None if modulus is None else allow,
        device="cpu",
    )


def main() -> None:
    """Write the fixture: logits, token ids and, for each setting, the scores that transformers gives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=FIXTURE)
    parser.add_argument("--seed", type=int, default=2024)
    arguments = parser.parse_args()
    arrays: dict[str, np.ndarray] = {}
    generator = np.random.default_rng(arguments.seed + 1)
    for name, logits in random_logits(arguments.seed).items():
        token_ids = generator.integers(0, 61, (len(logits), PROMPT_LENGTH + 9))
        arrays[f"{name}.logits"], arrays[f"{name}.token_ids"] = logits, token_ids
        for number, setting in enumerate(SETTINGS):
            scores = processors(setting)(torch.from_numpy(token_ids), torch.from_numpy(logits.copy()))
            arrays[f"{name}.{number}"] = scores.numpy()
    cases, expected = zip(*expected_of_cases(arguments.seed), strict=True)
    arrays["case_scores"] = processor_cases.random_scores(arguments.seed)
    arrays["cases"], arrays["case_results"] = np.array(json.dumps([*map(asdict, cases)])), np.stack(expected)
    meta = {"settings": SETTINGS, "prompt_length": PROMPT_LENGTH, "eos_token_ids": EOS_TOKEN_IDS}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(arguments.output, meta=np.array(json.dumps(meta)), **arrays)
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes, {len(cases)} cases")


if __name__ == "__main__":
    main()
