"""MindFormers' legacy Llama in the simulation of Ascend, as the only rank and as the last of two.

Files are loaded and a step is compiled: shapes and types are proved so, and no numbers.
"""

import json
from typing import Any

import pytest

from legacy_folders import rank_folder
from mindbatch.backends.failure import BackendError
from mindbatch.backends.simulation.plugin import find_plugin
from mindbatch.backends.simulation.process import simulate
from mindbatch.backends.simulation.symbols import needed_tool
from simulated_legacy import run_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each rank, in one process."""
    try:
        find_plugin()
        needed_tool("gcc", "cc")
        needed_tool("nm")
    except BackendError as error:
        pytest.skip(str(error))
    home = tmp_path_factory.mktemp("legacy")
    whole = rank_folder(home / "one")
    halves = rank_folder(
        home / "two", "target.model_parallel=2", "target.format=ckpt", "target.qkv_concat=true"
    )
    jobs: dict[str, dict[str, Any]] = {
        "whole": {"folder": whole, "rank": 0, "size": 1},
        "half": {"folder": halves, "rank": 1, "size": 2},
        "too many tensors": {"folder": whole, "rank": 0, "size": 1, "options": {"tie_word_embeddings": True}},
        "too few tensors": {"folder": whole, "rank": 0, "size": 1, "options": {"num_layers": 2}},
    }
    texts = [{**job, "folder": str(job["folder"])} for job in jobs.values()]
    return dict(zip(jobs, simulate(run_ranks, json.dumps(texts)), strict=True))


def test_ranks_load_their_files_and_compile_a_step(answers: dict[str, dict[str, Any]]) -> None:
    """The second rank of two has half of the key/value heads; logits and hidden states are whole on each."""
    for name, heads in (("whole", 2), ("half", 1)):
        found = answers[name]
        assert found["loaded"] == [[1, 1]], name
        assert (found["hidden"], found["logits"]) == ([2, 64], [2, 96]), name
        assert found["cache"] == [9, 16, heads, 16], name
        assert found["cache_bytes"] == 2 * 9 * 16 * heads * 16 * 2, name


def test_tensors_and_parameters_without_their_like_are_named(answers: dict[str, dict[str, Any]]) -> None:
    (line,) = answers["too many tensors"]["faults"]
    assert line.endswith("tensor 'lm_head.weight' was not taken by MindFormers' network")
    lines = answers["too few tensors"]["faults"]
    name = "model.layers.1.attention.wq.weight"
    assert any(line.endswith(f"parameter {name!r} of MindFormers' network was not loaded") for line in lines)
    assert not any("cache" in line for line in lines)
