"""Writes tests/numerics/fixtures/lora.npz: what PEFT computes with random adapters over tiny random models.

Run with a Python that has torch 2.13, transformers 4.57.1 and peft 0.21.2; the tests need none of them.
Weights are not stored: tests/numerics/lora_cases.py makes them again from the tensors' names.
"""

import json
import math
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ["HF_HUB_OFFLINE"] = "1"  # PEFT asks the hub for the base's files, and waits long without a network

import torch
from lora_cases import COMPARED, FIXTURE, base_description, projected, write_adapter, write_base
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from transformers import AutoModelForCausalLM, PreTrainedModel

from lora_plan import AS_SAVED, BASES, CASES, base_of

PREFIX = "base_model.model."
LENGTHS = (12, 7, 1)
SPREAD_OF_A, EFFECT = 0.3, 0.1
"""Half the width of A's distribution; the deviation of the product, a third of the base weights' own."""
LEAST_EFFECT = 0.1
"""Of every adapter on some logit."""
TOLERANCE = 2e-5
"""Between the adapter beside the base and merged, where PEFT means the same by both."""
Found = dict[str, np.ndarray]


def prompts() -> list[list[int]]:
    """Token ids that every base has."""
    smallest = min(base_description(base)["config"]["vocab_size"] for base in BASES)
    generator = np.random.default_rng(0)
    return [generator.integers(0, smallest, length).tolist() for length in LENGTHS]


def load(folder: Path) -> PreTrainedModel:
    """A base in float32."""
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def logits(model: torch.nn.Module) -> np.ndarray:
    """After the last tokens of every prompt: [prefixes, vocabulary]."""
    rows = [model(torch.tensor([prompt])).logits[0, -COMPARED:].numpy() for prompt in prompts()]
    return np.concatenate(rows)


def describe(case: str, folder: Path) -> dict[str, Any]:
    """Everything that the adapter's folder is made from: the tensors that PEFT would save, their numbers."""
    base = base_of(case)
    config = LoraConfig(task_type="CAUSAL_LM", **CASES[case])
    given = config.to_dict()
    model = get_peft_model(load(folder), config)
    written = model.peft_config["default"].to_dict() if case in AS_SAVED else given
    shapes = {name: list(tensor.shape) for name, tensor in get_peft_model_state_dict(model).items()}
    known = base_description(base)["tensors"]
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    embedding = next((name for name, layer in layers.items() if layer.lora_embedding_A), "")
    ensured = [PREFIX + name for name in getattr(config, "target_modules_to_tie", None) or ()]
    tied = dict.fromkeys(ensured, embedding)
    if config.ensure_weight_tying and config.modules_to_save:
        tied |= {"lm_head.weight": f"{PREFIX}model.embed_tokens.weight"}
    return {
        "base": base,
        "config": _written(written, base),
        "tensors": {name: _entry(name, shapes[name], layers, known, tied) for name in sorted(shapes)},
    }


def _written(config: dict[str, Any], base: str) -> dict[str, Any]:
    """As PEFT writes adapter_config.json: sets as lists."""
    changes = {"base_model_name_or_path": f"tiny/{base}", "inference_mode": True}
    lists = {key: sorted(value) if isinstance(value, set) else value for key, value in config.items()}
    text = json.dumps(lists | changes, default=lambda value: value.value)
    found: dict[str, Any] = json.loads(text)
    return found


