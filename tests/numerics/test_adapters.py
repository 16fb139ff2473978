"""Tokens computed with adapters: as with a model that the adapter is merged in, whatever else is there."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from adapter_models import (
    loaded,
    logits,
    logits_of,
    prompts,
    runner_of,
    targets_of,
    write_adapter,
    write_merged,
)
from model_folders import descriptions, write_folder

from mindbatch.engine.model_runner import ModelRunner
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.interface import Kernels
from mindbatch.models.model import Model
from mindbatch.parallel.context import initialise

pytestmark = pytest.mark.slow

RANKS = {"one": 1, "three": 3, "wide": 40, "part": 8}
SLOTS = (2, 0, 1, 3, 0, 4)
MODELS = ("gpt2", "llama3", "qwen3", "gemma")
"""Tied heads and others; one matrix for queries, keys and values, and three."""
ALWAYS = [*product(MODELS, ("native",)), ("gpt2", "reference")]
# MindSpore's operators take long to compile; test_lora_live.py has another model with them.
CASES = [
    pytest.param(pair, id="-".join(pair), marks=[pytest.mark.on_demand] * (pair not in ALWAYS))
    for pair in product(MODELS, ("native", "reference"))
]


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    initialise("CPU")
    return request.param


@pytest.fixture(scope="module")
def kernels(pair: tuple[str, str]) -> Kernels:
    return choose_kernels(pair[1], "CPU")


@pytest.fixture(scope="module")
def case(pair: tuple[str, str]) -> str:
    return pair[0]


@pytest.fixture(scope="module")
def folders(case: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Adapters by name, the base, and by "NAME+" the models with them merged."""
    home = tmp_path_factory.mktemp(case)
    write_folder(home / "base", descriptions()[case] | {"dtype": "float32"})
    for name, rank in RANKS.items():
        targets = targets_of(case)[-2:] if name == "part" else targets_of(case)
        write_merged(home / f"{name}+", case, write_adapter(home / name, case, rank, targets))
    return {path.name: path for path in home.iterdir()}


@pytest.fixture(scope="module")
def model(folders: dict[str, Path], kernels: Kernels) -> Model:
    model = loaded(folders["base"], kernels, {name: folders[name] for name in RANKS})
    assert model.adapters is not None
    for slot, name in enumerate(model.adapters.names, start=1):
        model.adapters.load(slot, name)
    return model


@pytest.fixture(scope="module")
def runner(model: Model) -> ModelRunner:
    return runner_of(model)


def test_every_row_has_the_logits_of_its_merged_model(
    case: str, runner: ModelRunner, folders: dict[str, Path]
) -> None:
    """The C++ kernels compute merged models: test_equivalence.py compares the kinds without adapters."""
    plain = choose_kernels("native", "CPU")
    found = logits_of(runner, list(zip(prompts(case), SLOTS, strict=True)))
    names = ["base", *(f"{name}+" for name in RANKS)]
    for slot, name in enumerate(names):
        rows = [row for row, its in enumerate(SLOTS) if its == slot]
        alone = logits(loaded(folders[name], plain), [(prompts(case)[row], 0) for row in rows])
        for row, expected in zip(rows, alone, strict=True):
            np.testing.assert_allclose(found[row], expected, atol=1e-4, err_msg=name)
    base = logits_of(runner, [(prompts(case)[0], 0)])[0]
    assert np.abs(found[0] - base).max() > 0.1, "the adapters must be seen to act"


def test_logits_computed_after_the_step_are_those_of_the_step(case: str, runner: ModelRunner) -> None:
    """The head alone is another graph, and takes slots too."""
    rows = list(zip(prompts(case), SLOTS, strict=True))
    for whole, last in zip(logits_of(runner, rows), logits_of(runner, rows, 1), strict=True):
        np.testing.assert_allclose(last[0], whole[-1], atol=1e-5)


def test_an_adapter_that_is_loaded_over_another(case: str, model: Model, runner: ModelRunner) -> None:
    """Nothing of the one before is left, also where the new one adds less; the graphs are the same."""
    assert model.adapters is not None
    prompt = prompts(case)[0]
    fourth = logits_of(runner, [(prompt, 4)])[0]
    try:
        model.adapters.load(2, "part")
        np.testing.assert_array_equal(logits_of(runner, [(prompt, 2)])[0], fourth)
    finally:
        model.adapters.load(2, "three")
    assert np.abs(logits_of(runner, [(prompt, 2)])[0] - fourth).max() > 1e-3
