"""Matrices that stay as codes give the bytes of one process over slices and stages."""

from pathlib import Path
from typing import Any

import pytest

from mindbatch import LLM
from mindbatch.kernels.native_library import find_library
from quantised_folders import sample
from small_configs import LLAMA

pytestmark = [
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built"),
]

LARGER = {**LLAMA, "hidden_size": 256, "intermediate_size": 512, "eos_token_id": 2}
PROMPTS = [[1, 5, 9, 30, 2], [7, 7, 8], [3]]


def tokens(folder: Path, **topology: int) -> list[Any]:
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": True, "seed": 3, "logprobs": 2}
    with LLM(folder, quantization="auto", **topology) as llm:
        return [
            (choice.token_ids, choice.logprobs)
            for output in llm.generate(PROMPTS, **options)
            for choice in output.outputs
        ]


@pytest.mark.parametrize("method", ["gptq", "nvfp4", "fp8_block", "int8_zeros", "modelopt_mixed"])
def test_codes_over_processes(method: str, tmp_path: Path) -> None:
    sample(method, LARGER).write(tmp_path)
    alone = tokens(tmp_path)
    assert tokens(tmp_path, model_parallel=2) == alone
    assert tokens(tmp_path, pipeline_stage=2) == alone
