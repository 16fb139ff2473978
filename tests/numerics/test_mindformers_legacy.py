"""MindFormers' legacy models in the simulation of Ascend, as the only rank and as the last of two.

Files are loaded and a step is compiled: shapes and types are proved so, and no numbers.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from mindspore import nn

from legacy_folders import CHATGLM, rank_folder
from mindbatch.backends.mindformers.legacy.weights import load_rank
from mindbatch.backends.simulation.process import simulate
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.errors import CheckpointError
from mindbatch.kernels.memory import BFLOAT16, FLOAT16, FloatType
from simulated_legacy import run_ranks

pytestmark = pytest.mark.simulation


@pytest.fixture(scope="module")
def answers(ascend_simulation: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What became of each rank, in one process."""
    home = tmp_path_factory.mktemp("legacy")
    whole = rank_folder(home / "one")
    halves = rank_folder(
        home / "two", "target.model_parallel=2", "target.format=ckpt", "target.qkv_concat=true"
    )
    chatglm = rank_folder(home / "chatglm", config=CHATGLM)
    chatglm_halves = rank_folder(
        home / "chatglms", "target.model_parallel=2", "target.qkv_concat=true", config=CHATGLM
    )
    jobs: dict[str, dict[str, Any]] = {
        "whole": {"folder": whole, "rank": 0, "size": 1},
        "half": {"folder": halves, "rank": 1, "size": 2},
        "chatglm": {"folder": chatglm, "rank": 0, "size": 1},
        "half of chatglm": {"folder": chatglm_halves, "rank": 1, "size": 2},
        "too many tensors": {"folder": whole, "rank": 0, "size": 1, "options": {"tie_word_embeddings": True}},
        "too few tensors": {"folder": whole, "rank": 0, "size": 1, "options": {"num_layers": 2}},
    }
    texts = [{**job, "folder": str(job["folder"])} for job in jobs.values()]
    return dict(zip(jobs, simulate(run_ranks, json.dumps(texts)), strict=True))


def test_ranks_load_their_files_and_compile_a_step(answers: dict[str, dict[str, Any]]) -> None:
    """The second rank of two has half of the key/value heads; logits and hidden states are whole on each."""
    for name, heads in (("whole", 2), ("half", 1), ("chatglm", 2), ("half of chatglm", 1)):
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


def load(folder: Path, float_type: FloatType) -> None:
    """Into a network without parameters: what is refused is refused before it."""
    with ModelFolder(folder) as model:
        load_rank(nn.Cell(), model, float_type, lambda done, total: None)


def test_float16_takes_files_in_float16_only(tmp_path: Path) -> None:
    folder = rank_folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"is BF16, .*target\.dtype=float16"):
        load(folder, FLOAT16)
    with pytest.raises(CheckpointError, match="was not taken"):
        load(folder, BFLOAT16)


def test_a_damaged_tensor_is_named_and_not_loaded(tmp_path: Path) -> None:
    path = rank_folder(tmp_path) / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load(path.parent, BFLOAT16)
