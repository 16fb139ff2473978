"""Writes the Llama checkpoint that the reshard benchmark reads: random bfloat16 weights."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.checkpoint.folders.digests import DIGESTS_NAME, digests_of, record_digests
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.formats.ckpt_file import ckpt_layout
from mindbatch.checkpoint.formats.safetensors_file import safetensors_layout
from mindbatch.checkpoint.formats.stored import FileLayout, byte_ranges
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.checkpoint.placement.regions import Placement
from mindbatch.checkpoint.strategy.strategy import UNCUT, OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes
from mindbatch.model_spec.registry import describe, tensor_specs

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
SMALLER = {"hidden_size": 1024, "intermediate_size": 2816, "vocab_size": 16000}
NOISE_BYTES = 1 << 22


def write_tensor_file(
    path: Path, layout: FileLayout, contents: Callable[[str], Iterable[bytes | memoryview]]
) -> None:
    """Writes a whole file; `contents` gives the bytes of a tensor in pieces."""
    with path.open("wb") as file:
        for offset, chunk in layout.head:
            file.seek(offset)
            file.write(chunk)
        for name, extents in layout.extents.items():
            position = 0
            for chunk in contents(name):
                rest = memoryview(chunk)
                for offset, nbytes in byte_ranges(extents, position, len(rest)):
                    file.seek(offset)
                    file.write(rest[:nbytes])
                    position, rest = position + nbytes, rest[nbytes:]


def write_llama(folder: Path, nbytes: int) -> int:
    """Writes a folder with about so many bytes of weights; returns how many."""
    folder.mkdir()
    config = sized(nbytes)
    (folder / "config.json").write_text(json.dumps(config))
    shapes = source_shapes(tensor_specs(describe(config)))
    layout = safetensors_layout([(name, "BF16", shape) for name, shape in shapes.items()])
    write_tensor_file(folder / "model.safetensors", layout, lambda name: noise(2 * math.prod(shapes[name])))
    record_digests(folder)
    return layout.total_bytes


def sized(nbytes: int) -> dict[str, Any]:
    """The configuration with as many layers as fit."""
    config = dict(CONFIG) if nbytes >= 10**9 else {**CONFIG, **SMALLER}
    one, two = (total({**config, "num_hidden_layers": layers}) for layers in (1, 2))
    return {**config, "num_hidden_layers": max(1, 1 + round((nbytes - one) / (two - one)))}


def total(config: dict[str, Any]) -> int:
    """Bytes of all tensors."""
    return sum(2 * math.prod(shape) for shape in source_shapes(tensor_specs(describe(config))).values())


def noise(count: int) -> Iterator[bytes]:
    """Random bytes, which no file system can shorten; as bfloat16 no infinity and no NaN among them."""
    bits = np.frombuffer(os.urandom(min(NOISE_BYTES, count)), np.uint16) & 0xBFFF
    chunk = bits.tobytes()
    for start in range(0, count, NOISE_BYTES):
        yield chunk[: min(NOISE_BYTES, count - start)]


def write_ckpt(source: Path, folder: Path) -> Path:
    """The tensors of a model folder as rank_0/model.ckpt, with digests; returns the file."""
    path = folder / "rank_0/model.ckpt"
    path.parent.mkdir(parents=True)
    with open_source(source) as opened:
        tensors = opened.ranks[0]
        layout = ckpt_layout([(name, info.dtype, info.shape) for name, info in tensors.tensors.items()])
        write_tensor_file(path, layout, lambda name: tensors.file(name).chunks(name))
    with open_source(path) as opened:
        (path.parent / DIGESTS_NAME).write_bytes(digests_of(opened.ranks[0].files).as_json())
    return path


def write_strategy(source: Path, path: Path, model_parallel: int) -> Path:
    """The strategy file by which MindSpore cuts the model as `mindbatch reshard` does; returns it."""
    config = json.loads((source / "config.json").read_text())
    by_name = placements(tensor_specs(describe(config)), model_parallel, 1)
    layouts = tuple(
        TensorLayout(name, (model_parallel,), axes(placement)) for name, placement in by_name.items()
    )
    path.write_bytes(strategy_bytes(Strategy(layouts, (OperatorStrategy("MatMul-op0", 0),))))
    return path


def axes(placement: Placement) -> tuple[int, ...]:
    """Which of its dimensions, if any, is divided over the ranks."""
    shard = placement.shards[0]
    assert shard is not None
    sizes = zip(shard.shape, placement.shape, strict=True)
    return tuple(UNCUT if here == whole else 0 for here, whole in sizes)
