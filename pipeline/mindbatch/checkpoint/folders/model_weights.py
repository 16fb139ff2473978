"""What the loader asks of the tensors of a model, whatever holds them: a model folder, or one rank's file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mindbatch.checkpoint.formats.float_conversion import FLOAT_DTYPES, widen
from mindbatch.parallel.topology import TensorSlice

FloatArray = npt.NDArray[np.float32]

_BITS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


class StoredShape(Protocol):
    """How a tensor is stored."""

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class ModelWeights(Protocol):
    """Opened tensors by name, each verified against its digest, if there is one, before its values are given.

    held: the slice that was cut out of every tensor before it was stored; WHOLE for a full checkpoint.
    Raises CheckpointError for names that are not there, damage, and files that cannot be read any more.
    """

    @property
    def path(self) -> Path: ...

    @property
    def held(self) -> TensorSlice: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def file_name(self, name: str) -> str:
        """The name of the file that holds the tensor."""
        ...

    def info(self, name: str) -> StoredShape: ...

    def float32(self, name: str, *, rows: slice | None = None) -> FloatArray:
        """The values, or those of some rows, of a tensor of FLOAT_DTYPES; not to be written to."""
        ...

    def release(self, name: str) -> None:
        """Gives back what memory the tensor takes; it may be read again."""
        ...


def widened(data: memoryview | bytes | bytearray, dtype: str, shape: tuple[int, ...]) -> FloatArray:
    """Stored bytes of FLOAT_DTYPES as float32; for F32 the very same memory.

    Raises:
        ValueError: another dtype, or bytes that are not of the shape.
    """
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"dtype {dtype}; must be one of {', '.join(FLOAT_DTYPES)}")
    stored = np.frombuffer(data, _BITS[dtype]).reshape(shape)
    if dtype == "F32":
        return stored
    values = np.empty(shape, np.float32)
    widen(stored, dtype, values)
    return values
