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
from typing import Any

import numpy as np
from adapter_folders import RANK, SHAPES, matrices, write_adapter, write_mindformers_adapter
from ckpt_bytes import ckpt_bytes, text_value, with_crc
from safetensors_writer import bfloat16_bits, safetensors_bytes, write_folder, write_shards

from mindbatch.checkpoint.folders.digests import record_digests
from mindbatch.checkpoint.folders.tensor_set import open_source
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.plan import BaseTensors, adapted_weights
from mindbatch.checkpoint.strategy.strategy import OperatorStrategy, Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import read_strategy, strategy_bytes
from mindbatch.io.errors import CheckpointError, MindBatchError
from mindbatch.launch.table_reader import RankTableError, read_rank_table
from rank_tables import plain_table, super_pod_table, write_json
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


# ---- a small one of every format, with and without what tells damage

TENSORS = {
    "model.embed.weight": np.arange(60, dtype=np.float32).reshape(12, 5),
    "model.norm.weight": bfloat16_bits(np.arange(7)),
    "step": np.array(12, np.int64),
}
INDEX = ("*.index.json",)
MAP = ("param_name_map.json",)
DIGESTS = ("digests.json",)


def victims(folder: Path) -> list[Victim]:
    """Every format."""
    return [
        *_model_folders(folder),
        *_ranks(folder / "ranks"),
        *_single_files(folder),
        *_strategies(folder / "strategies"),
        *_adapters(folder / "adapters"),
        *_tables(folder / "tables"),
    ]


def _model_folders(folder: Path) -> list[Victim]:
    shards = {f"{index}.safetensors": {name: TENSORS[name]} for index, name in enumerate(TENSORS)}
    single, several = write_folder(folder / "single", TENSORS), write_shards(folder / "shards", shards)
    unified = write_shards(folder / "unified", shards)
    (unified / "model.safetensors.index.json").rename(unified / "param_name_map.json")
    for home in (single, several, unified):
        record_digests(home)
    return [
        Victim(single, Tells.EVERYTHING, names_tensors=True),
        Victim(several, Tells.EVERYTHING, names_tensors=True),
        Victim(several, Tells.CHANGES, INDEX, cut_ends=_ends(several, *INDEX)),
        Victim(several, Tells.CHANGES, DIGESTS, cut_ends=_ends(several, *DIGESTS)),
        Victim(unified, Tells.EVERYTHING, names_tensors=True),
        Victim(unified, Tells.CHANGES, MAP, cut_ends=_ends(unified, *MAP)),
    ]


def _ranks(folder: Path) -> list[Victim]:
    for rank, content in enumerate((ckpt_bytes(TENSORS, 16), safetensors_bytes(TENSORS))):
        _file(folder / f"rank_{rank}/m{rank}-1_2.{'safetensors' if rank else 'ckpt'}", content)
    record_digests(folder)
    return [
        Victim(folder, Tells.EVERYTHING, names_tensors=True),
        Victim(folder, Tells.CHANGES, DIGESTS, cut_ends=_ends(folder, *DIGESTS)),
    ]


def _single_files(folder: Path) -> list[Victim]:
    ckpt, text = ckpt_bytes(TENSORS, 16), text_value("note", "saved by hand")
    told = _file(folder / "told/m.ckpt", ckpt + text)
    record_digests(told.parent)
    with_sum, bare = _file(folder / "crc/m.ckpt", with_crc(ckpt)), _file(folder / "bare/m.ckpt", ckpt)
    safetensors = _file(folder / "bare_st/m.safetensors", safetensors_bytes(TENSORS))
    items = list(TENSORS.items())
    between = {len(ckpt_bytes(dict(items[:count]), 16)) for count in range(1, len(items) + 1)}
    return [
        Victim(told, Tells.EVERYTHING, names_tensors=True),
        Victim(with_sum, Tells.EVERYTHING, cut_ends=between),  # and nobody can tell
        Victim(bare, Tells.FORM, cut_ends=between),
        Victim(safetensors, Tells.FORM),
    ]


def _strategies(folder: Path) -> list[Victim]:
    layouts = (TensorLayout("w", (2, 4), (0, -1)), TensorLayout("v", (2, 4), ((1, 0), -1), opt_shard_size=-1))
    strategy = Strategy(layouts, (OperatorStrategy("MatMul-op0", 0, ((1, 4), (4, 1))),))
    wire = _file(folder / "s.ckpt", strategy_bytes(strategy))
    item = {
        "dev_matrix": [2, 4], "tensor_map": [0, -1], "param_split_shape": [], "indices_offset": [],
        "field": 0, "opt_weight_shard_step": 0, "opt_weight_shard_size": 0,
    }  # fmt: skip
    content = {"current_stage": 0, "parallel_layout_item": {"w": item, "v": {**item, "tensor_map": [1, 0]}}}
    text = write_json(folder / "s.json", {**content, "parallel_strategy_item": {"op": {"stage": 0}}})
    return [
        Victim(wire, Tells.FORM, read=read_strategy, has_tensors=False, cut_ends=None),
        Victim(text, Tells.FORM, ("*.json",), read=read_strategy, has_tensors=False),
    ]


def _adapters(folder: Path) -> list[Victim]:
    peft = write_adapter(folder / "peft")
    tensors = matrices("{module}.mindpet_delta_lora_{which}", "ab")
    settings = {"r": RANK, "lora_alpha": 4, "target_modules": ".*q_proj|.*v_proj"}
    mindformers = write_mindformers_adapter(folder / "mindformers", tensors, settings)
    config = ("adapter_config.json",)
    found = []
    for home in (peft, mindformers):
        record_digests(home)
        found += [
            Victim(home, Tells.EVERYTHING, names_tensors=True, read=read_adapter),
            Victim(home, Tells.FORM, config, read=read_adapter, cut_ends=_ends(home, *config)),
        ]
    return found


def read_adapter(path: Path) -> object:
    """All of an adapter: what it adds to which weight."""
    adapter = open_adapter(path)
    low_ranks = {
        name: module.low_rank() for name, module in adapted_weights(adapter, BaseTensors(SHAPES)).items()
    }
    return adapter.settings, {name: (each.a.tobytes(), each.b.tobytes()) for name, each in low_ranks.items()}


def _tables(folder: Path) -> list[Victim]:
    folder.mkdir()
    tables = {"plain": plain_table(2, 4), "pods": super_pod_table()}
    files = [write_json(folder / f"{name}.json", table) for name, table in tables.items()]
    how: dict[str, Any] = {"read": read_rank_table, "refusal": RankTableError, "has_tensors": False}
    return [Victim(file, Tells.FORM, ("*.json",), **how) for file in files]


def _file(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def _ends(folder: Path, pattern: str) -> set[int]:
    """Where JSON may end and be whole: after its last bracket."""
    ends: set[int] = set()
    for path in folder.rglob(pattern):
        text = path.read_text()
        ends |= set(range(len(text.rstrip()), len(text)))
    return ends


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
