"""The layout of a file of tensors before it is written, and faults of tensors that no file can hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.stored import (
    DTYPES,
    ByteExtent,
    TensorEntry,
    dtype_faults,
    name_faults,
    shape_faults,
)


@dataclass(frozen=True)
class FileLayout:
    """A file of `total_bytes`: the parts of `head` at their offsets, and each tensor's bytes at its extents.

    Head and extents cover the file exactly once, so that they may be written in any order, by any number of
    processes.
    """

    total_bytes: int
    head: Sequence[tuple[int, bytes]]
    extents: Mapping[str, tuple[ByteExtent, ...]]

    @property
    def head_digest(self) -> str:
        """The hex SHA-256 of the head, as digests.json has it (see `StoredFile.head_digest`)."""
        digest = hashlib.sha256()
        for _, data in sorted(self.head):
            digest.update(data)
        return digest.hexdigest()


def entry_faults(tensors: Iterable[TensorEntry]) -> list[str]:
    """Lists what keeps tensors from being written: names, dtypes and shapes that no reader accepts."""
    faults, seen = [], set[str]()
    for name, dtype, shape in tensors:
        tensor_faults = [*name_faults(name), *(["is there twice"] if name in seen else [])]
        tensor_faults += dtype_faults(dtype) or shape_faults([*shape], DTYPES[dtype])
        faults += [f"tensor {shown(name)}: {fault}" for fault in tensor_faults]
        seen.add(name)
    return faults
