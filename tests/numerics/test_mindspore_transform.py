"""tools/transform_ckpt.py and mindspore.transform_checkpoints make the same files of the same strategies."""

import mindspore as ms
import numpy as np
import pytest

import transform_ckpt
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes

SHAPES = {"rows": (16, 12), "columns": (12, 16), "vector": (16,), "whole": (8, 8), "both": (16, 16)}
# What each strategy cuts, by the number of its ranks.
MAPS = {
    1: {name: (-1,) * len(shape) for name, shape in SHAPES.items()},
    4: {"rows": (0, -1), "columns": (-1, 0), "vector": (0,), "whole": (-1, -1), "both": (1, 0)},
    8: {"rows": (0, -1), "columns": (-1, 0), "vector": (1,), "whole": (0, -1), "both": (0, 1)},
}
MATRICES = {1: (1, 1), 4: (2, 2), 8: (2, 4)}


def write_strategy(folder, ranks):
    layouts = tuple(TensorLayout(name, MATRICES[ranks], MAPS[ranks][name]) for name in SHAPES)
    path = folder / f"strategy_{ranks}.ckpt"
    path.write_bytes(strategy_bytes(Strategy(layouts, (OperatorStrategy("MatMul-op0", 0),))))
    return str(path)


@pytest.fixture(scope="module", params=[ms.float32, ms.float16, ms.bfloat16, ms.int32], ids=str)
def checkpoints(request, tmp_path_factory):
    """The same tensors for 1, 4 and 8 ranks, cut by MindSpore."""
    folder = tmp_path_factory.mktemp("checkpoints")
    random = np.random.default_rng(4)
    whole = [
        {"name": name, "data": ms.Tensor(random.normal(size=shape) * 100, request.param)}
        for name, shape in SHAPES.items()
    ]
    (folder / "1/rank_0").mkdir(parents=True)
    ms.save_checkpoint(whole, str(folder / "1/rank_0/checkpoint_0.ckpt"))
    for ranks in (4, 8):
        theirs(folder, 1, ranks, folder / str(ranks))
    return folder


def theirs(folder, source, target, made):
    strategies = [None if ranks == 1 else write_strategy(folder, ranks) for ranks in (source, target)]
    ms.transform_checkpoints(str(folder / str(source)), str(made), "checkpoint_", *strategies)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [(1, 4), (4, 8), (8, 4), (8, 1)])
def test_files_are_the_same(checkpoints, source, target, tmp_path):
    theirs(checkpoints, source, target, tmp_path / "theirs")
    flags = [f"--src_ckpt_dir={checkpoints / str(source)}", f"--dst_ckpt_dir={tmp_path / 'ours'}"]
    for which, ranks in (("src", source), ("dst", target)):
        path = "" if ranks == 1 else write_strategy(checkpoints, ranks)
        flags.append(f"--{which}_ckpt_strategy={path}")
    assert transform_ckpt.main(flags) == 0
    for rank in range(target):
        name = f"rank_{rank}/checkpoint_{rank}.ckpt"
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name
