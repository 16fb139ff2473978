"""Adapters beside a model compute what PEFT computes with them, all those of a base in one model."""

from pathlib import Path

import numpy as np
import pytest
from adapter_models import loaded, logits_of, runner_of
from lora_cases import base_logits, cases, ends_of_prompts, live_logits, prompts, write_base, write_case

from mindbatch.kernels.choice import choose_kernels
from mindbatch.parallel.context import initialise

BASES = sorted({described["base"] for described in cases().values()})
QUICK = {"native": ("gpt2", "llama"), "reference": ()}
ALWAYS = {"native": BASES, "reference": ("gpt2", "qwen3")}


def marks_of(base: str, kernels: str) -> list[pytest.MarkDecorator]:
    """MindSpore's operators take long to compile: two bases have matrices, DoRA, biases, saved layers."""
    if base in QUICK[kernels]:
        return []
    return [pytest.mark.slow] if base in ALWAYS[kernels] else [pytest.mark.slow, pytest.mark.on_demand]


@pytest.mark.parametrize(
    ("base", "kernels"),
    [pytest.param(base, kernels, marks=marks_of(base, kernels)) for kernels in QUICK for base in BASES],
)
def test_logits_are_peft_s(tmp_path: Path, base: str, kernels: str) -> None:
    initialise("CPU")
    names = [case for case, its in cases().items() if its["base"] == base]
    adapters = {name: write_case(tmp_path / name, name) for name in names}
    model = loaded(write_base(tmp_path / "base", base), choose_kernels(kernels, "CPU"), adapters)
    runner, bank = runner_of(model), model.adapters
    assert bank is not None
    for slot, name in enumerate(bank.names, start=1):
        bank.load(slot, name)
    for slot, name in enumerate(["base", *bank.names]):
        rows = logits_of(runner, [(prompt, slot) for prompt in prompts()])
        ours = np.stack([rows[row][end] for row, end in ends_of_prompts()])
        expected = base_logits(base) if slot == 0 else live_logits(name)
        assert np.abs(ours - expected).max() <= 1e-4, name
