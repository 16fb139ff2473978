"""Records what transformers computes for published models made small, with random weights.

    PYTHON tests/makers make_published_fixtures [NAME ...]

PYTHON has torch and transformers 5. Of tests/published all are recorded that are not yet, or those that are
named: in tests/numerics/fixtures/published.json.xz, by name, the tensors as transformers saves them, a
prompt, the tokens of its greedy continuation, and the logits that the last of these is the best of.
"""

from __future__ import annotations

import json
import lzma
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from model_folders import write_folder
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM

from published_configs import RECORDED, published
from small_published import VOCABULARY, description, small

PROMPT_LENGTH, STEPS = 20, 6


def class_of(folder: Path) -> Any:
    """The class that config.json names, or the one for its model_type."""
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    names = getattr(config, "architectures", None) or [""]
    return getattr(transformers, names[0], AutoModelForCausalLM)


def recorded(name: str, folder: Path) -> dict[str, Any]:
    """What the model saves, loads and computes."""
    config = small(published()[name].config)
    (folder / "config.json").write_text(json.dumps(config))
    model_class = class_of(folder)
    from_config = getattr(model_class, "_from_config", None) or model_class.from_config
    from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        shapes = {tensor: file.get_slice(tensor).get_shape() for tensor in file.keys()}  # noqa: SIM118
    write_folder(folder, description(config, shapes))
    # Of Falcon the plain attention adds ALiBi twice.
    attention = "sdpa" if config["model_type"] == "falcon" else "eager"
    model, report = model_class.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, output_loading_info=True
    )
    assert not report["missing_keys"], report
    assert not report["unexpected_keys"], report
    if hasattr(model, "set_experts_implementation"):  # others need sizes that are multiples of 16 bytes
        model.set_experts_implementation("eager")
    torch.manual_seed(len(name))
    prompt = torch.randint(3, VOCABULARY, (PROMPT_LENGTH,)).tolist()
    # Of Llama 4 5.24's whole class fails on what its language model gives.
    tokens, logits = greedy(
        model.language_model if config["model_type"] == "llama4" else model.eval(), prompt
    )
    return {"tensors": shapes, "prompt": prompt, "tokens": tokens, "logits": logits}


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The tokens that follow a prompt, and the logits that the last of them is the best of."""
    is_encoder_decoder = model.config.is_encoder_decoder
    written = [model.config.decoder_start_token_id or 0] if is_encoder_decoder else list(prompt)
    for _ in range(STEPS):
        if is_encoder_decoder:
            output = model(torch.tensor([prompt]), decoder_input_ids=torch.tensor([written]))
        else:
            output = model(torch.tensor([written]), use_cache=False)
        last = output.logits[0, -1]
        written.append(int(last.argmax()))
    return written[-STEPS:], [float(f"{number:.7g}") for number in last.tolist()]


@torch.no_grad()
def main(names: list[str]) -> None:
    """Writes the fixture, and says what transformers does not take."""
    known = json.loads(lzma.decompress(RECORDED.read_bytes())) if RECORDED.exists() else {}
    for name in names or [name for name in published() if name not in known]:
        with tempfile.TemporaryDirectory() as folder:
            try:
                known[name] = recorded(name, Path(folder))
            except Exception as error:  # each type has its own for what it does not take
                print(f"{name}: left out: {type(error).__name__}: {str(error)[:300]}", flush=True)
        kept = {name: known[name] for name in published() if name in known}
        RECORDED.write_bytes(lzma.compress(json.dumps(kept).encode()))


if __name__ == "__main__":
    main(sys.argv[1:])
