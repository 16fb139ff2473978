"""Strategy files of `mindbatch layout`: MindSpore cuts by them what `mindbatch reshard` cuts, to the byte."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest

from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.checkpoint.placement.placements import placements, with_replicas
from mindbatch.checkpoint.strategy.placements import strategy_placements
from mindbatch.checkpoint.strategy.strategy_file import read_strategy
from mindbatch.config.compose import compose_task
from mindbatch.model_spec.registry import describe, tensor_specs
from mindbatch.tasks.layout import task as layout_task
from mindbatch.tasks.registry import TASKS
from mindbatch.tasks.reshard import task as reshard
from reshard_models import MODELS, contents, write_model

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A model of reshard_models with a vocabulary that 4 divides: 8 heads, 2 key/value heads."""

    model: str
    data_parallel: int = 1
    model_parallel: int = 1
    pipeline_stage: int = 1
    dtype: str = "F32"

    @property
    def config(self) -> dict[str, Any]:
        return {**MODELS[self.model], "vocab_size": 64}

    @property
    def name(self) -> str:
        return f"{self.model} {self.data_parallel}x{self.model_parallel}x{self.pipeline_stage} {self.dtype}"


CASES = (
    Case("llama", model_parallel=2),
    Case("llama", model_parallel=4),  # above the key/value heads
    Case("qwen2", model_parallel=2, dtype="BF16"),
    Case("qwen2", model_parallel=8, dtype="F16"),
    Case("llama", data_parallel=2, model_parallel=4),
    Case("llama", model_parallel=2, pipeline_stage=2),
    Case("tied", data_parallel=2, model_parallel=4, pipeline_stage=3),
    Case("gpt2", data_parallel=2, pipeline_stage=2),
)


@dataclass(frozen=True)
class Cut:
    """A case and its folder: the model, what plan has written, and what MindSpore's own tools cut by it."""

    case: Case
    place: Path

    @property
    def theirs(self) -> Path:
        return self.place / "theirs"


def run(task: Any, name: str, *words: str) -> None:
    assert task.run(compose_task(TASKS[name], words).finish()) == 0


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def cut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cut:
    case: Case = request.param
    place = tmp_path_factory.mktemp("cut")
    write_model(place / "model", case.config, case.dtype)
    run(
        layout_task,
        "layout",
        f"model.checkpoint_name_or_path={place}/model",
        f"parallel.data_parallel={case.data_parallel}",
        f"parallel.model_parallel={case.model_parallel}",
        f"parallel.pipeline_stage={case.pipeline_stage}",
        f"layout.dir={place}/strategy",
    )
    run(reshard, "reshard", f"source={place}/model", f"target.dir={place}/one", "target.format=ckpt")
    (place / "full/rank_0").mkdir(parents=True)
    shutil.copy(place / "one/model.ckpt", place / "full/rank_0/model.ckpt")
    strategy = place / "strategy/ckpt_strategy_rank_0.ckpt"
    if case.pipeline_stage > 1:
        ms.merge_pipeline_strategys(str(place / "strategy"), str(place / "merged.ckpt"))
        strategy = place / "merged.ckpt"
    ms.transform_checkpoints(
        str(place / "full"), str(place / "theirs"), "checkpoint_", None, str(strategy), process_num=1
    )
    return Cut(case, place)


def test_mindspore_cuts_as_the_resharder_does(cut: Cut, tmp_path: Path) -> None:
    case = cut.case
    run(
        reshard,
        "reshard",
        f"source={cut.place}/model",
        f"target.dir={tmp_path}/ours",
        f"target.model_parallel={case.model_parallel}",
        f"target.pipeline_stage={case.pipeline_stage}",
        "target.format=ckpt",
    )
    ours, found = contents(tmp_path / "ours"), contents(cut.theirs)
    devices = case.data_parallel * case.model_parallel
    assert len(found) == devices * case.pipeline_stage
    for rank, held in enumerate(found):
        stage, position = divmod(rank, devices)
        same = stage * case.model_parallel + position % case.model_parallel
        assert held == ours[same], f"rank {rank}"
        content = (tmp_path / f"ours/rank_{same}/checkpoint_{same}.ckpt").read_bytes()
        assert (cut.theirs / f"rank_{rank}/checkpoint_{rank}.ckpt").read_bytes() == content


def test_what_was_cut_by_them_is_merged_by_them(cut: Cut, tmp_path: Path) -> None:
    run(
        reshard,
        "reshard",
        f"source={cut.theirs}",
        f"source_strategy={cut.place}/strategy",
        f"source_config={cut.place}/model",
        f"target.dir={tmp_path}/whole",
        "verify=true",
    )
    assert contents(tmp_path / "whole") == contents(cut.place / "model")


def test_they_say_what_the_specs_say(cut: Cut) -> None:
    case = cut.case
    specs = tensor_specs(describe(case.config))
    expected = with_replicas(
        placements(specs, case.model_parallel, case.pipeline_stage), case.model_parallel, case.data_parallel
    )
    strategy = read_strategy(cut.place / "strategy")
    assert strategy_placements(strategy, source_shapes(specs)) == expected
