"""A model over several real processes gives the tokens of one process, whatever is asked of it at a time."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_folders import MINDFORMERS_FIXTURE, descriptions, write_folder

from ascend_check import two_devices
from ascend_check.page import FAILED, PASSED
from mindbatch.parallel.topology import DeviceMap
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from mixed_requests import CACHED, PLAIN, SCHEMA, STORIES, TINY, compare, requests

pytestmark = [pytest.mark.slow, pytest.mark.processes]

MINDBATCH = Path(sys.executable).with_name("mindbatch")
CONSTRAINED: dict[str, dict[str, Any]] = {"schema": {"json_schema": SCHEMA}}


@pytest.mark.parametrize(
    ("size", "stages", "device_map", "kind"),
    [
        (2, 1, None, {}),
        (2, 2, "auto", {}),
        (2, 2, None, {"dtype": "bfloat16"}),
        (2, 2, None, {"quantization": "int8"}),
        pytest.param(4, 2, "auto", {}, marks=pytest.mark.on_demand),
    ],
)
def test_a_mixture_with_an_assistant_and_a_schema(
    size: int, stages: int, device_map: DeviceMap, kind: dict[str, str], tmp_path: Path
) -> None:
    """Stages round as one process does; a slice rounds its own part, and gives other tokens."""
    (tmp_path / "whole").symlink_to(TINY)
    kinds = PLAIN | CACHED | CONSTRAINED | {"drafted": {"num_assistant_tokens": 3}}
    model = {"checkpoint_name_or_path": str(TINY), "assistant": str(TINY), "batch_size": 8, **kind}
    asked = requests(kinds, 300)
    found = compare(tmp_path / "out", size, model, asked, stages=stages, device_map=device_map)
    assert found["statistics"]["accepted_tokens"] > 0
    if stages == 1:
        assert found["statistics"]["cached_prompt_tokens"] > 0
        assert found["statistics"]["steps"] > 3 * 16  # their tokens were compared


@pytest.mark.parametrize(
    ("case", "stages"),
    [
        ("gpt2", 1),
        pytest.param("llama3", 1, marks=pytest.mark.on_demand),
        pytest.param("gpt2", 2, marks=pytest.mark.on_demand),
        pytest.param("llama3", 2, marks=pytest.mark.on_demand),
    ],
)
def test_without_a_cache(case: str, stages: int, tmp_path: Path) -> None:
    write_folder(tmp_path / "whole", descriptions()[case])
    model = {"checkpoint_name_or_path": str(tmp_path / "whole"), "use_past": False, "batch_size": 8}
    compare(tmp_path / "out", 2, model, requests(PLAIN, 90), stages=stages, max_batched_tokens=400)


@pytest.mark.parametrize(("slices", "stages", "batch_size"), [(4, 1, 8), (2, 2, 4)])
def test_key_value_heads_that_ranks_share_from_rank_folders(
    slices: int, stages: int, batch_size: int, tmp_path: Path
) -> None:
    """llama3: 4 heads, 2 of keys and values, a vocabulary of 101, over 4 ranks."""
    write_folder(tmp_path / "whole", descriptions()["llama3"])
    config = ReshardConfig(source=str(tmp_path / "whole"))
    config.target.dir, config.target.model_parallel = str(tmp_path / "cut"), slices
    config.target.pipeline_stage = stages
    assert run(config) == 0
    model = {"checkpoint_name_or_path": str(tmp_path / "cut"), "batch_size": batch_size}
    compare(tmp_path / "out", 4, model, requests(PLAIN | CACHED, 90), stages=stages)


@pytest.mark.skipif(not STORIES.exists(), reason="needs a folder beside the project")
@pytest.mark.parametrize(
    ("size", "stages", "device_map"),
    [
        (2, 1, None),
        pytest.param(4, 1, None, marks=pytest.mark.on_demand),
        (3, 3, (1, 3, 1)),
        pytest.param(4, 2, None, marks=pytest.mark.on_demand),
    ],
)
def test_a_trained_llama(size: int, stages: int, device_map: DeviceMap, tmp_path: Path) -> None:
    (tmp_path / "whole").symlink_to(STORIES)
    model = {"checkpoint_name_or_path": str(STORIES), "batch_size": 8}
    asked = requests(PLAIN | CACHED | CONSTRAINED, 300)
    compare(tmp_path / "out", size, model, asked, stages=stages, device_map=device_map)


OTHER_FAMILIES = ("qwen2", "qwen3_moe", "glm4", "glm4_moe", "deepseek_v3", "deepseek_v3_yarn")


@pytest.mark.parametrize(
    "family", ["qwen3", *(pytest.param(name, marks=pytest.mark.on_demand) for name in OTHER_FAMILIES)]
)
def test_mindformers_own_model(family: str, tmp_path: Path) -> None:
    """Of a vocabulary that two ranks share, for MindFormers pads none."""
    description = json.loads(json.dumps(descriptions(MINDFORMERS_FIXTURE)[family]).replace("101", "102"))
    write_folder(tmp_path / "whole", description)
    model = {"checkpoint_name_or_path": str(tmp_path / "whole"), "provider": "mindformers", "batch_size": 8}
    few = {kind: PLAIN[kind] for kind in ("greedy", "sampled", "beams")}
    compare(tmp_path / "out", 2, model, requests(few, 90))


def test_a_dataset_over_two_stages_has_the_bytes_of_one_process(tmp_path: Path) -> None:
    prompts = ["An increasing sequence: one,", "", "Two, three", *map(str, range(9))]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"prompt": prompt}) for prompt in prompts))
    settings = ["model=tiny_gpt2", "decoding.do_sample=true", "decoding.max_new_tokens=16", "progress=none"]
    for stages in (1, 2):
        given = [f"data.path={tmp_path}/rows.jsonl", f"output.dir={tmp_path}/run{stages}", *settings]
        command = [MINDBATCH, "batch", *given, f"parallel.pipeline_stage={stages}"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert ended.returncode == 1, ended.stderr  # a row cannot be run
    for name in ("results.jsonl", "errors.jsonl"):
        assert (tmp_path / "run2" / name).read_bytes() == (tmp_path / "run1" / name).read_bytes()


def test_two_ranks_give_the_recorded_tokens(tmp_path: Path) -> None:
    found = two_devices.judged(tmp_path)
    assert (found.outcome, found.detail) == (PASSED, "the tokens of one process on a CPU")
    assert len([*(tmp_path / "run/logs").glob("rank_*.log")]) == 2


def test_without_npus_the_job_fails_with_what_its_ranks_say(tmp_path: Path) -> None:
    found = two_devices.judged(tmp_path, "runtime.device_target=Ascend")
    assert found.outcome == FAILED
    assert "runtime.device_target=Ascend: not available here" in found.detail
