"""Adapters beside one of MindFormers' models compute what PEFT computes with them."""

from pathlib import Path

import numpy as np
import pytest
from adapter_models import GEOMETRY, logits_of, runner_of
from lora_cases import base_logits, cases, ends_of_prompts, live_logits, prompts, write_base, write_case

from mindbatch.backends.mindformers import provider
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.kernels.choice import choose_kernels
from mindbatch.models.config_reader import NONE_IGNORED
from mindbatch.parallel.context import initialise
from mindbatch.parallel.topology import WHOLE_MODEL

pytestmark = pytest.mark.slow
BASE = "qwen3"


def test_logits_are_peft_s_in_any_batch(tmp_path: Path) -> None:
    """Matrices, DoRA, biases, embeddings and saved heads; the head is the embedding."""
    initialise("CPU")
    names = [case for case, its in cases().items() if its["base"] == BASE]
    opened = {name: open_adapter(write_case(tmp_path / name, name)) for name in names}
    home = write_base(tmp_path / "base", BASE)
    folder, spec = provider.open_folder(home, "auto", NONE_IGNORED, WHOLE_MODEL)
    kernels = choose_kernels("auto", "CPU")
    model = provider.load(spec, folder, kernels, GEOMETRY, adapters=provider.fit_adapters(spec, opened))
    runner, bank = runner_of(model), model.adapters
    assert bank is not None
    for slot, name in enumerate(bank.names, start=1):
        bank.load(slot, name)
    alone = {}
    for slot, name in enumerate(["base", *bank.names]):
        rows = logits_of(runner, [(prompt, slot) for prompt in prompts()])
        ours = np.stack([rows[row][end] for row, end in ends_of_prompts()])
        expected = base_logits(BASE) if slot == 0 else live_logits(name)
        assert np.abs(ours - expected).max() <= 1e-4, name
        alone[slot] = rows[0]
    mixed = [(prompts()[0], slot) for slot in (2, 0, 1, 3)]
    for (_, slot), found in zip(mixed, logits_of(runner, mixed), strict=True):
        np.testing.assert_array_equal(found, alone[slot])
