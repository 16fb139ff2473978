"""Tiny Hugging Face folders with random weights, rebuilt from the fixture's description: NumPy only."""

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FIXTURE = Path(__file__).parent / "fixtures/models.npz"
MINDFORMERS_FIXTURE = FIXTURE.with_name("mindformers.npz")
DENSE = FIXTURE.with_name("dense.npz")
GLM = FIXTURE.with_name("glm.npz")
NORMED = FIXTURE.with_name("normed.npz")
GPT = FIXTURE.with_name("gpt.npz")
EXPERTS = FIXTURE.with_name("experts.npz")
MINIMIND = FIXTURE.with_name("minimind.npz")
ENCODERS = FIXTURE.with_name("encoders.npz")
LATENT = FIXTURE.with_name("latent.npz")
RECURRENT = FIXTURE.with_name("recurrent.npz")
PANGU = FIXTURE.with_name("pangu.npz")
CONTEXTS = FIXTURE.with_name("contexts.npz")
TYPES = Path(__file__).parents[1] / "types"
"""A file for each type that was added by `record.py` there, found by its name."""
STORIES = Path(__file__).parents[3] / "shared/data/stories260K"
"""A trained Llama, which is not shipped."""
OF_SEVERAL_TYPES = (DENSE, GLM, GPT, NORMED, EXPERTS, MINIMIND, LATENT, PANGU, RECURRENT)
STORED = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


@lru_cache
def fixture(path: Path = FIXTURE) -> dict[str, NDArray[Any]]:
    """The arrays of fixtures/models.npz, or of another."""
    with np.load(path) as arrays:
        return dict(arrays)


@lru_cache
def descriptions(path: Path = FIXTURE) -> dict[str, dict[str, Any]]:
    """By case: config, tensors {name: [shape, spread]}, dtype, shards, digest of the weights."""
    found: dict[str, dict[str, Any]] = json.loads(str(fixture(path)["meta"]))
    return found


def dense_cases() -> dict[str, Path]:
    """By case of the dense types that came later, the fixture that has it."""
    return {
        case: path
        for path in (*OF_SEVERAL_TYPES, *sorted(TYPES.glob("*.npz")))
        for case in descriptions(path)
    }


def ragged(case: str, path: Path = FIXTURE) -> list[list[int]]:
    """The prompts of a case."""
    lengths = fixture(path)[f"{case}.lengths"]
    ends = np.cumsum(lengths)
    flat = fixture(path)[f"{case}.prompts"]
    return [flat[end - size : end].tolist() for end, size in zip(ends, lengths, strict=True)]


def random_bits(name: str, count: int) -> NDArray[np.uint64]:
    """Words of 64 random bits, from a name alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    bits: NDArray[np.uint64] = np.random.PCG64(seed).random_raw(count)
    return bits


def random_tensor(
    name: str, shape: list[int], spread: float, centre: float | None = None
) -> NDArray[np.float32]:
    """Uniform numbers from the name alone; norm weights and factors lie around 1, all else around 0.

    Raw generator bits are used: NumPy promises that they stay the same, its distributions it does not.
    """
    bits = random_bits(name, int(np.prod(shape))) >> np.uint64(40)
    uniform = bits.astype(np.float32) / np.float32(1 << 23) - np.float32(1)
    if centre is None:
        centre = 1 if name.endswith(("weight", "layer_scalar")) and len(shape) == 1 else 0
    return (uniform * np.float32(spread) + np.float32(centre)).reshape(shape).astype(np.float32)


def stored(array: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """The array as a file of this dtype keeps it; bfloat16 as its bits, cut off."""
    if dtype == "bfloat16":
        return (array.view(np.uint32) >> 16).astype(np.uint16)
    return array.astype(dtype)


def loaded(array: NDArray[Any]) -> NDArray[np.float32]:
    """A stored array as float32."""
    if array.dtype == np.uint16:
        return (array.astype(np.uint32).reshape(-1) << 16).view(np.float32).reshape(array.shape)
    return array.astype(np.float32)


def write_folder(folder: Path, description: Mapping[str, Any]) -> str:
    """Writes config.json and the weights; returns the digest of the weights."""
    return write_tensors(folder, description, stored_tensors(description))


def stored_tensors(description: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
    """The weights of a description by name, as its files keep them."""
    return {
        name: stored(random_tensor(name, *drawn), description["dtype"])
        for name, drawn in description["tensors"].items()
    }


def weights_of(description: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """The same in float32."""
    return {name: loaded(array) for name, array in stored_tensors(description).items()}


def write_tensors(folder: Path, description: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> str:
    """Writes config.json and these numbers, as they are stored; returns their digest."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(description["config"]))
    shards = description["shards"]
    names = [list(tensors)[start::shards] for start in range(shards)]
    files = {
        "model.safetensors" if shards == 1 else f"model-{i + 1:05}-of-{shards:05}.safetensors": part
        for i, part in enumerate(names)
    }
    for file, part in files.items():
        (folder / file).write_bytes(_safetensors({n: tensors[n] for n in part}, description["dtype"]))
    if shards > 1:
        index = {"metadata": {}, "weight_map": {name: file for file, part in files.items() for name in part}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return hashlib.sha256(b"".join(array.tobytes() for array in tensors.values())).hexdigest()


def _safetensors(tensors: Mapping[str, NDArray[Any]], dtype: str) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        end = len(data) + array.nbytes
        header[name] = {"dtype": STORED[dtype], "shape": list(array.shape), "data_offsets": [len(data), end]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data
