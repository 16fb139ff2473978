"""Rank files that `mindbatch reshard` wrote, loaded by the native layers: the logits of the whole model."""

from pathlib import Path

import numpy as np
import pytest
from lockstep import logits
from model_folders import descriptions, ragged, write_folder

from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.placement.placements import allowed_model_parallel
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.interface import ProgramKernels
from mindbatch.models.registry import describe, tensor_specs
from mindbatch.parallel.topology import TensorSlice
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.task import run

TOKENS = 12
# Positions in a table, rotary ones, and more ranks than key-value heads.
FEW = [("llama", "auto", 2), ("gpt2", "auto", 4), ("qwen2", "auto", 8)]
ALL = [(case, kernels, most) for case in descriptions() for kernels, most in (("auto", 8), ("reference", 8))]
"""Model, kernels and the most ranks."""
OTHERS = [pytest.param(*each, marks=pytest.mark.on_demand) for each in ALL if each not in FEW]
SLOW = [pytest.param(*each, marks=pytest.mark.slow) for each in FEW[1:]]
MODELS = [
    pytest.param(case, "auto", 2, marks=pytest.mark.slow)
    for case in descriptions()
    if case not in {each for each, *_ in FEW}
]


def cut(source: Path, ways: int, kind: str) -> Path:
    config = ReshardConfig(source=str(source))
    config.target.dir = str(source.with_name(f"cut_{ways}"))
    config.target.model_parallel, config.target.format = ways, kind
    assert run(config) == 0
    return Path(config.target.dir)


@pytest.mark.parametrize(("case", "kernels", "most"), [FEW[0], *SLOW, *MODELS, *OTHERS])
def test_logits_of_all_ranks_are_those_of_the_whole(
    case: str, kernels: str, most: int, tmp_path: Path
) -> None:
    write_folder(tmp_path / "whole", descriptions()[case])
    whole, chosen = ModelFolder(tmp_path / "whole"), choose_kernels(kernels, "CPU")
    assert isinstance(chosen, ProgramKernels)
    arch = describe(whole.config)
    ids = max(ragged(case), key=len)[:TOKENS]
    (expected,) = logits(arch, [whole], chosen, ids)
    ways_of = [ways for ways in allowed_model_parallel(tensor_specs(arch)) if 1 < ways <= most]
    for number, ways in enumerate(ways_of):
        folder = cut(whole.path, ways, ("safetensors", "ckpt")[number % 2])
        ranks = [ModelFolder(folder, TensorSlice(rank, ways)) for rank in range(ways)]
        for found in logits(arch, ranks, chosen, ids):
            assert found.shape == expected.shape == (len(ids), arch.vocab_size)
            assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
            assert (found.argmax(-1) == expected.argmax(-1)).all()
