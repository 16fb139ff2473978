"""MindFormers' families compile for Ascend, as the last rank of one, two and eight."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from mindbatch.backends.failure import BackendError
from mindbatch.backends.mindformers.families import FAMILIES
from mindbatch.backends.simulation.plugin import find_plugin
from mindbatch.backends.simulation.process import SimulationLimits, simulate
from mindbatch.backends.simulation.symbols import needed_tool
from mindbatch.engine.sample_steps import DECODE, PROMPT
from mindbatch.engine.settings import EngineSettings
from mindformers_configs import config
from simulated_compilation import compile_jobs

pytestmark = pytest.mark.slow
HEADS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 512,
    "num_nextn_predict_layers": 0,
}
SETTINGS = EngineSettings(batch_size=1, seq_length=32, block_size=16, num_blocks=16, max_batched_tokens=4)


@pytest.fixture(scope="module", autouse=True)
def _can_be_run() -> None:
    try:
        find_plugin()
        needed_tool("gcc", "cc")
        needed_tool("nm")
    except BackendError as error:
        pytest.skip(str(error))


def job(family: str, size: int, **changes: int) -> dict[str, Any]:
    small = config(family, **changes)
    return {
        "provider": "mindformers",
        "config": small | {name: value for name, value in HEADS.items() if name in small},
        "source": "config.json",
        "model_type": "auto",
        "ignore": [],
        "layers": [],
        "dtype": "auto",
        "settings": asdict(SETTINGS),
        "data_parallel": 1,
        "model_parallel": size,
        "ranks": [size - 1],
    }


ROUTED_IN_GROUPS = ("deepseek_v3", "glm4_moe")
"""Their router is one operator, FusedAddTopKDiv, whose only kernel is in a library that is not simulated."""
ALWAYS = {"qwen3_moe mp=8": job("qwen3_moe", 8, num_hidden_layers=1)}
ON_DEMAND = {f"{family} mp={size}": job(family, size) for family in FAMILIES for size in (1, 2, 8)}


@pytest.mark.parametrize(
    "jobs", [ALWAYS, pytest.param(ON_DEMAND, marks=pytest.mark.on_demand)], ids=["always", "others"]
)
def test_decoding_and_prompts_are_compiled_with_the_fused_operators(jobs: dict[str, Any]) -> None:
    reports = [*simulate(compile_jobs, json.dumps(jobs), limits=SimulationLimits(seconds=1800.0))]
    assert [report for report in reports if "error" in report] == []
    for name in jobs:
        of_job = [report for report in reports if report["job"] == name]
        if name.startswith(ROUTED_IN_GROUPS):
            refused = [each for each in of_job if "rule" in each]
            assert {each["operator"] for each in refused} == {"FusedAddTopKDiv"}, name
            assert refused[0]["layer"].endswith("layers.1.mlp.router")
        else:
            assert [each for each in of_job if "rule" in each] == []
            graphs = {each["kind"]: each for each in of_job if each.get("kernels")}
            for kind in (DECODE, PROMPT):
                assert {"PagedAttention", "ReshapeAndCache"} <= {*graphs[kind]["kernels"]}, name
        (weights,) = (each for each in of_job if "layer_bytes" in each)
        assert len(weights["layer_bytes"]) == jobs[name]["config"]["num_hidden_layers"]
        assert min(*weights["layer_bytes"], weights["other_bytes"]) > 0
