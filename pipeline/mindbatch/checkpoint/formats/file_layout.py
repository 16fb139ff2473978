"""Where everything in a file of tensors goes, known beforehand; and whole files written by it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.formats.stored import (
    DTYPES,
    Extent,
    TensorEntry,
    dtype_faults,
    name_faults,
    shape_faults,
)
from mindbatch.errors import CheckpointError
from mindbatch.storage import Storage, WholeFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@dataclass(frozen=True)
class FileLayout:
    """A file of `total_bytes`: the pieces of `head` at their offsets, and each tensor's bytes at its extents.

    Head and extents cover the file exactly once, so that they may be written in any order, by any number of
    processes.
    """

    total_bytes: int
    head: Sequence[tuple[int, bytes]]
    extents: Mapping[str, tuple[Extent, ...]]

    @property
    def head_digest(self) -> str:
        """The hex SHA-256 of the head, as digests.json has it (see `StoredFile.head_digest`)."""
        digest = hashlib.sha256()
        for _, piece in sorted(self.head):
            digest.update(piece)
        return digest.hexdigest()


def entry_faults(tensors: Iterable[TensorEntry]) -> list[str]:
    """What keeps tensors from being written: names, dtypes and shapes that no reader would take."""
    faults, seen = [], set[str]()
    for name, dtype, shape in tensors:
        found = [*name_faults(name), *(["is there twice"] if name in seen else [])]
        found += dtype_faults(dtype) or shape_faults([*shape], DTYPES[dtype])
        faults += [f"tensor {shown(name)}: {fault}" for fault in found]
        seen.add(name)
    return faults


def write_tensor_file(
    path: Path,
    layout: FileLayout,
    contents: Callable[[str], Iterable[ReadableBuffer]],
    storage: Storage | None = None,
) -> None:
    """Writes a whole file, durable and at once or not at all.

    contents: gives the bytes of a tensor in pieces of any size; asked once a tensor, in file order.

    Raises:
        CheckpointError: a tensor's bytes are fewer or more than the layout has.
        StorageError: the file cannot be written.
    """
    parts: list[tuple[int, bytes | tuple[str, int]]] = [*layout.head]
    for name, extents in layout.extents.items():
        parts += [(offset, (name, nbytes)) for offset, nbytes in extents]
    open_contents: dict[str, _Contents] = {}
    with WholeFile(path, storage) as file:
        for _, part in sorted(parts, key=lambda part: part[0]):
            if isinstance(part, bytes):
                file.write(part)
                continue
            name, nbytes = part
            if name not in open_contents:
                open_contents[name] = _Contents(f"{path}: tensor {shown(name)}", contents(name))
            open_contents[name].copy(file, nbytes)
        raise_if_any(
            [each.where + ": more bytes than it has" for each in open_contents.values() if each.is_more]
        )


class _Contents:
    """The bytes of a tensor, handed on in other portions than they come in."""

    def __init__(self, where: str, pieces: Iterable[ReadableBuffer]) -> None:
        self.where = where
        self._pieces = iter(pieces)
        self._rest = memoryview(b"")

    def copy(self, file: WholeFile, count: int) -> None:
        """Writes the next `count` bytes."""
        while count:
            if not self._advance():
                raise CheckpointError(f"{self.where}: {count} bytes fewer than it has")
            taken = self._rest[:count]
            file.write(taken)
            self._rest, count = self._rest[len(taken) :], count - len(taken)

    @property
    def is_more(self) -> bool:
        """Whether anything is left."""
        return self._advance()

    def _advance(self) -> bool:
        """Goes to the next piece that has bytes, unless the present one has some left."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._rest = memoryview(piece).cast("B")
        return True
