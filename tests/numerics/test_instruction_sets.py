"""What holds for every instruction set, in any dtype: companions and the cache change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from last_logits import Run
from recording import load
from type_cases import prompts_of, write_case

from mindbatch import DecodingParams
from mindbatch.kernels.native_library import find_library

LIBRARY = find_library()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(LIBRARY is None, reason="the C++ kernels were not built")]
CASE = "qwen3"
KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
}
# A row alone has the number 0, on which what is drawn depends.
PARAMS = [
    DecodingParams(max_new_tokens=8, do_sample=True, top_p=0.9, top_k=0, seed=3),
    DecodingParams(max_new_tokens=10),
    DecodingParams(max_new_tokens=8, num_beams=3, num_return_sequences=2),
    DecodingParams(max_new_tokens=8, penalty_alpha=0.5, top_k=4),
    DecodingParams(max_new_tokens=8, prompt_lookup_num_tokens=3),
]
BLOCK = 16


@pytest.fixture(scope="module", params=[] if LIBRARY is None else LIBRARY.variants)
def variant(request: pytest.FixtureRequest) -> Iterator[str]:
    assert LIBRARY is not None
    before = LIBRARY.variant
    yield str(request.param)
    LIBRARY.set_variant(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_case(tmp_path_factory.mktemp(CASE), CASE)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_all_strategies_alone_together_and_without_caches(
    folder: Path, variant: str, kind: str
) -> None:
    llm = load(folder, max_batched_tokens=64, instruction_set=variant, **KINDS[kind])
    prompts = prompts_of(CASE)
    head = (prompts[0] * 2)[: 2 * BLOCK]
    rows, params = [head + row[:6] for row in prompts[1:11]], PARAMS * 2
    together = Run(llm, rows, params, batch_size=12, block_size=BLOCK)
    uncached = Run(llm, rows, params, batch_size=12, block_size=BLOCK, prefix_caching=False)
    alone = [Run(llm, [row], [own]) for row, own in zip(rows[:5], PARAMS, strict=True)]
    assert together.tokens == uncached.tokens
    assert together.tokens[:5] == [tokens for run in alone for tokens in run.tokens]
    for run in alone:
        for prefix, logits in run.logits.items():
            np.testing.assert_array_equal(logits, together.logits[prefix])
