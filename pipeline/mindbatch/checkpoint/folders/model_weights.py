"""What the loader asks of the tensors of a model, whatever holds them: a model folder, or one rank's file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from mindbatch.checkpoint.formats.float_rounding import FloatArray
from mindbatch.parallel.topology import TensorSlice


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
        """The values, or those of some rows, of a tensor of FLOAT_DTYPES, in memory of their own."""
        ...
