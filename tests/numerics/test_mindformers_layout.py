"""MindSpore's own layout of a MindFormers model: every slice that it cuts is the one that our specs say."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.backends.failure import BackendError
from mindbatch.backends.gpu_plugin import find_plugin, needed_tool
from mindbatch.checkpoint.names.registry import dialect
from mindbatch.checkpoint.placement import Placement
from mindbatch.checkpoint.placements import placements
from mindbatch.checkpoint.strategy_file import read_strategy
from mindbatch.models.registry import describe, tensor_specs

pytestmark = pytest.mark.slow
MARK = "MINDBATCH_TEST_MARK"
LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
QWEN2 = LLAMA | {"model_type": "qwen2", "num_hidden_layers": 1}
CUT = """
import sys, numpy as np, mindspore as ms
tensors = np.load("full.npz")
saved = [{"name": name, "data": ms.Tensor(tensors[name])} for name in tensors.files]
import os; os.makedirs("full/rank_0")
ms.save_checkpoint(saved, "full/rank_0/model.ckpt")
ms.transform_checkpoints("full", "cut", "cut_", None, sys.argv[1])
for rank in range(int(sys.argv[2])):
    part = ms.load_checkpoint(f"cut/rank_{rank}/cut_{rank}.ckpt")
    np.savez(f"rank_{rank}.npz", **{name: tensor.asnumpy() for name, tensor in part.items()})
"""


@pytest.fixture(scope="module", autouse=True)
def _can_be_run() -> None:
    try:
        find_plugin()
        needed_tool("gcc", "cc")
        needed_tool("nm")
    except BackendError as error:
        pytest.skip(str(error))


@dataclass(frozen=True)
class Case:
    config: Mapping[str, Any]
    data_parallel: int
    model_parallel: int
    pipeline_stage: int = 1

    @property
    def num_ranks(self) -> int:
        return self.data_parallel * self.model_parallel * self.pipeline_stage

    @property
    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "mindbatch", "plan", "model.provider=mindformers"),
            "model.checkpoint_name_or_path=../model",
            f"parallel.data_parallel={self.data_parallel}",
            f"parallel.model_parallel={self.model_parallel}",
            f"parallel.pipeline_stage={self.pipeline_stage}",
            *("layout.vocab_emb_dp=false", "layout.dir=strategy", "report=json"),
        ]


def planned(case: Case, folder: Path) -> dict[str, Any]:
    """Runs the command in an empty folder; it leaves the strategy files there, and no process."""
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(case.config))
    (folder / "here").mkdir()
    mark = uuid.uuid4().hex
    done = subprocess.run(
        case.command, cwd=folder / "here", env=os.environ | {MARK: mark}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in (folder / "here").iterdir()] == ["strategy"]
    assert processes_with(mark) == []
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def processes_with(mark: str) -> list[str]:
    """The processes in whose environment the mark is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={mark}".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:  # it has ended, or is another user's
            continue
    return found


def cut_by_mindspore(
    folder: Path, tensors: Mapping[str, NDArray[Any]], strategy: Path, num_ranks: int
) -> list[dict[str, NDArray[Any]]]:
    """What transform_checkpoints makes of a full checkpoint, for each rank."""
    np.savez(folder / "full.npz", **tensors)
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "GLOG_v": "3"}
    subprocess.run(
        [sys.executable, "-c", CUT, str(strategy), str(num_ranks)], cwd=folder, env=environment, check=True
    )
    return [dict(np.load(folder / f"rank_{rank}.npz")) for rank in range(num_ranks)]


def stored_names(model_type: str, layers: int) -> dict[str, str]:
    """MindFormers' name of each Hugging Face tensor."""
    pairs = [
        (rule.original.names[0], rule.stored.names[0])
        for rule in dialect(model_type).rules
        if len(rule.original.names) == len(rule.stored.names) == 1
    ]
    return {
        original.format(layer=layer): stored.format(layer=layer)
        for original, stored in pairs
        for layer in range(layers)
    }


def held(placement: Placement, rank: int, full: NDArray[Any]) -> NDArray[Any]:
    """What our specs give a rank of the full tensor."""
    shape = placement.local_shape(rank)
    assert shape is not None
    local = np.full(shape, -1, full.dtype)
    for piece in placement.ranks[rank]:
        local[tuple(slice(*ends) for ends in piece.local)] = full[tuple(slice(*ends) for ends in piece.whole)]
    return local


@pytest.mark.parametrize(
    "case",
    [Case(LLAMA, 1, 2), Case(QWEN2, 1, 4), Case(LLAMA, 2, 2)],
    ids=["llama mp=2", "qwen2 mp=4", "llama dp=2 mp=2"],
)
def test_mindspore_cuts_a_checkpoint_as_our_specs_say(case: Case, tmp_path: Path) -> None:
    plan = planned(case, tmp_path)
    arch = describe(case.config)
    ours = placements(tensor_specs(arch), case.model_parallel)
    names = stored_names(arch.model_type, arch.num_layers)
    assert {names[name] for name in ours} == {parameter["name"] for parameter in plan["parameters"]}
    full = {
        names[name]: np.arange(np.prod(each.shape), dtype=np.float32).reshape(each.shape) + index
        for index, (name, each) in enumerate(ours.items())
    }
    assert {each["name"]: tuple(each["shape"]) for each in plan["parameters"]} == {
        name: tensor.shape for name, tensor in full.items()
    }
    ranks = cut_by_mindspore(tmp_path, full, tmp_path / "here" / plan["strategy_files"][0], case.num_ranks)
    for rank, tensors in enumerate(ranks):
        assert tensors.keys() == full.keys()
        for name, placement in ours.items():
            expected = held(placement, rank % case.model_parallel, full[names[name]])
            np.testing.assert_array_equal(tensors[names[name]], expected, f"{name} on rank {rank}")


def test_each_pipeline_stage_has_its_strategy_file(tmp_path: Path) -> None:
    plan = planned(Case(LLAMA, 1, 2, 2), tmp_path)
    folder = tmp_path / "here/strategy"
    assert sorted(path.name for path in folder.iterdir()) == [
        "ckpt_strategy_rank_0.ckpt",
        "ckpt_strategy_rank_2.ckpt",
    ]
    strategy = read_strategy(folder)
    assert strategy.num_ranks == 4
    stages = {each["name"]: each["stage"] for each in plan["parameters"]}
    assert stages == {layout.name: strategy.stage_of(layout) for layout in strategy.layouts}
    assert stages["model.layers.0.attention.wq.weight"] == 0
    assert stages["model.layers.1.attention.wq.weight"] == 1
    assert (stages["model.tok_embeddings.embedding_weight"], stages["lm_head.weight"]) == (0, 1)


def test_a_model_that_mindspore_refuses_is_one_line(tmp_path: Path) -> None:
    """More data-parallel rows than MindFormers can divide is found by MindFormers itself."""
    from mindbatch.backends.layout_process import Limits
    from mindbatch.backends.llama_options import llama_options
    from mindbatch.backends.mindformers_layout import LayoutJob, infer_layout

    options = llama_options(describe(LLAMA), 1, 1) | {"num_heads": 7}
    with pytest.raises(BackendError, match=r"^MindSpore's layout failed on rank 0: .*7.*$") as caught:
        infer_layout(LayoutJob(options, 1, 2), Limits())
    assert len(caught.value.faults) == 1
