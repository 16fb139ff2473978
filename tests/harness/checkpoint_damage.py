"""Damages checkpoints of every format, a bit or a cut at a time; each must be refused by name, or do no harm.

python checkpoint_damage.py FOLDER [--flips 10000] [--cuts 10000] [--seed 0]: prints what it has done. An
assertion fails where damage is not noticed although digests, checksums or the format tell, where the message
does not name the file and the tensor, or where anything but a refusal comes of it.
"""

from __future__ import annotations

import argparse
import random
import tracemalloc
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.io.errors import CheckpointError, MindBatchError
from verified_sources import open_verified

MEMORY = 16 << 20
"""What reading any damaged file of a few KiB may allocate, 4 MiB for a piece of a tensor included."""


class Tells(Enum):
    """What is noticed: every changed bit; all that changes what is read; what is no longer of the format."""

    EVERYTHING = "everything"
    CHANGES = "changes"
    FORM = "form"


def read_all(path: Path) -> object:
    """Everything of a source, against its digests and checksums."""
    found = {}
    with open_verified(path) as source:
        for rank, tensors in enumerate(source.ranks):
            for name, tensor in tensors.tensors.items():
                data = bytearray(tensor.nbytes)
                tensors.read_into(name, 0, memoryview(data))
                found[rank, name] = (tensor.dtype, tensor.shape, bytes(data))
    return found


@dataclass
class Victim:
    """Something whose files are damaged in turn, and read in whole after each damage.

    damaged: shell patterns of these files. has_tensors: open_source reads it, too.
    names_tensors: the message names the tensor that holds the bit.
    cut_ends: where a file may end and be whole; None: anywhere.
    """

    path: Path
    tells: Tells
    damaged: tuple[str, ...] = ("*.ckpt", "*.safetensors")
    has_tensors: bool = True
    names_tensors: bool = False
    read: Callable[[Path], object] = read_all
    refusal: type[MindBatchError] = CheckpointError
    cut_ends: Collection[int] | None = field(default_factory=set)

    def __post_init__(self) -> None:
        self.whole = self.read(self.path)
        found = [self.path] if self.path.is_file() else sorted(self.path.rglob("*"))
        self.files = {f: f.read_bytes() for f in found if any(map(f.match, self.damaged))}
        self.places: dict[Path, list[tuple[int, int, str]]] = {}
        if self.has_tensors:
            with open_source(self.path) as source:
                for opened in (file for tensors in source.ranks for file in tensors.files.values()):
                    self.places[opened.path] = [
                        (e.offset, e.offset + e.nbytes, tensor.name)
                        for tensor in opened.tensors.values()
                        for e in tensor.extents
                    ]

    def flip(self, chance: random.Random) -> None:
        """One bit of one file."""
        file, whole = chance.choice(list(self.files.items()))
        damaged = bytearray(whole)
        position = chance.randrange(len(whole) * 8)
        damaged[position // 8] ^= 1 << position % 8
        held = [name for begin, end, name in self.places.get(file, ()) if begin <= position // 8 < end]
        message = self._try(file, bytes(damaged), f"bit {position}")
        if self.names_tensors:
            assert all(name in message for name in held), (
                f"{file}: bit {position} of {held}, refused with {message!r}"
            )

    def cut(self, chance: random.Random) -> None:
        """The end of one file."""
        file, whole = chance.choice(list(self.files.items()))
        length = chance.randrange(len(whole))
        message = self._try(file, whole[:length], f"cut to {length}")
        is_whole = self.cut_ends is None or length in self.cut_ends
        assert message or is_whole, f"{file}: cut to {length} was not noticed"
        places = self.places.get(file, [])
        ends = [end for _, end, _ in places]
        if message and places and min(ends) < length < max(ends):
            assert any(name in message for _, _, name in places), (
                f"{file}: cut to {length}, refused with {message!r}, which names no tensor"
            )

    def _try(self, file: Path, content: bytes, what: str) -> str:
        """The message with which the damaged file is refused, empty where it is not."""
        file.write_bytes(content)
        message, found = "", None
        try:
            found = self.read(self.path)
        except self.refusal as error:
            message = str(error)
        file.write_bytes(self.files[file])
        is_cut = len(content) < len(self.files[file])  # where a file may end is known to `cut`
        assert message or is_cut or self.tells is not Tells.EVERYTHING, f"{file}: {what} was not noticed"
        assert message or is_cut or self.tells is Tells.FORM or found == self.whole, (
            f"{file}: {what} was not noticed, and something else is read"
        )
        assert not message or file.name in message or self._is_blamed(file, message), (
            f"{file}: {what} was refused with {message!r}"
        )
        return message

    def _is_blamed(self, file: Path, message: str) -> bool:
        """Digests and indexes are believed, and the files of which they tell are named."""
        return file.suffix == ".json" and str(file.parent) in message


def main() -> None:
    from checkpoint_damage_victims import victims

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flips", type=int, default=10_000)
    parser.add_argument("--cuts", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    found = victims(arguments.folder)
    tracemalloc.start()
    for number in range(arguments.flips):
        found[number % len(found)].flip(chance)
    for number in range(arguments.cuts):
        found[number % len(found)].cut(chance)
    _, peak = tracemalloc.get_traced_memory()
    assert peak < MEMORY, f"{peak} bytes of memory at the peak"
    print(f"{arguments.flips} flips and {arguments.cuts} cuts in {len(found)} checkpoints")


if __name__ == "__main__":
    main()
