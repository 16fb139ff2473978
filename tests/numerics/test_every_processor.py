"""A row has the same bits with every instruction set that has multiply-adds, here and on other machines.

fixtures/arithmetic.json has digests of them, which `tests/makers record_arithmetic` makes. In bfloat16 and
int8 AMX is a class of its own; plain x86 ("portable"), which has none, is in no class.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from recording import LastRun, load
from type_cases import TYPE_CASES, prompts_of, write_case

from mindbatch import DecodingParams
from mindbatch.kernels.native_library import NativeLibrary, find_library

KINDS = {"float32": {}, "bfloat16": {"dtype": "bfloat16"}, "int8": {"quantization": "int8"}}
RECORDED = Path(__file__).parent / "fixtures/arithmetic.json"
STRATEGIES = [
    DecodingParams(max_new_tokens=8, do_sample=True, top_p=0.9, top_k=0, seed=3, logprobs=2),
    DecodingParams(max_new_tokens=8, do_sample=True, top_k=5, temperature=1.7, min_p=0.05, seed=4),
    DecodingParams(max_new_tokens=8, do_sample=True, typical_p=0.8, top_k=0, seed=5),
    DecodingParams(max_new_tokens=8, num_beams=3, num_return_sequences=2),
    DecodingParams(max_new_tokens=8, penalty_alpha=0.5, top_k=4),
    DecodingParams(max_new_tokens=8, prompt_lookup_num_tokens=3, logprobs=1),
]
STRATEGIES_OF = "qwen3"
LONG = 120

pytestmark = pytest.mark.skipif(find_library() is None, reason="the C++ kernels were not built")


def digest(case: str, kind: str, variant: str, folder: Path, arithmetic: str = "auto") -> str:
    """Of all logits that greedy tokens are chosen from; of STRATEGIES_OF also of what each strategy makes.

    And of those behind a prompt that attention sums in parts.
    """
    how = {"instruction_set": variant, "arithmetic": arithmetic, **KINDS[kind]}
    llm = load(write_case(folder, case), max_batched_tokens=64, **how)
    prompts, of = prompts_of(case), hashlib.sha256()
    run = LastRun(llm, prompts, DecodingParams(max_new_tokens=6))
    for prefix in sorted(run.logits):
        of.update(np.array(prefix, np.int32).tobytes() + run.logits[prefix].tobytes())
    if case == STRATEGIES_OF:
        rows = prompts[: len(STRATEGIES)]
        run = LastRun(llm, [(prompts[0] * LONG)[:LONG]], DecodingParams(max_new_tokens=2))
        for prefix in sorted(run.logits):
            of.update(run.logits[prefix].tobytes())
        for result in LastRun(llm, rows, STRATEGIES).results:
            of.update(repr(result.outputs).encode())
    return of.hexdigest()[:16]


def is_comparable(variant: str, kind: str) -> bool:
    return variant != "portable" and (variant != "amx" or kind == "float32")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", TYPE_CASES)
def test_bits_are_those_of_other_processors(
    case: str, kind: str, tmp_path: Path, library: NativeLibrary
) -> None:
    variants = [variant for variant in library.variants if is_comparable(variant, kind)]
    if not variants:
        pytest.skip("this processor has no multiply-adds")
    expected = json.loads(RECORDED.read_text())[kind][case]
    ends = variants if case == STRATEGIES_OF else dict.fromkeys((variants[0], variants[-1]))
    assert {variant: digest(case, kind, variant, tmp_path) for variant in ends} == dict.fromkeys(
        ends, expected
    )


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_the_bits_of_other_processors_with_amx_too(
    kind: str, tmp_path: Path, library: NativeLibrary
) -> None:
    if library.variant == "portable":
        pytest.skip("this processor has no multiply-adds")
    expected = json.loads(RECORDED.read_text())[kind][STRATEGIES_OF]
    assert digest(STRATEGIES_OF, kind, "auto", tmp_path, arithmetic="vectors") == expected


def test_every_case_is_recorded() -> None:
    assert {kind: [*cases] for kind, cases in json.loads(RECORDED.read_text()).items()} == dict.fromkeys(
        KINDS, [*TYPE_CASES]
    )
