"""Every model type over two real processes gives the tokens of one, or is refused before any is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from type_cases import ALL_CASES, config_of, first_of_each, prompts_of, type_of, write_case

from mindbatch import LLM
from mindbatch.checkpoint.placement.placements import allowed_model_parallel
from mindbatch.io.errors import ConfigError
from mindbatch.model_spec.registry import MODEL_TYPES, describe, tensor_specs
from mixed_requests import compare

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def is_divided(case: str) -> bool:
    return 2 in allowed_model_parallel(tensor_specs(describe(config_of(case))))


DIVIDED = first_of_each(filter(is_divided, ALL_CASES))
KINDS: list[dict[str, Any]] = [
    {},
    {"do_sample": True, "seed": 7, "num_return_sequences": 2},
    {"num_beams": 3},
    {"logprobs": 1},
]


def test_every_type_is_divided() -> None:
    assert {type_of(case) for case in DIVIDED} == {*MODEL_TYPES} - {"telechat3"}  # Llama under other defaults


@pytest.mark.parametrize("case", DIVIDED)
def test_two_processes_give_the_tokens_of_one(case: str, tmp_path: Path) -> None:
    write_case(tmp_path / "whole", case)
    rows = [
        {"key": str(number), "prompt": prompt, "params": {"max_new_tokens": 12, **KINDS[number % len(KINDS)]}}
        for number, prompt in enumerate(prompts_of(case))
    ]
    assert len(rows) == 16
    model = {"checkpoint_name_or_path": str(tmp_path / "whole"), "batch_size": 6}
    compare(tmp_path / "out", 2, model, rows, max_batched_tokens=64)


def test_what_is_not_divided_is_refused_before_anything_starts(tmp_path: Path) -> None:
    fault = "does not divide the 3 heads of encoder.block.0.layer.0.SelfAttention.q.weight"
    with pytest.raises(ConfigError, match=f"parallel.model_parallel=2: {fault}"):
        LLM(write_case(tmp_path, "t5"), model_parallel=2)
