"""Small checkpoints with LoRA matrices, cut by strategies, for the tools with MindFormers' flags."""

from functools import partial
from pathlib import Path

import numpy as np

import transform_ckpt
import transform_ckpt_lora
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.formats.ckpt_file import ckpt_layout
from mindbatch.checkpoint.formats.floats import array_type
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes
from tensor_files import write_tensor_file

TOOLS = Path(__file__).parents[3] / "tools"
RANK, ALPHA = 2, 8
# By rows, by columns, not cut.
CUTS = {"wq": (0, -1), "wo": (-1, 0), "norm": (-1,)}
SHAPES = {
    "model.layers.0.attention.wq.weight": (8, 12),
    "model.layers.0.attention.wo.weight": (12, 8),
    "model.norm_out.weight": (8,),
    "model.layers.0.attention.wq.mindpet_delta_lora_a": (RANK, 12),
    "model.layers.0.attention.wq.mindpet_delta_lora_b": (8, RANK),
    "model.layers.0.attention.wo.mindpet_delta_lora_a": (RANK, 8),
    "model.layers.0.attention.wo.mindpet_delta_lora_b": (12, RANK),
}
MATRIX_CUTS = {"wq.a": (-1, -1), "wq.b": (0, -1), "wo.a": (-1, 0), "wo.b": (-1, -1)}
BASE = [name for name in SHAPES if "lora" not in name]


def tensor_map(name):
    module = name.split(".")[-2]
    if "lora" in name:
        return MATRIX_CUTS[f"{module}.{name[-1]}"]
    return CUTS.get(module, CUTS["norm"])


def write_strategy(path, ranks):
    path.parent.mkdir(parents=True, exist_ok=True)
    layouts = tuple(TensorLayout(name, (ranks,), tensor_map(name)) for name in SHAPES)
    path.write_bytes(strategy_bytes(Strategy(layouts, (OperatorStrategy("MatMul-op0", 0),))))
    return path


def arrays():
    random = np.random.default_rng(2)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def part_of(name, array, ranks, rank):
    layout = TensorLayout(name, (ranks,), tensor_map(name))
    return np.ascontiguousarray(array[layout.slice_of(rank, array.shape)])


def write_ckpt(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    layout = ckpt_layout([(name, "F32", array.shape) for name, array in tensors.items()])
    write_tensor_file(path, layout, lambda name: [tensors[name].tobytes()])


def write_ranks(folder, ranks, tensors):
    for rank in range(ranks):
        parts = {name: part_of(name, array, ranks, rank) for name, array in tensors.items()}
        write_ckpt(folder / f"rank_{rank}" / f"checkpoint_{rank}.ckpt", parts)
    return folder


def read(path):
    with open_source(path) as source:
        [tensors] = source.ranks
        found = {}
        for name, info in tensors.tensors.items():
            data = bytearray(info.nbytes)
            tensors.read_into(name, 0, memoryview(data))
            found[name] = np.frombuffer(data, array_type(info.dtype)).reshape(info.shape)
        return found


def assert_ranks(folder, ranks, tensors):
    assert sorted(path.name for path in folder.glob("rank_*")) == [f"rank_{rank}" for rank in range(ranks)]
    for rank in range(ranks):
        found = read(folder / f"rank_{rank}" / f"checkpoint_{rank}.ckpt")
        assert set(found) == set(tensors)
        for name, array in tensors.items():
            np.testing.assert_array_equal(found[name], part_of(name, array, ranks, rank), err_msg=name)


def lay_out(folder):
    """Strategies and rank folders for 2 ranks, strategies for 4."""
    write_strategy(folder / "two.ckpt", 2)
    write_strategy(folder / "four.ckpt", 4)
    write_ranks(folder / "two", 2, arrays())
    write_ckpt(folder / "full.ckpt", arrays())
    return folder


def failed(code, expected, capsys, *parts):
    error = capsys.readouterr().err
    assert code == expected, error
    for part in parts:
        assert part in error
    assert all(line.startswith("transform_ckpt") for line in error.splitlines())


def transform(
    place, source, target, source_strategy, target_strategy, *more, tool=transform_ckpt, flag="dir"
):
    flags = [
        f"--src_ckpt_{flag}={place / source}",
        f"--dst_ckpt_dir={place / target}",
        f"--src_ckpt_strategy={source_strategy and place / source_strategy}",
        f"--dst_ckpt_strategy={target_strategy and place / target_strategy}",
    ]
    return tool.main([*flags, *more])


merge = partial(transform, tool=transform_ckpt_lora, flag="path_or_dir")
