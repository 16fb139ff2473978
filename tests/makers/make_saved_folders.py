"""Writes the tiny models of the tests as the transformers of this Python saves them, with its greedy tokens.

    PYTHON tests/makers make_saved_folders FOLDER

PYTHON has torch and a transformers of 4.57 or later. FOLDER/CASE is what `save_pretrained` writes of every
case of the tests' fixtures, FOLDER/tokens.json prompts and the tokens that greedy generation adds.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from model_folders import ENCODERS, FIXTURE, dense_cases, descriptions, ragged, write_folder
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

STEPS, PROMPTS = 24, 5


def loaded(folder: str) -> Any:
    """The model of a folder; an exception of its own where transformers has no class for it."""
    config = AutoConfig.from_pretrained(folder)
    loader = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    # Of Falcon the plain attention adds ALiBi twice.
    attention = "sdpa" if config.model_type == "falcon" else "eager"
    model = loader.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
    if hasattr(
        model, "set_experts_implementation"
    ):  # the other ones need sizes that are multiples of 16 bytes
        model.set_experts_implementation("eager")
    return model


def greedy(model: Any, prompt: list[int]) -> list[int]:
    """The tokens that follow a prompt."""
    ids = torch.tensor([prompt])
    found = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=STEPS, do_sample=False, pad_token_id=0
    )
    start = 1 if model.config.is_encoder_decoder else len(prompt)
    return found[0, start:].tolist()


@torch.no_grad()
def main(target: Path) -> None:
    """Saves every case that transformers has a class for."""
    cases = (
        dict.fromkeys(descriptions(), FIXTURE)
        | dict.fromkeys(descriptions(ENCODERS), ENCODERS)
        | dense_cases()
    )
    written = {}
    for case, fixture in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            write_folder(Path(folder), descriptions(fixture)[case])
            try:
                model = loaded(folder)
            except (
                Exception
            ) as error:  # each release has its own for a type or settings that it does not take
                print(f"{case}: left out: {type(error).__name__}")
                continue
        model.save_pretrained(target / case)
        prompts = ragged(case, fixture)[:PROMPTS]
        written[case] = [[prompt, greedy(model, prompt)] for prompt in prompts]
    (target / "tokens.json").write_text(json.dumps(written))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
