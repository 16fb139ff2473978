"""MindFormers' models compile for Ascend, as the first rank and the last of one, two and eight.

scripts/compile_for_ascend.sh runs it.
"""

import json
from typing import Any

import pytest

from mindbatch.ascend_simulation.compilation import DECODE, PROMPT
from mindbatch.ascend_simulation.process import simulate
from mindbatch.backends.mindformers.families import FAMILIES
from mindformers_configs import config
from simulated_compilation import compile_job, compile_jobs, first_and_last

pytestmark = [pytest.mark.simulation, pytest.mark.on_demand, pytest.mark.usefixtures("ascend_simulation")]
HEADS = {
    "num_attention_heads": 8,
    "n_head": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 512,
    "num_nextn_predict_layers": 0,
}
BY_FAMILY = {
    "deepseek_v3": {"n_group": 2},  # routed by groups; a dense layer and one with experts
    "glm4_moe": {},  # these two layers as well
    "telechat": {"n_layer": 1},
}


def job(family: str, size: int, ranks: list[int]) -> dict[str, Any]:
    small = config(family, **BY_FAMILY.get(family, {"num_hidden_layers": 1}))
    small |= {name: value for name, value in HEADS.items() if name in small}
    return compile_job("mindformers", small, size, ranks, max_batched_tokens=4)


JOBS = {
    f"{family} mp={size}": job(family, size, first_and_last(size))
    for family in FAMILIES
    for size in (1, 2, 8)
}


LLAMA = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 64,
}


def test_decoding_and_prompts_are_compiled_with_the_fused_operators() -> None:
    reports = [*simulate(compile_jobs, json.dumps(JOBS), seconds=3600.0)]
    assert [report for report in reports if "error" in report] == []
    for name, given in JOBS.items():
        for rank in given["ranks"]:
            of_rank = [each for each in reports if (each["job"], each["rank"]) == (name, rank)]
            check(of_rank, given["config"].get("num_hidden_layers", 1))


def check(reports: list[dict[str, Any]], num_layers: int) -> None:
    """Those of a rank."""
    assert [each for each in reports if "rule" in each] == []
    graphs = {each["kind"]: each for each in reports if each.get("kernels")}
    for kind in (DECODE, PROMPT):
        assert {"PagedAttention", "ReshapeAndCache"} <= {*graphs[kind]["kernels"]}
    (weights,) = (each for each in reports if "layer_bytes" in each)
    assert len(weights["layer_bytes"]) == num_layers
    assert min(*weights["layer_bytes"], weights["other_bytes"]) > 0
