"""Adapters of every model type: beside the model and merged they do what weights do that have them added."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from model_folders import random_tensor
from numpy.typing import NDArray
from recording import LastRun, load
from rounding import bound_of, largest_difference
from safetensors.numpy import load_file, save_file
from type_cases import TYPE_CASES, config_of, description_of, prompts_of

from mindbatch import DecodingParams
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.registry import describe, tensor_specs

pytestmark = pytest.mark.slow
GREEDY = DecodingParams(max_new_tokens=8)
RANK, ALPHA = 3, 24
Arrays = dict[str, NDArray[np.float32]]


class Matrices(NamedTuple):
    """Names of the tensors of a model's linear layers; the rest are stacked experts. turned: stored [inputs,
    outputs]."""

    linear: frozenset[str]
    stacked: frozenset[str]
    turned: frozenset[str]


def matrices_of(case: str) -> Matrices:
    """Of the blocks: neither embedding nor head."""
    stored = description_of(case)["tensors"]
    parts = [
        (part, spec)
        for spec in tensor_specs(describe(config_of(case)))
        for part in spec.parts
        if not spec.name.startswith(("embedding", "head"))
        and "positions" not in spec.name
        and len(stored[part.source][0]) == 2
        and part.source.endswith(".weight")  # of a module that PEFT adapts
    ]
    linear = frozenset(part.source for part, spec in parts if spec.is_linear)
    every = frozenset(part.source for part, _ in parts)
    return Matrices(linear, every - linear, frozenset(part.source for part, _ in parts if part.transposed))


def write_adapter(folder: Path, case: str, names: Collection[str]) -> Arrays:
    """A PEFT folder that adds to these tensors; what it adds to each, as that is stored."""
    turned, pairs, added = matrices_of(case).turned, {}, {}
    stored = description_of(case)["tensors"]
    for name in sorted(names):
        shape = (stored[name] if name in stored else stored["shared.weight"])[0]  # T5's tied head
        outputs, inputs = shape[::-1] if name in turned else shape
        a, b = (
            random_tensor(f"{name}.a", [RANK, inputs], 0.5),
            random_tensor(f"{name}.b", [outputs, RANK], 0.1),
        )
        delta = (np.float32(ALPHA / RANK) * b @ a).astype(np.float32)
        added[name] = delta.T if name in turned else delta
        module = f"base_model.model.{name.removesuffix('.weight')}"
        pairs |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
    targets = sorted(name.removesuffix(".weight") for name in names)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": targets}
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({**settings, "fan_in_fan_out": bool(turned)}))
    save_file(pairs, folder / "adapter_model.safetensors")
    return added


def write_model(folder: Path, case: str, added: Mapping[str, NDArray[np.float32]]) -> Path:
    """The case's model in float32, with something added to its tensors."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of(case)))
    tensors = {
        name: np.ascontiguousarray(random_tensor(name, *drawn) + added.get(name, np.float32(0)))
        for name, drawn in description_of(case)["tensors"].items()
    }
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module", params=TYPE_CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def home(case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of the model, of the adapter and of the model with it."""
    path = tmp_path_factory.mktemp(case)
    write_model(path / "base", case, {})
    write_model(path / "added", case, write_adapter(path / "adapter", case, matrices_of(case).linear))
    return path


def run(folder: Path, case: str, **options: object) -> LastRun:
    adapter = "tuned" if options.get("lora_mode") == "live" else None
    return LastRun(load(folder, max_batched_tokens=64, **options), prompts_of(case), GREEDY, adapter=adapter)


def test_live_and_merged_are_added_weights(case: str, home: Path) -> None:
    """And a scaling that is wrong by a thousandth is noticed."""
    expected, adapters = run(home / "added", case), {"tuned": home / "adapter"}
    assert expected.tokens != run(home / "base", case).tokens
    merged = run(home / "base", case, lora_adapters=adapters, lora_mode="merge")
    assert (merged.tokens, largest_difference(merged.logits, expected.logits)) == (expected.tokens, 0)
    weights = load_file(home / "added/model.safetensors")
    bound = bound_of(
        home / "moved", config_of(case), weights, lambda folder: run(folder, case).logits, expected.logits
    )
    live = run(home / "base", case, lora_adapters=adapters, lora_mode="live")
    assert live.tokens == expected.tokens
    assert 0 < largest_difference(live.logits, expected.logits) <= bound
    wrong = run(home / "base", case, lora_adapters={"tuned": scaled(home, 1.001)}, lora_mode="live")
    assert wrong.tokens != expected.tokens or largest_difference(wrong.logits, expected.logits) > bound


def scaled(home: Path, factor: float) -> Path:
    """The adapter with another alpha."""
    shutil.copytree(home / "adapter", home / "scaled", dirs_exist_ok=True)
    settings = json.loads((home / "adapter/adapter_config.json").read_text())
    settings["lora_alpha"] *= factor
    (home / "scaled/adapter_config.json").write_text(json.dumps(settings))
    return home / "scaled"


def test_what_cannot_act_beside_the_model_is_refused_by_name(case: str, home: Path, tmp_path: Path) -> None:
    """And can be merged."""
    stacked = matrices_of(case).stacked
    if stacked:
        added, adapters = write_adapter(tmp_path / "adapter", case, stacked), {"tuned": tmp_path / "adapter"}
        with pytest.raises(
            CheckpointError,
            match=r"(experts\.\d+|router|per_layer).*not supported beside the model; merge it",
        ):
            run(home / "base", case, lora_adapters=adapters, lora_mode="live")
        merged = run(home / "base", case, lora_adapters=adapters, lora_mode="merge")
        expected = run(write_model(tmp_path / "added", case, added), case)
        assert (merged.tokens, largest_difference(merged.logits, expected.logits)) == (expected.tokens, 0)
    else:
        assert matrices_of(case).linear
