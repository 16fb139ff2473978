"""A model over several real processes gives the tokens of one process, whatever is asked of it at a time."""

import json
from pathlib import Path
from typing import Any

import pytest
from model_folders import descriptions, write_folder

from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.engine.build import load_model
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run
from rank_group import answers, outputs_of

pytestmark = pytest.mark.slow

TINY = Path(__file__).parents[2] / "examples/tiny_gpt2"
STORIES = Path(__file__).parents[3] / "shared/data/stories260K"
PLAIN: dict[str, dict[str, Any]] = {
    "greedy": {},
    "again": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    "sampled": {"do_sample": True, "seed": 7, "top_p": 0.9, "temperature": 1.4},
    "samples": {"do_sample": True, "seed": 3, "num_return_sequences": 3, "top_k": 20},
    "beams": {"num_beams": 3, "num_return_sequences": 2},
    "groups": {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    "scored": {"logprobs": 2, "prompt_logprobs": 2},
}
CACHED: dict[str, dict[str, Any]] = {
    "contrastive": {"penalty_alpha": 0.6, "top_k": 4},
    "looked_up": {"prompt_lookup_num_tokens": 3},
}
SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'


def requests(kinds: dict[str, dict[str, Any]], vocabulary: int) -> list[dict[str, Any]]:
    """Prompts of several lengths, some of which begin alike, longer than a step and a block."""
    common = [(3 * place + 1) % vocabulary for place in range(20)]
    asked = []
    for index, (kind, params) in enumerate(kinds.items()):
        prompt = [*common[: 20 - index], index, *common[index : 2 * index]]
        asked.append({"key": kind, "prompt": prompt, "params": {"max_new_tokens": 18, **params}})
    return asked


def of_one_process(model: dict[str, Any], asked: list[dict[str, Any]], **runtime: Any) -> dict[str, Any]:
    loaded = load_model(ModelConfig(**model), RuntimeConfig(**runtime))
    found: dict[str, Any] = json.loads(json.dumps(outputs_of(loaded.engine, asked)))
    return found


def compare(
    out: Path,
    size: int,
    model: dict[str, Any],
    asked: list[dict[str, Any]],
    *,
    through_mindspore: bool = False,
    **runtime: Any,
) -> dict[str, Any]:
    """Runs the requests in so many processes and in one; the leader's whole answer."""
    runtime = {"block_size": 4, "max_batched_tokens": 24, "cache_memory": "2MB", **runtime}
    found = answers(out, size, model, asked, runtime, through_mindspore=through_mindspore)
    expected = of_one_process(
        {**model, "checkpoint_name_or_path": str(out.parent / "whole")}, asked, **runtime
    )
    assert found["outputs"] == expected
    assert not any(output["error"] for output in expected.values())
    return found


def test_a_mixture_with_an_assistant_and_a_schema(tmp_path: Path) -> None:
    (tmp_path / "whole").symlink_to(TINY)
    kinds = PLAIN | CACHED | {"schema": {"json_schema": SCHEMA}, "drafted": {"num_assistant_tokens": 3}}
    model = {"checkpoint_name_or_path": str(TINY), "assistant": str(TINY), "batch_size": 8}
    found = compare(tmp_path / "out", 2, model, requests(kinds, 300))
    assert found["statistics"]["cached_prompt_tokens"] > 0
    assert found["statistics"]["steps"] > 3 * 16  # their tokens were compared


@pytest.mark.parametrize("case", ["gpt2", pytest.param("llama3", marks=pytest.mark.on_demand)])
def test_without_a_cache(case: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "whole", descriptions()[case])
    model = {"checkpoint_name_or_path": str(tmp_path / "whole"), "use_past": False, "batch_size": 8}
    compare(tmp_path / "out", 2, model, requests(PLAIN, 90), max_batched_tokens=400)


def test_key_value_heads_that_ranks_share_from_rank_folders(tmp_path: Path) -> None:
    """llama3: 4 heads, 2 of keys and values, a vocabulary of 101, over 4 ranks; MindSpore's collectives."""
    write_folder(tmp_path / "whole", descriptions()["llama3"])
    config = ReshardConfig(source=str(tmp_path / "whole"))
    config.target.dir, config.target.model_parallel = str(tmp_path / "cut"), 4
    assert run(config) == 0
    model = {"checkpoint_name_or_path": str(tmp_path / "cut"), "batch_size": 8}
    compare(tmp_path / "out", 4, model, requests(PLAIN | CACHED, 90), through_mindspore=True)


@pytest.mark.skipif(not STORIES.exists(), reason="needs a folder beside the project")
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.on_demand)])
def test_a_trained_llama(size: int, tmp_path: Path) -> None:
    (tmp_path / "whole").symlink_to(STORIES)
    kinds = PLAIN | CACHED | {"schema": {"json_schema": SCHEMA}}
    model = {"checkpoint_name_or_path": str(STORIES), "batch_size": 8}
    compare(tmp_path / "out", size, model, requests(kinds, 300))
