"""verify=logits finds what reading back cannot: a wrong plan, whose files are just what it says."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mindbatch.architecture.architecture import Architecture
from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.reshard.execution import execute_plan
from mindbatch.checkpoint.reshard.job import Job
from mindbatch.checkpoint.reshard.plan import ReshardPlan
from mindbatch.io.errors import CheckpointError
from mindbatch.loading.first_logits import FloatArray, first_logits
from mindbatch.tasks.reshard.logits_check import LogitsCheck, WholeCheckpoint, logits_check
from mindbatch.tasks.reshard.plan import plan_reshard
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import open_reshard_source
from reshard_models import LLAMA, write_model

KEY, VALUE = "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight"
NORM = "model.layers.0.input_layernorm.weight"


def here(config: ReshardConfig, architecture: Architecture) -> FloatArray:
    """As logits_of, without the wait for another process."""
    with WholeCheckpoint(config) as model:
        return first_logits(architecture, model)


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mindbatch.tasks.reshard.logits_check.logits_of", here)


def planned(folder: Path, dtype: str = "keep", ways: int = 2) -> tuple[ReshardPlan, LogitsCheck]:
    source = write_model(folder / "source", LLAMA)
    config = ReshardConfig(source=str(source), verify="logits")
    config.target.dir, config.target.dtype = str(folder / "target"), dtype
    config.target.model_parallel = ways
    opened = open_reshard_source(config)
    with opened.source:
        found = plan_reshard(config, opened)
        return found, logits_check(config, opened, found)


@pytest.mark.parametrize("ways", [1, pytest.param(8, marks=pytest.mark.slow)])
def test_a_right_one_is_equal_to_the_last_bit(tmp_path: Path, ways: int) -> None:
    found, check = planned(tmp_path, ways=ways)
    assert execute_plan(found, approve=check).is_new
    assert str(check.difference) == "first logits equal at 32 positions"


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_is_allowed(tmp_path: Path, dtype: str) -> None:
    found, check = planned(tmp_path, dtype)
    execute_plan(found, approve=check)
    assert check.difference is not None
    assert 0 < check.difference.largest < check.difference.scale


@pytest.mark.parametrize("dtype", ["keep", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_keys_that_are_values_are_found(tmp_path: Path, dtype: str) -> None:
    """Every element is read back as the plan says, and all digests are right."""
    found, check = planned(tmp_path, dtype)
    jobs = {job.name: job for job in found.jobs}

    def wrong(job: Job) -> Job:
        other = {KEY: VALUE, VALUE: KEY}.get(job.name, job.name)
        return dataclasses.replace(
            job, readings=dict(zip(job.readings, jobs[other].readings.values(), strict=True))
        )

    plan = dataclasses.replace(found, jobs=tuple(map(wrong, found.jobs)))
    assert plan.verify
    with pytest.raises(CheckpointError, match="first logits differ"):
        execute_plan(plan, approve=check)
    assert not plan.target.exists()


@pytest.mark.slow
def test_an_element_that_changed_with_its_digest_is_found(tmp_path: Path) -> None:
    found, check = planned(tmp_path, ways=1)
    execute_plan(found)
    layout = found.layouts["model.safetensors"]
    path = found.target / "model.safetensors"
    data = np.memmap(path, np.uint8, "r+")
    data[layout.extents[NORM][0].offset + 3] ^= 1
    data.flush()
    with pytest.raises(CheckpointError, match="is damaged"):
        check(found.target)
    record_digests(found.target, replace=True)
    with pytest.raises(CheckpointError, match="must be equal to the last bit"):
        check(found.target)