def _entry(
    name: str, shape: list[int], layers: dict[str, LoraLayer], known: dict[str, Any], tied: dict[str, str]
) -> Any:
    """What a tensor is made from: see `lora_cases.cases`."""
    own = name.removeprefix(PREFIX)
    if ".base_layer." in own:
        return _source(own.replace(".base_layer.", "."), known)
    module, _, kind = name.partition(".lora_")
    if not kind and own in tied:
        return {"same": tied[own]}
    if not kind:  # a whole saved module
        return [shape, known[_source(own, known)][1], 0.0]
    if module in tied:
        return {"transposed": f"{tied[module]}.lora_embedding_{'B' if kind == 'A.weight' else 'A'}"}
    rank, scaling = layers[module].r["default"], layers[module].scaling["default"]
    if kind == "magnitude_vector":
        centre = float(layers[module].lora_magnitude_vector["default"].weight.mean())
        return [shape, round(0.3 * centre, 4), round(centre, 4)]
    if kind == "B.bias":
        return [shape, round(0.3 / scaling, 4), 0.0]
    if kind in ("A.weight", "embedding_A"):
        return [shape, SPREAD_OF_A, 0.0]
    return [shape, round(3 * EFFECT / SPREAD_OF_A / scaling / math.sqrt(rank), 4), 0.0]


def _source(name: str, known: dict[str, Any]) -> str:
    """The stored tensor: of a head that is the embedding, the embedding's."""
    return name if name in known else next(other for other in known if "embed" in other or "wte" in other)


def loaded(base: Path, adapter: Path) -> PeftModel:
    """The adapter beside its base; every tensor of its file is in the model as it is in the file."""
    from safetensors.torch import load_file

    model = PeftModel.from_pretrained(load(base), adapter).eval()
    held = get_peft_model_state_dict(model)
    stored = load_file(adapter / "adapter_model.safetensors")
    assert held.keys() == stored.keys(), held.keys() ^ stored.keys()
    for name, tensor in stored.items():
        assert torch.equal(held[name], tensor), name
    return model


def record(case: str, description: dict[str, Any], base: Path, adapter: Path, plain: np.ndarray) -> Found:
    """Logits beside the base and merged; adds to the description what PEFT says of the merge."""
    model = loaded(base, adapter)
    live = logits(model)
    effect = float(np.abs(live - plain).max())
    assert effect > LEAST_EFFECT, f"{case}: changes logits by {effect} only"
    found = {f"{case}.live": live}
    print(f"{case}: {len(description['tensors'])} tensors, effect {effect:.2f}", end="")
    try:
        merged = model.merge_and_unload()
    except RuntimeError as error:
        description["unmergeable"] = str(error)
        print(f", not to be merged: {error}")
        return found
    found[f"{case}.merged"] = logits(merged)
    description["unties"] = _is_tied(load(base)) and not _is_tied(merged)
    found |= {f"{case}.projected.{name}": array for name, array in changed(load(base), merged)}
    gap = float(np.abs(found[f"{case}.merged"] - live).max())
    description["merged_is_live"] = gap <= TOLERANCE
    print(f", merged differs by {gap:.1e}, unties {description['unties']}")
    return found


def _is_tied(model: PreTrainedModel) -> bool:
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    return bool(head.weight.data_ptr() == embedding.weight.data_ptr())


def changed(base: PreTrainedModel, merged: PreTrainedModel) -> Iterator[tuple[str, np.ndarray]]:
    """Projections of the tensors that the merge changed."""
    before = base.state_dict()
    for name, tensor in merged.state_dict().items():
        if not torch.equal(tensor, before[name]):
            yield name, projected(tensor.numpy())


@torch.no_grad()
def main() -> None:
    """Records every case."""
    warnings.simplefilter("ignore")
    arrays: Found = {}
    descriptions: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for base in BASES:
            arrays[f"{base}.base"] = logits(load(write_base(folder / base, base)))
        for case in CASES:
            base = base_of(case)
            description = describe(case, folder / base)
            description["digest"] = write_adapter(folder / case, case, description)
            plain = arrays[f"{base}.base"]
            arrays |= record(case, description, folder / base, folder / case, plain)
            descriptions[case] = description
    meta = {"prompts": prompts(), "cases": descriptions}
    np.savez_compressed(FIXTURE, meta=json.dumps(meta), **arrays)
    print(f"{len(CASES)} cases, {FIXTURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
