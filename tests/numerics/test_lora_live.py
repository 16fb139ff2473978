"""Adapters beside a model compute what PEFT computes with them, in any batch."""

from pathlib import Path

import numpy as np
import pytest
from adapter_models import GEOMETRY, loaded, logits_of, runner_of
from lora_cases import base_logits, cases, ends_of_prompts, live_logits, prompts, write_base, write_case

from mindbatch.backends.mindformers import provider
from mindbatch.backends.model import Model
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.config_json.reader import NONE_IGNORED
from mindbatch.kernels.choice import choose_kernels
from mindbatch.parallel.context import initialise
from mindbatch.parallel.topology import WHOLE_MODEL

BASES = sorted({described["base"] for described in cases().values()})
QUICK = {"native": ("gpt2", "llama"), "reference": (), "mindformers": ()}
ALWAYS = {"native": BASES, "reference": ("gpt2", "qwen3"), "mindformers": ("qwen3",)}
RUN = {"native": BASES, "reference": BASES, "mindformers": ("qwen3",)}
TOLERANCE = {"native": 0.0, "reference": 1e-5, "mindformers": 0.0}
"""Of logits beside rows of other adapters."""
LOADED = ("classic", "all_linear", "rank_256")


def marks_of(base: str, kernels: str) -> list[pytest.MarkDecorator]:
    """MindSpore's operators take long to compile: two bases have matrices, DoRA, biases, saved layers."""
    if base in QUICK[kernels]:
        return []
    return [pytest.mark.slow] if base in ALWAYS[kernels] else [pytest.mark.slow, pytest.mark.on_demand]


def adapted(home: Path, base: str, kernels: str) -> Model:
    """The base with every adapter of it in a slot, by the kernels or by MindFormers' model."""
    initialise("CPU")
    names = [case for case, described in cases().items() if described["base"] == base]
    adapters = {name: write_case(home / name, name) for name in names}
    path = write_base(home / "base", base)
    if kernels == "mindformers":
        folder, spec = provider.open_folder(path, "auto", NONE_IGNORED, WHOLE_MODEL)
        fitted = provider.fit_adapters(spec, {name: open_adapter(each) for name, each in adapters.items()})
        model = provider.load(spec, folder, choose_kernels("auto", "CPU"), GEOMETRY, adapters=fitted)
    else:
        model = loaded(path, choose_kernels(kernels, "CPU"), adapters)
    assert model.adapters is not None
    for slot, name in enumerate(model.adapters.names, start=1):
        model.adapters.load(slot, name)
    return model


@pytest.mark.parametrize(
    ("base", "kernels"),
    [
        pytest.param(base, kernels, marks=marks_of(base, kernels))
        for kernels, bases in RUN.items()
        for base in bases
    ],
)
def test_logits_are_peft_s_in_any_batch(tmp_path: Path, base: str, kernels: str) -> None:
    model = adapted(tmp_path, base, kernels)
    runner = runner_of(model)
    assert model.adapters is not None
    alone = []
    for slot, name in enumerate(["base", *model.adapters.names]):
        alone.append(logits_of(runner, [(prompt, slot) for prompt in prompts()]))
        ours = np.stack([alone[slot][row][end] for row, end in ends_of_prompts()])
        expected = base_logits(base) if slot == 0 else live_logits(name)
        assert np.abs(ours - expected).max() <= 1e-4, name
    slots = (2, 0, 1, 3, 0, len(alone) - 1)
    mixed = list(zip(prompts() * 2, slots, strict=True))
    together, after_the_step = logits_of(runner, mixed), logits_of(runner, mixed, 1)
    for row, slot in enumerate(slots):
        expected = alone[slot][row % len(prompts())]
        np.testing.assert_allclose(together[row], expected, rtol=0, atol=TOLERANCE[kernels])
        np.testing.assert_allclose(after_the_step[row][0], expected[-1], atol=1e-5)


@pytest.mark.parametrize("kernels", ["native", "reference"])
def test_an_adapter_that_is_loaded_over_another(tmp_path: Path, kernels: str) -> None:
    """Nothing of the one before is left, also where the new one adds less; the graphs are the same."""
    model = adapted(tmp_path, "llama", kernels)
    runner, bank = runner_of(model), model.adapters
    assert bank is not None
    few, many, wide = (bank.names.index(f"llama_{name}") + 1 for name in LOADED)

    def found(slot: int) -> np.ndarray:
        return np.concatenate(logits_of(runner, [(prompt, slot) for prompt in prompts()]))

    expected = found(few)
    for slot in (many, wide):
        assert np.abs(found(slot) - expected).max() > 1e-3
        bank.load(slot, "llama_classic")
        np.testing.assert_array_equal(found(slot), expected)
