"""Checks the tensors of an adapter in themselves: ranks, dtypes, values, and that they have an effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, FloatArray
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.lora.modules import AdaptedModule
from mindbatch.checkpoint.lora.names import Role, TensorNames
from mindbatch.checkpoint.lora.stored_array import read_array


def shape_faults(modules: TensorNames, rank: int, stored: Mapping[str, StoredTensor]) -> Iterator[str]:
    """Matrices of another rank than the settings say, or of other dtypes than floating point."""
    for names in modules.values():
        for role, along, kind in ((Role.A, 0, "[r, inputs]"), (Role.B, 1, "[outputs, r]")):
            info = stored[names[role]]
            if len(info.shape) != 2 or info.shape[along] != rank:
                yield f"tensor {shown(info.name)}: shape {[*info.shape]} must be {kind} with r={rank}"
        for name in names.values():
            if stored[name].dtype not in FLOAT_DTYPES:
                allowed = ", ".join(FLOAT_DTYPES)
                yield f"tensor {shown(name)}: dtype {stored[name].dtype} must be one of {allowed}"


def effect_faults(modules: Iterable[AdaptedModule]) -> Iterator[str]:
    """Values that are no numbers, and an adapter that changes nothing."""
    effective = False
    with OpenFiles() as files:
        for module in modules:
            read = {role: read_array(array, files) for role, array in module.arrays.items()}
            for role, array in read.items():
                if not np.isfinite(array).all():
                    name = module.arrays[role].name
                    yield f"tensor {shown(name)}: has values that are infinite or no numbers"
            effective = effective or _acts(read)
    if not effective:
        yield "lora_A or lora_B of every module is zero: the adapter would have no effect (was it trained?)"


def _acts(read: Mapping[Role, FloatArray]) -> bool:
    """Whether both matrices have something in them; NaN is no zero."""
    with np.errstate(invalid="ignore"):
        return bool(read[Role.A].any() and read[Role.B].any())
