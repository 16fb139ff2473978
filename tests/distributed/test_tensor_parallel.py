"""A model over several real processes gives the tokens of one process, whatever is asked of it at a time."""

import json
from pathlib import Path

import pytest
from model_folders import MINDFORMERS_FIXTURE, descriptions, write_folder

from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from mixed_requests import CACHED, PLAIN, SCHEMA, STORIES, TINY, compare, requests

pytestmark = pytest.mark.slow


@pytest.mark.processes
def test_a_mixture_with_an_assistant_and_a_schema(tmp_path: Path) -> None:
    (tmp_path / "whole").symlink_to(TINY)
    kinds = PLAIN | CACHED | {"schema": {"json_schema": SCHEMA}, "drafted": {"num_assistant_tokens": 3}}
    model = {"checkpoint_name_or_path": str(TINY), "assistant": str(TINY), "batch_size": 8}
    found = compare(tmp_path / "out", 2, model, requests(kinds, 300))
    assert found["statistics"]["cached_prompt_tokens"] > 0
    assert found["statistics"]["steps"] > 3 * 16  # their tokens were compared


@pytest.mark.processes
@pytest.mark.parametrize("case", ["gpt2", pytest.param("llama3", marks=pytest.mark.on_demand)])
def test_without_a_cache(case: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "whole", descriptions()[case])
    model = {"checkpoint_name_or_path": str(tmp_path / "whole"), "use_past": False, "batch_size": 8}
    compare(tmp_path / "out", 2, model, requests(PLAIN, 90), max_batched_tokens=400)


@pytest.mark.processes
def test_key_value_heads_that_ranks_share_from_rank_folders(tmp_path: Path) -> None:
    """llama3: 4 heads, 2 of keys and values, a vocabulary of 101, over 4 ranks."""
    write_folder(tmp_path / "whole", descriptions()["llama3"])
    config = ReshardConfig(source=str(tmp_path / "whole"))
    config.target.dir, config.target.model_parallel = str(tmp_path / "cut"), 4
    assert run(config) == 0
    model = {"checkpoint_name_or_path": str(tmp_path / "cut"), "batch_size": 8}
    compare(tmp_path / "out", 4, model, requests(PLAIN | CACHED, 90))


@pytest.mark.processes
@pytest.mark.skipif(not STORIES.exists(), reason="needs a folder beside the project")
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.on_demand)])
def test_a_trained_llama(size: int, tmp_path: Path) -> None:
    (tmp_path / "whole").symlink_to(STORIES)
    kinds = PLAIN | CACHED | {"schema": {"json_schema": SCHEMA}}
    model = {"checkpoint_name_or_path": str(STORIES), "batch_size": 8}
    compare(tmp_path / "out", size, model, requests(kinds, 300))


OTHER_FAMILIES = ("qwen2", "qwen3_moe", "glm4", "glm4_moe", "deepseek_v3", "deepseek_v3_yarn")


@pytest.mark.processes
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
