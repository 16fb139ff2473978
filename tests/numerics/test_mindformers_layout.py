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
from mindbatch.checkpoint.names.dialect import Options
from mindbatch.checkpoint.names.registry import dialect, heads_of
from mindbatch.checkpoint.names.renamed_files import as_mindformers
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.checkpoint.placement.rank_files import RankFiles
from mindbatch.checkpoint.strategy.strategy_file import read_strategy
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
import json, os, sys, numpy as np, mindspore as ms
for folder, strategy, ranks in json.loads(sys.argv[1]):
    os.chdir(folder)
    tensors = np.load("full.npz")
    saved = [{"name": name, "data": ms.Tensor(tensors[name])} for name in tensors.files]
    os.makedirs("full/rank_0")
    ms.save_checkpoint(saved, "full/rank_0/model.ckpt")
    ms.transform_checkpoints("full", "cut", "cut_", None, strategy)
    for rank in range(ranks):
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
    qkv_concat: bool = False

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
            f"layout.qkv_concat={str(self.qkv_concat).lower()}",
            *("layout.vocab_emb_dp=false", "layout.dir=strategy", "report=json"),
        ]


ALWAYS = {
    "llama dp=2 mp=2": Case(LLAMA, 2, 2),
    "qwen2 mp=4, fused": Case(QWEN2, 1, 4, qkv_concat=True),
}
ON_DEMAND = {
    "llama mp=2": Case(LLAMA, 1, 2),
    "llama mp=4": Case(LLAMA, 1, 4),
    "qwen2 mp=2": Case(QWEN2, 1, 2),
}


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


def stored_by(names: RankFiles, rank: int, full: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What a rank holds of full Hugging Face tensors, in its own names and forms."""
    found = {}
    for name, stored in names.ranks[rank].items():
        tensor = np.full(stored.view, -1, np.float32)
        for segment in stored.segments:
            part = full[segment.tensor][tuple(slice(*ends) for ends in segment.whole)]
            place = tuple(slice(*ends) for ends in segment.stored)
            tensor[place] = part.T if segment.transposed else part
        found[name] = tensor.reshape(stored.shape)
    return found


def named(case: Case, ways: int) -> RankFiles:
    """Our specs, in MindFormers' names."""
    arch = describe(case.config)
    options = Options(qkv_concat=case.qkv_concat)
    placed = placements(tensor_specs(arch), ways)
    return as_mindformers(dialect(arch.model_type, options), heads_of(arch), placed, ways)


@dataclass(frozen=True)
class Cut:
    """A full checkpoint by Hugging Face names, the plan for it, and what MindSpore has cut by that."""

    case: Case
    full: Mapping[str, NDArray[Any]]
    plan: Mapping[str, Any]
    folder: Path

    def rank(self, rank: int) -> dict[str, NDArray[Any]]:
        return dict(np.load(self.folder / f"rank_{rank}.npz"))


@pytest.fixture(
    scope="module",
    params=[ALWAYS, pytest.param(ON_DEMAND, marks=pytest.mark.on_demand)],
    ids=["always", "others"],
)
def cuts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cut]:
    """Cases are planned, and then cut by transform_checkpoints in one process."""
    home = tmp_path_factory.mktemp("cuts")
    made: dict[str, Cut] = {}
    orders = []
    for number, (name, case) in enumerate(request.param.items()):
        folder = home / str(number)
        folder.mkdir()
        plan = planned(case, folder)
        whole = named(case, 1)
        full = {
            original: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + index
            for index, (original, shape) in enumerate(whole.shapes.items())
        }
        np.savez(folder / "full.npz", **stored_by(whole, 0, full))
        made[name] = Cut(case, full, plan, folder)
        orders.append([str(folder), str(folder / "here" / plan["strategy_files"][0]), case.num_ranks])
    environment = os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "GLOG_v": "3"}
    subprocess.run([sys.executable, "-c", CUT, json.dumps(orders)], env=environment, check=True)
    return made


def test_mindspore_cuts_a_checkpoint_as_our_specs_say(cuts: Mapping[str, Cut]) -> None:
    for name, cut in cuts.items():
        compare(cut, name)


def compare(cut: Cut, name: str) -> None:
    """Each rank's tensors that MindSpore has cut are those that our specs give it."""
    case = cut.case
    whole, ours = named(case, 1), named(case, case.model_parallel)
    shapes = {each["name"]: tuple(each["shape"]) for each in cut.plan["parameters"]}
    assert shapes == whole.stored_shapes(0)
    assert ("model.layers.0.attention.w_qkv.weight" in shapes) == case.qkv_concat
    for rank in range(case.num_ranks):
        found, expected = cut.rank(rank), stored_by(ours, rank % case.model_parallel, cut.full)
        assert found.keys() == expected.keys()
        for each, tensor in expected.items():
            np.testing.assert_array_equal(found[each], tensor, f"{name}: {each} on rank {rank}")


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
