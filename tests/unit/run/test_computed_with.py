"""Which of the things that rows were computed with may decide their bits."""

import pytest

from mindbatch.ledger.ledger import ComputedWith
from mindbatch.run.manifest import differences


def kind(kernels: str, dtype: str = "float32", model_parallel: int = 1) -> ComputedWith:
    return {"dtype": dtype, "model_parallel": model_parallel, "kernels": kernels}


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [
        (kind("avx512"), kind("avx512_vnni"), []),
        (kind("avx512", "int8"), kind("avx512_bf16, avx512_vnni", "int8"), []),
        (kind("amx"), kind("avx512_bf16"), []),
        (kind("amx", "int8"), kind("avx512_bf16", "int8"), ["kernels amx -> avx512"]),
        (kind("avx512"), kind("avx2, avx512"), ["kernels avx512 -> avx2, avx512"]),
        (kind("ascend"), kind("avx2", model_parallel=2), ["kernels ascend -> avx2", "model_parallel 1 -> 2"]),
    ],
)
def test_differences(before: ComputedWith, now: ComputedWith, lines: list[str]) -> None:
    assert [line.replace('"', "") for line in differences(before, now)] == lines
