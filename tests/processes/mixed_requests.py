"""Requests of every kind at once, in one process and over several."""

import json
from pathlib import Path
from typing import Any

from mindbatch.config.model_schema import ModelConfig, RuntimeConfig
from mindbatch.loading.build import load_engine
from mindbatch.loading.setup import prepare
from mindbatch.parallel.topology import DeviceMap
from rank_group import answers, outputs_of

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
    "embedding": {"pooling": "mean"},
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
    loaded = load_engine(prepare(ModelConfig(**model), RuntimeConfig(**runtime)))
    found: dict[str, Any] = json.loads(json.dumps(outputs_of(loaded.engine, asked)))
    return found


def compare(
    out: Path,
    size: int,
    model: dict[str, Any],
    asked: list[dict[str, Any]],
    *,
    stages: int = 1,
    device_map: DeviceMap = None,
    **runtime: Any,
) -> dict[str, Any]:
    """Runs the requests in so many processes and in one; the leader's whole answer."""
    runtime = {"block_size": 8, "max_batched_tokens": 24, "cache_memory": "2MB", **runtime}
    divided = {"stages": stages, "device_map": device_map}
    found = answers(out, size, model, asked, runtime, **divided)
    expected = of_one_process(
        {**model, "checkpoint_name_or_path": str(out.parent / "whole")}, asked, **runtime
    )
    assert found["outputs"] == expected
    assert not any(output["error"] for output in expected.values())
    return found
