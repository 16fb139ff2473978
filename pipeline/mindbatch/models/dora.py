"""DoRA's factors on the rows of adapted weights, from the base's: Liu et al. 2024, arXiv:2402.09353."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.folders.model_folder import ModelWeights
from mindbatch.checkpoint.lora.modules import LowRank
from mindbatch.errors import CheckpointError
from mindbatch.kernels.low_rank import Floats
from mindbatch.parallel.topology import WHOLE

ROWS_AT_ONCE = 4096


class RowScale(NamedTuple):
    """magnitude / norm of each row, and what keeps the module's own bias as it is: bias * (1 - factor)."""

    factor: Floats
    offset: Floats | None


def row_scale(whole: LowRank, folder: ModelWeights, name: str, *, is_turned: bool) -> RowScale:
    """The factors of a module with a magnitude. name: of its weight in the folder.

    is_turned: the weight is stored [inputs, outputs].

    Raises:
        CheckpointError: the folder was cut for a rank, so that the rows are not whole.
    """
    if folder.shard != WHOLE:
        raise CheckpointError(
            f"{folder.path}: was cut for one rank, and DoRA needs whole rows of {name}; give the folder of "
            "the whole model"
        )
    assert whole.magnitude is not None
    stored = folder.floats(name)
    factor = whole.magnitude / _norms(stored.T if is_turned else stored, whole)
    bias = f"{name.removesuffix('weight')}bias"
    return RowScale(factor, folder.floats(bias) * (1 - factor) if bias in folder.names else None)


def _norms(weight: Floats, whole: LowRank) -> Floats:
    """Of the rows of weight + scaling * B A."""
    found = np.empty(len(weight), np.float32)
    for first in range(0, len(weight), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        adapted = weight[rows] + np.float32(whole.scaling) * (whole.b[rows] @ whole.a)
        found[rows] = np.sqrt(np.einsum("oi,oi->o", adapted, adapted))
    return found
