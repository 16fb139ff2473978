"""Runs operators and models on an NPU, or compiles them for one, and reports the results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ascend_check import operators
from ascend_check.models import FloatArray, recorded
from ascend_check.page import COMPILED, FAILED, PASSED, Result
from ascend_check.runs import logits
from mindbatch.backends.mindformers.graph_kernels import compiled
from mindbatch.kernels.choice import choose_kernels
from mindbatch.kernels.interface import Kernels
from mindbatch.kernels.mindspore_kernels import MindSporeKernels

SIMULATED = "simulated"
TOLERANCES = {"bfloat16": 0.05, "float16": 0.01}
"""Allowed difference relative to the largest expected number: about twelve roundings."""


def results(platform: str, dtype: str, *models: str) -> Iterator[dict[str, Any]]:
    """Yields the fields of a `Result` for each fused operator and each model.

    platform: SIMULATED where nothing is computed; all else is a real NPU.
    """
    kernels, is_simulated = choose_kernels("auto", "Ascend", dtype=dtype), platform == SIMULATED
    kernels.set_up()
    yield from _of_operators(compiled(kernels), is_simulated)
    for name in models:
        yield _of_model(kernels, name, is_simulated)


def _of_operators(kernels: MindSporeKernels, is_simulated: bool) -> Iterator[dict[str, Any]]:
    try:
        for name, (actual, expected) in operators.comparisons(kernels):
            yield _compared("operator", name, kernels, actual, expected, is_simulated)
    except Exception as error:
        yield _failed("operators", "the one after those above", kernels, error)


def _of_model(kernels: Kernels, name: str, is_simulated: bool) -> dict[str, Any]:
    try:
        actual = logits(name, kernels)
    except Exception as error:
        return _failed("model", name, kernels, error)
    return _compared("model", name, kernels, actual, recorded()[name], is_simulated)


def _compared(
    part: str, name: str, kernels: Kernels, actual: FloatArray, expected: FloatArray, is_simulated: bool
) -> dict[str, Any]:
    dtype = kernels.float_type.name
    if actual.shape != expected.shape:
        detail = f"shape {actual.shape}, expected {expected.shape}"
        return vars(Result(part, name, dtype, FAILED, detail))
    if is_simulated:
        return vars(Result(part, name, dtype, COMPILED, f"shape {actual.shape}"))
    error = float(np.abs(actual - expected).max() / np.abs(expected).max())
    outcome = PASSED if error <= TOLERANCES[dtype] else FAILED  # NaN is a failure, too
    same = float(np.mean(actual.argmax(-1) == expected.argmax(-1)))
    tokens = f", {same:.0%} of the tokens" if part == "model" else ""
    return vars(Result(part, name, dtype, outcome, f"{error:.5f} of {TOLERANCES[dtype]} allowed{tokens}"))


def _failed(part: str, name: str, kernels: Kernels, error: Exception) -> dict[str, Any]:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return vars(Result(part, name, kernels.float_type.name, FAILED, f"{type(error).__name__}: {line}"))
