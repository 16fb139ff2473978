"""A folder that MindSpore's unified_safetensors has made of rank files is the checkpoint that was cut."""

import math

import mindspore as ms
import numpy as np
import pytest

from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from reshard_models import MODELS, contents, write_model

RANKS = 2


def write_strategy(path, source, cut):
    """What each rank's files show: the dimension that is smaller than it was."""
    layouts = []
    with open_source(source) as whole, open_source(cut) as ranks:
        for name, info in whole.ranks[0].tensors.items():
            here = ranks.ranks[0].tensors[name].shape
            cuts = tuple(-1 if a == b else 0 for a, b in zip(here, info.shape, strict=True))
            layouts.append(TensorLayout(name, (RANKS,), cuts))
    path.write_bytes(strategy_bytes(Strategy(tuple(layouts), (OperatorStrategy("MatMul-op0", 0),))))
    return str(path)


def reshard(source, target, ways, config=None):
    task = ReshardConfig(source=str(source), source_config=config, verify=True)
    task.target.dir, task.target.model_parallel = str(target), ways
    assert run(task) == 0


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_what_mindspore_merges_is_read(tmp_path, monkeypatch, parts, dtype):
    start = write_model(tmp_path / "start", MODELS["qwen2"], dtype)
    reshard(start, tmp_path / "cut", RANKS)
    strategy = write_strategy(tmp_path / "strategy.ckpt", start, tmp_path / "cut")
    monkeypatch.setattr(math, "ceil", lambda number: parts)  # MindSpore makes one part of every 3 GiB
    ms.parallel.unified_safetensors(
        str(tmp_path / "cut"), strategy, str(tmp_path / "unified"), max_process_num=1
    )
    monkeypatch.undo()
    made = {path.name for path in (tmp_path / "unified").iterdir()}
    assert made == {"param_name_map.json", *(f"part{number}.safetensors" for number in range(parts))}
    with open_source(tmp_path / "unified") as source:
        assert source.kind == "unified"
    (merged,), (expected,) = contents(tmp_path / "unified"), contents(start)
    assert merged == expected
    reshard(tmp_path / "unified", tmp_path / "again", RANKS, str(start))
    assert contents(tmp_path / "again") == contents(tmp_path / "cut")


@pytest.mark.slow
def test_what_no_strategy_names_is_left_aside(tmp_path):
    """MindSpore puts it into a file of its own, which the map does not name."""
    for rank in range(RANKS):
        (tmp_path / f"cut/rank_{rank}").mkdir(parents=True)
        values = {"w": np.full((2, 3), rank, np.float32), "global_step": np.array(7, np.int32)}
        saved = [{"name": name, "data": ms.Tensor(value)} for name, value in values.items()]
        ms.save_checkpoint(saved, str(tmp_path / f"cut/rank_{rank}/w_{rank}"), format="safetensors")
    strategy = Strategy((TensorLayout("w", (RANKS,), (0, -1)),), (OperatorStrategy("MatMul-op0", 0),))
    (tmp_path / "strategy.ckpt").write_bytes(strategy_bytes(strategy))
    arguments = (tmp_path / "cut", tmp_path / "strategy.ckpt", tmp_path / "unified")
    ms.parallel.unified_safetensors(*map(str, arguments), max_process_num=1)
    assert (tmp_path / "unified/hyper_param.safetensors").exists()
    (held,) = contents(tmp_path / "unified")
    expected = np.repeat(np.arange(RANKS, dtype=np.float32), 2)[:, None].repeat(3, 1)
    assert held == {"w": ("F32", (4, 3), expected.tobytes())}
