"""Adapters of PEFT over the tiny models of model_folders, rebuilt from descriptions: NumPy only."""

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from model_folders import descriptions, random_tensor, write_folder
from numpy.typing import NDArray
from safetensors_writer import safetensors_bytes

FIXTURE = Path(__file__).parent / "fixtures/lora.npz"
COMPARED = 4
"""Logits are recorded after this many of each prompt's last tokens."""

NOT_TO_BE_MERGED = {
    "gpt2_tied_embedding": "the head shares the weight, and is not adapted",
    "qwen3_tied_embedding": "the head shares the weight, and is not adapted",
    "qwen3_ensured_embedding": "PEFT adds both adapters to the one weight",
    "qwen3_saved_embedding": "the head shares the weight, and keeps the base's: PEFT unties them",
    "qwen3_saved_both": "the saved modules are two, the model has one tensor: PEFT unties them",
    "llama_bias": "the base has no bias to add to",
}
"""Each is refused by name; beside the model all of them act."""


@lru_cache
def _fixture() -> dict[str, NDArray[Any]]:
    with np.load(FIXTURE) as arrays:
        return dict(arrays)


@lru_cache
def _meta() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(str(_fixture()["meta"]))
    return found


def cases() -> dict[str, dict[str, Any]]:
    """By name: base, config (adapter_config.json), tensors, digest; of what PEFT cannot merge: unmergeable.

    tensors: by name [shape, spread, centre] of random numbers; the name of the base's tensor that PEFT saves
    beside; or {"same": the adapter's own tensor that this one equals}, or equals {"transposed": ...}.
    unties: PEFT's merged model has a head of its own, though the base's head was the embedding.
    """
    found: dict[str, dict[str, Any]] = _meta()["cases"]
    return found


def prompts() -> list[list[int]]:
    """The prompts of all cases."""
    found: list[list[int]] = _meta()["prompts"]
    return found


def prefixes() -> list[tuple[int, ...]]:
    """The beginnings of prompts after which logits are recorded, in the order of the recorded rows."""
    return [
        tuple(prompt[:end])
        for prompt in prompts()
        for end in range(max(1, len(prompt) - COMPARED + 1), len(prompt) + 1)
    ]


def ends_of_prompts() -> list[tuple[int, int]]:
    """The recorded rows as (number of the prompt, its token after which the logits are)."""
    return [
        (number, len(prefix) - 1)
        for prefix in prefixes()
        for number, prompt in enumerate(prompts())
        if tuple(prompt[: len(prefix)]) == prefix
    ]


def base_logits(base: str) -> NDArray[np.float32]:
    """What transformers computes without an adapter: [prefixes, vocabulary]."""
    return _fixture()[f"{base}.base"]


def live_logits(case: str) -> NDArray[np.float32]:
    """What PEFT computes with the adapter beside the base: [prefixes, vocabulary]."""
    return _fixture()[f"{case}.live"]


def merged_projections(case: str) -> dict[str, NDArray[np.float32]]:
    """`projected` of each tensor that merge_and_unload changed, by its name."""
    start = f"{case}.projected."
    return {name.removeprefix(start): array for name, array in _fixture().items() if name.startswith(start)}


def projected(tensor: NDArray[Any]) -> NDArray[np.float32]:
    """A vector as it is; of a matrix its product with one vector, which tells merged weights apart."""
    if tensor.ndim == 1:
        return tensor.astype(np.float32)
    direction = random_tensor("projection", [tensor.shape[1]], 1.0)
    found: NDArray[np.float32] = (tensor.astype(np.float64) @ direction).astype(np.float32)
    return found


def base_description(base: str) -> dict[str, Any]:
    """A model of model_folders, in float32 so that merged weights are not rounded."""
    return descriptions()[base] | {"dtype": "float32"}


def write_base(folder: Path, base: str) -> Path:
    """The folder of a base model."""
    write_folder(folder, base_description(base))
    return folder


def write_case(folder: Path, case: str) -> Path:
    """The PEFT folder of a case: adapter_config.json and adapter_model.safetensors."""
    assert write_adapter(folder, case, cases()[case]) == cases()[case]["digest"]
    return folder


def write_adapter(folder: Path, case: str, description: dict[str, Any]) -> str:
    """A PEFT folder; returns the digest of the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(description["config"]))
    arrays = {name: _tensor(case, name, description) for name in description["tensors"]}
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(arrays))
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays.values())).hexdigest()


def _tensor(case: str, name: str, description: dict[str, Any]) -> NDArray[np.float32]:
    entry = description["tensors"][name]
    if isinstance(entry, dict) and "same" in entry:
        return _tensor(case, entry["same"], description)
    if isinstance(entry, dict):
        return np.ascontiguousarray(_tensor(case, entry["transposed"], description).T)
    if isinstance(entry, str):
        shape, spread = descriptions()[description["base"]]["tensors"][entry]
        return random_tensor(entry, shape, spread)
    shape, spread, centre = entry
    return random_tensor(f"{case}/{name}", shape, spread) + np.float32(centre)
