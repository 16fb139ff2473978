"""Damages checkpoints of every format, a bit or a cut at a time; each must be refused by name, or do no harm.

python checkpoint_damage.py FOLDER [--flips 10000] [--cuts 10000] [--seed 0]: prints what it has done. An
assertion fails where damage is not noticed although digests or checksums tell, where the message does not
name the file (with digests, the tensor), or where anything but a refusal comes of it.
"""

from __future__ import annotations

import argparse
import random
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from ckpt_bytes import ckpt_bytes, text_value, with_crc
from safetensors_writer import bfloat16_bits, safetensors_bytes, write_folder, write_shards

from mindbatch.checkpoint.digests import DIGESTS_NAME, digests_of, write_digests
from mindbatch.checkpoint.strategy import OperatorStrategy, Strategy
from mindbatch.checkpoint.strategy_file import read_strategy
from mindbatch.checkpoint.strategy_wire import strategy_bytes
from mindbatch.checkpoint.tensor_layout import TensorLayout
from mindbatch.checkpoint.tensor_set import open_source
from mindbatch.errors import CheckpointError

MEMORY = 16 << 20
"""What reading any damaged file of a few KiB may allocate, 4 MiB for a piece of a tensor included."""

TENSORS = {
    "model.embed.weight": np.arange(60, dtype=np.float32).reshape(12, 5),
    "model.norm.weight": bfloat16_bits(np.arange(7)),
    "step": np.array(12, np.int64),
}


def read_all(path: Path) -> None:
    """Everything of a source, against its digests and checksums."""
    with open_source(path, verify=True) as source:
        for tensors in source.ranks:
            for name, tensor in tensors.tensors.items():
                tensors.read_into(name, 0, memoryview(bytearray(tensor.nbytes)))


@dataclass
class Victim:
    """A source whose files are damaged in turn.

    is_told: whether digests or a checksum tell every change; names_tensors: and of which tensor.
    cut_ends: where a file may end and be whole; None: anywhere.
    """

    path: Path
    is_told: bool
    names_tensors: bool = False
    read: Callable[[Path], object] = read_all
    cut_ends: set[int] | None = field(default_factory=set)

    def __post_init__(self) -> None:
        self.read(self.path)
        found = self.path.rglob("*") if self.path.is_dir() else [self.path]
        endings = (".ckpt", ".safetensors")
        self.files = {file: file.read_bytes() for file in sorted(found) if file.name.endswith(endings)}
        self.places: dict[Path, list[tuple[int, int, str]]] = {}
        if self.read is read_all:
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
        self._try(file, bytes(damaged), self.is_told, held, f"bit {position}")

    def cut(self, chance: random.Random) -> None:
        """The end of one file."""
        file, whole = chance.choice(list(self.files.items()))
        length = chance.randrange(len(whole))
        self._try(
            file,
            whole[:length],
            self.cut_ends is not None and length not in self.cut_ends,
            [],
            f"cut to {length}",
        )

    def _try(self, file: Path, content: bytes, must_refuse: bool, held: list[str], what: str) -> None:
        file.write_bytes(content)
        message = ""
        try:
            self.read(self.path)
        except CheckpointError as error:
            message = str(error)
        file.write_bytes(self.files[file])
        assert message or not must_refuse, f"{file}: {what} was not noticed"
        assert not message or file.name in message, f"{file}: {what} was refused with {message!r}"
        if self.names_tensors:
            assert all(name in message for name in held), (
                f"{file}: {what} in {held}, refused with {message!r}"
            )


def with_digests(folder: Path) -> None:
    """Writes digests.json for the one file of a folder."""
    with open_source(folder) as source:
        (folder / DIGESTS_NAME).write_bytes(digests_of(source.ranks[0].files).as_json())


def one_file(path: Path, content: bytes, digests: bool = False) -> Path:
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    if digests:
        with_digests(path.parent)
    return path


def ends_between_tensors() -> set[int]:
    """Where a .ckpt of TENSORS may end and nobody can tell."""
    items = list(TENSORS.items())
    return {len(ckpt_bytes(dict(items[:count]), 16)) for count in range(1, len(items) + 1)}


def victims(folder: Path) -> list[Victim]:
    """Every format, with and without something that tells damage."""
    ckpt, text = ckpt_bytes(TENSORS, 16), text_value("note", "saved by hand")
    safetensors = safetensors_bytes(TENSORS)
    shards = {f"{index}.safetensors": {name: TENSORS[name]} for index, name in enumerate(TENSORS)}
    for home in (write_folder(folder / "single", TENSORS), write_shards(folder / "shards", shards)):
        write_digests(home)
    for rank, content in enumerate((ckpt, safetensors)):
        suffix = "safetensors" if rank else "ckpt"
        one_file(folder / f"ranks/rank_{rank}/m{rank}-1_2.{suffix}", content, digests=True)
    layouts = (TensorLayout("w", (2, 4), (0, -1)), TensorLayout("v", (2, 4), ((1, 0), -1), opt_shard_size=-1))
    strategy = Strategy(layouts, (OperatorStrategy("MatMul-op0", 0, ((1, 4), (4, 1))),))
    return [
        Victim(folder / "single", True, True),
        Victim(folder / "shards", True, True),
        Victim(folder / "ranks", True, True),
        Victim(one_file(folder / "told/m.ckpt", ckpt + text, digests=True), True, True),
        Victim(one_file(folder / "crc/m.ckpt", with_crc(ckpt)), True, cut_ends=ends_between_tensors()),
        Victim(one_file(folder / "bare/m.ckpt", ckpt), False, cut_ends=ends_between_tensors()),
        Victim(one_file(folder / "bare_st/m.safetensors", safetensors), False),
        Victim(
            one_file(folder / "strategy/s.ckpt", strategy_bytes(strategy)),
            False,
            read=read_strategy,
            cut_ends=None,
        ),
    ]


def main() -> None:
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
