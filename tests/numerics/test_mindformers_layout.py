"""MindSpore's own layout of a MindFormers model: every slice that it cuts is the one that our specs say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.checkpoint.names.dialect import Options
from mindbatch.checkpoint.names.registry import dialect, heads_of
from mindbatch.checkpoint.names.renamed_files import as_mindformers
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.checkpoint.placement.regions import RankFiles
from mindbatch.checkpoint.strategy.strategy_file import read_strategy
from mindbatch.config.compose import compose_task
from mindbatch.io.errors import BackendError
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.tasks.layout import task as layout_task
from mindbatch.tasks.layout.mindformers import InferredLayout, LayoutJob, infer_layouts, llama_options
from mindbatch.tasks.registry import TASKS

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("ascend_simulation")]
LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
}
QWEN2 = LLAMA | {"model_type": "qwen2"}


@dataclass(frozen=True)
class Case:
    config: Mapping[str, Any]
    data_parallel: int
    model_parallel: int
    qkv_concat: bool = False

    @property
    def num_ranks(self) -> int:
        return self.data_parallel * self.model_parallel

    @property
    def job(self) -> LayoutJob:
        arch = describe(self.config)
        options = llama_options(arch, self.data_parallel, self.model_parallel, qkv_concat=self.qkv_concat)
        return LayoutJob(options, self.data_parallel, self.model_parallel, vocab_emb_dp=False)


ALWAYS = {
    "llama mp=2": Case(LLAMA, 1, 2),
    "qwen2 mp=4, fused": Case(QWEN2, 1, 4, qkv_concat=True),
}
REFUSED = LayoutJob(llama_options(describe(LLAMA), 1, 1) | {"num_heads": 7}, 1, 2)
"""Heads that the ranks do not divide: found by MindFormers itself."""
ON_DEMAND = {
    "llama dp=2 mp=2": Case(LLAMA, 2, 2),
    "llama mp=4": Case(LLAMA, 1, 4),
    "llama mp=8": Case(LLAMA | {"num_key_value_heads": 8}, 1, 8),
    "qwen2 mp=2": Case(QWEN2, 1, 2),
    "qwen2 mp=8": Case(QWEN2 | {"num_key_value_heads": 8}, 1, 8),
}


def stored_by(names: RankFiles, rank: int, full: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """What a rank holds of full Hugging Face tensors, in its own names and forms."""
    found = {}
    for name, stored in names.ranks[rank].items():
        array = np.full(stored.shard.view, -1, np.float32)
        for tensor, segment in stored.segments:
            part = full[tensor][tuple(slice(*ends) for ends in segment.whole)]
            place = tuple(slice(*ends) for ends in segment.local)
            array[place] = part.T if segment.transposed else part
        found[name] = array.reshape(stored.shard.shape)
    return found


def named(case: Case, ways: int) -> RankFiles:
    """Our specs, in MindFormers' names."""
    arch = describe(case.config)
    options = Options(qkv_concat=case.qkv_concat)
    placed = placements(tensor_specs(arch), ways)
    return as_mindformers(dialect(arch.model_type, options), heads_of(arch), placed, ways)


@dataclass(frozen=True)
class Cut:
    """A full checkpoint by Hugging Face names, its layout, and what MindSpore has cut by that."""

    case: Case
    full: Mapping[str, NDArray[Any]]
    layout: InferredLayout
    folder: Path

    def rank(self, rank: int) -> dict[str, NDArray[Any]]:
        tensors = ms.load_checkpoint(f"{self.folder}/cut/rank_{rank}/cut_{rank}.ckpt")
        return {name: tensor.asnumpy() for name, tensor in tensors.items()}


@dataclass(frozen=True)
class Cuts:
    """Cases by name, and what became of the last job, which cannot be compiled."""

    cuts: Mapping[str, Cut]
    refusal: BackendError


