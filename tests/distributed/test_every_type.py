"""Every model type gives the bytes of one process over several, or is refused before any is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_every_processor import KINDS
from type_cases import ALL_CASES, TYPE_CASES, config_of, first_of_each, type_of, write_case

from harness.same_bytes import WHOLE, Job, differences
from mindbatch import LLM
from mindbatch.checkpoint.placement.placements import allowed_model_parallel
from mindbatch.io.errors import ConfigError
from mindbatch.model_spec.registry import MODEL_TYPES, describe, tensor_specs

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def is_divided(case: str) -> bool:
    return 2 in allowed_model_parallel(tensor_specs(describe(config_of(case))))


DIVIDED = first_of_each(filter(is_divided, ALL_CASES))


def test_every_type_is_divided() -> None:
    assert {type_of(case) for case in DIVIDED} == {*MODEL_TYPES} - {"telechat3"}  # Llama under other defaults


@pytest.mark.parametrize("case", TYPE_CASES)
def test_results_are_the_same_bytes(case: str, tmp_path: Path) -> None:
    """Each in one type of weights, over two topologies and with an instruction set: `same_bytes.py`."""
    number = TYPE_CASES.index(case)
    kind = [*KINDS][number % len(KINDS)]
    job = Job(tmp_path / case, case)
    ways = [*job.ways([kind])]
    alone = [way for way in ways if way.topology == WHOLE]
    divided = [way for way in ways if way.topology != WHOLE]
    some = {alone[number % len(alone)], *(divided[(number + step) % len(divided)] for step in (0, 1))}
    assert not [*differences(job, [*some])]


def test_what_is_not_divided_is_refused_before_anything_starts(tmp_path: Path) -> None:
    fault = "does not divide the 3 heads of encoder.block.0.layer.0.SelfAttention.q.weight"
    with pytest.raises(ConfigError, match=f"parallel.model_parallel=2: {fault}"):
        LLM(write_case(tmp_path, "t5"), model_parallel=2)
