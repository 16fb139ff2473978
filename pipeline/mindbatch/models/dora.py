"""DoRA's factors on the rows of adapted weights, from the base's weight."""

from typing import NamedTuple

from mindbatch.checkpoint.folders.model_folder import StoredWeights
from mindbatch.checkpoint.lora.modules import LowRank, row_factors
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.arrays import FloatArray
from mindbatch.parallel.topology import WHOLE


class RowScale(NamedTuple):
    """magnitude / norm of each row, and what keeps the module's own bias as it is: bias * (1 - factor)."""

    factor: FloatArray
    offset: FloatArray | None


def row_scale(whole: LowRank, folder: StoredWeights, name: str, *, is_turned: bool) -> RowScale:
    """The factors of a module with a magnitude. name: of its weight in the folder.

    is_turned: the weight is stored [inputs, outputs].

    Raises:
        CheckpointError: the folder was cut for a rank, so that the rows are not whole.
    """
    refuse_cut_rows(folder, name)
    stored = folder.floats(name)
    weight = stored.T if is_turned else stored
    factor = row_factors(whole, lambda start, stop: weight[start:stop])
    assert factor is not None
    bias = f"{name.removesuffix('weight')}bias"
    return RowScale(factor, folder.floats(bias) * (1 - factor) if bias in folder.names else None)


def refuse_cut_rows(folder: StoredWeights, name: str) -> None:
    """CheckpointError where the folder was cut for a rank: norms are of whole rows."""
    if folder.shard != WHOLE:
        raise CheckpointError(
            f"{folder.path}: was cut for one rank, and DoRA needs whole rows of {name}; give the folder of "
            "the whole model"
        )