@pytest.fixture(
    scope="module",
    params=[ALWAYS, pytest.param(ON_DEMAND, marks=pytest.mark.on_demand)],
    ids=["always", "others"],
)
def cuts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cuts:
    """The layouts of all cases, worked out in one process, and checkpoints cut by them."""
    home = tmp_path_factory.mktemp("cuts")
    cases: dict[str, Case] = request.param
    jobs = [case.job for case in cases.values()]
    layouts = infer_layouts([*jobs, REFUSED], timeout=600.0)
    made = {
        name: cut_by_mindspore(case, next(layouts), home / str(number))
        for number, (name, case) in enumerate(cases.items())
    }
    with pytest.raises(BackendError) as caught:
        next(layouts)
    return Cuts(made, caught.value)


def cut_by_mindspore(case: Case, layout: InferredLayout, folder: Path) -> Cut:
    """A checkpoint of numbers that are all different, cut by `transform_checkpoints`."""
    (folder / "full/rank_0").mkdir(parents=True)
    ((name, content),) = layout.strategy_files.items()
    (folder / name).write_bytes(content)
    whole = named(case, 1)
    full = {
        original: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + index
        for index, (original, shape) in enumerate(whole.shapes.items())
    }
    saved = [{"name": each, "data": ms.Tensor(tensor)} for each, tensor in stored_by(whole, 0, full).items()]
    ms.save_checkpoint(saved, str(folder / "full/rank_0/model.ckpt"))
    strategy = str(folder / name)
    ms.transform_checkpoints(str(folder / "full"), str(folder / "cut"), "cut_", None, strategy, process_num=1)
    return Cut(case, full, layout, folder)


def test_mindspore_cuts_a_checkpoint_as_our_specs_say(cuts: Cuts) -> None:
    for name, cut in cuts.cuts.items():
        compare(cut, name)


def compare(cut: Cut, name: str) -> None:
    """Each rank's tensors that MindSpore has cut are those that our specs give it."""
    case = cut.case
    whole, ours = named(case, 1), named(case, case.model_parallel)
    shapes = {each["name"]: tuple(each["shape"]) for each in cut.layout.parameters}
    assert shapes == whole.stored_shapes(0)
    assert ("model.layers.0.attention.w_qkv.weight" in shapes) == case.qkv_concat
    for rank in range(case.num_ranks):
        found, expected = cut.rank(rank), stored_by(ours, rank % case.model_parallel, cut.full)
        assert found.keys() == expected.keys()
        for each, tensor in expected.items():
            np.testing.assert_array_equal(found[each], tensor, f"{name}: {each} on rank {rank}")


@pytest.mark.on_demand
def test_each_pipeline_stage_has_its_strategy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command, as a user has it."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(LLAMA | {"num_hidden_layers": 2}))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    words = [
        "model.provider=mindformers",
        "model.checkpoint_name_or_path=../model",
        "parallel.model_parallel=2",
        "parallel.pipeline_stage=2",
        "layout.dir=strategy",
    ]
    assert layout_task.run(compose_task(TASKS["layout"], words).finish()) == 0  # type: ignore[arg-type]
    assert [path.name for path in Path().iterdir()] == ["strategy"]
    assert sorted(path.name for path in Path("strategy").iterdir()) == [
        "ckpt_strategy_rank_0.ckpt",
        "ckpt_strategy_rank_2.ckpt",
    ]
    strategy = read_strategy("strategy")
    assert strategy.num_ranks == 4
    stages = {layout.name: strategy.stage_of(layout) for layout in strategy.layouts}
    assert stages["model.layers.0.attention.wq.weight"] == 0
    assert stages["model.layers.1.attention.wq.weight"] == 1
    assert (stages["model.tok_embeddings.embedding_weight"], stages["lm_head.weight"]) == (0, 1)


def test_a_model_that_mindspore_refuses_is_one_line(cuts: Cuts) -> None:
    (line,) = cuts.refusal.lines
    assert line.startswith("the simulation of Ascend: rank 0 of 2: ")
    assert "7" in line
