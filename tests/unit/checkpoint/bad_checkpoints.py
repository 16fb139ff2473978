"""One small model in every kind of checkpoint, and what may be wrong with a file of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ckpt_bytes import ckpt_bytes
from numpy.typing import NDArray
from safetensors_writer import safetensors_bytes, write_index

from mindbatch.checkpoint.strategy.strategy import Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import strategy_bytes
from reshard_models import LLAMA, tensors_of

CONFIG = {**LLAMA, "num_hidden_layers": 1, "vocab_size": 8}
TENSORS: dict[str, NDArray[Any]] = dict(tensors_of(CONFIG))
NAME = "model.layers.0.mlp.down_proj.weight"
"""The tensor that faults are about: its columns are cut."""

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Place:
    """A kind of checkpoint. file: the one of its files that is damaged; the last of it is NAME."""

    name: str
    file: str
    num_ranks: int = 1

    @property
    def kind(self) -> str:
        return self.file.rpartition(".")[2]

    @property
    def has_index(self) -> bool:
        return self.name == "shards"

    def content(self, tensors: Arrays) -> bytes:
        """A right file of these tensors."""
        return ckpt_bytes(tensors) if self.kind == "ckpt" else safetensors_bytes(tensors)

    def held(self) -> dict[str, NDArray[Any]]:
        """What the file that is damaged should hold."""
        found = _shares(self.num_ranks)[-1]
        if self.has_index:
            return {NAME: found[NAME]}
        return {**{name: array for name, array in found.items() if name != NAME}, NAME: found[NAME]}

    def write(self, home: Path) -> Path:
        """The whole checkpoint, with config.json; returns the damaged file's path."""
        home.mkdir(parents=True)
        (home / "config.json").write_text(json.dumps(CONFIG))
        for rank, tensors in enumerate(_shares(self.num_ranks)):
            path = home / self.file.replace("rank_1", f"rank_{rank}")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(self.content(tensors))
        if self.has_index:
            others = {name: array for name, array in TENSORS.items() if name != NAME}
            (home / "others.safetensors").write_bytes(safetensors_bytes(others))
            write_index(home, {**dict.fromkeys(others, "others.safetensors"), NAME: self.file})
        (home / self.file).write_bytes(self.content(self.held()))
        return home / self.file


_SHARDS = Place("shards", "shard.safetensors")
PLACES = (
    Place("folder", "model.safetensors"),
    _SHARDS,
    Place("one ckpt", "m.ckpt"),
    Place("ranks of ckpt", "rank_1/m.ckpt", 2),
    Place("ranks of safetensors", "rank_1/m.safetensors", 2),
)


def _layout(name: str, num_ranks: int) -> TensorLayout:
    """NAME is cut, as the model is; all else would be, too, but this is enough for the faults."""
    return TensorLayout(name, (num_ranks,), (-1, 0) if name == NAME else (-1,) * TENSORS[name].ndim)


def _shares(num_ranks: int) -> list[dict[str, NDArray[Any]]]:
    """What each rank holds by `strategy`."""
    return [
        {
            name: np.ascontiguousarray(array[_layout(name, num_ranks).slice_of(rank, array.shape)])
            for name, array in TENSORS.items()
        }
        for rank in range(num_ranks)
    ]


def write_strategy(path: Path, num_ranks: int) -> Path:
    """The strategy by which these ranks are cut."""
    path.write_bytes(strategy_bytes(Strategy(tuple(_layout(name, num_ranks) for name in TENSORS))))
    return path


@dataclass(frozen=True)
class Fault:
    """What is done to a file, and what must be said of it besides the file's name.

    knows_model: whether only somebody who knows what the file should hold can tell.
    """

    name: str
    content: Callable[[Place], bytes]
    said: tuple[str, ...]
    knows_model: bool = False


def _cut(place: Place) -> bytes:
    return place.content(place.held())[:-3]


def _changed(change: Callable[[dict[str, NDArray[Any]]], object]) -> Callable[[Place], bytes]:
    def content(place: Place) -> bytes:
        tensors = place.held()
        change(tensors)
        return place.content(tensors)

    return content


FAULTS = (
    Fault("truncated", _cut, ("truncated", "tensor '")),
    Fault("empty", lambda _: b"", ("empty",)),
    Fault("pickle", lambda _: b"\x80\x02}q\x00.", ("pickle", "never executed")),
    Fault("shape", _changed(lambda t: t.update({NAME: t[NAME][:, 1:]})), (NAME, r"\[32, (47|23)\]"), True),
    Fault("missing", _changed(lambda t: t.pop(NAME)), (NAME, "missing|lacks it|is not in"), True),
    Fault(
        "unexpected",
        _changed(lambda t: t.update({"extra.weight": t[NAME]})),
        ("extra.weight", "not part of this model|lacks it|index does not put it"),
        True,
    ),
)


ASTRAY = (
    ("../shard.safetensors", r"index.json: weight_map .* '\.\./shard.safetensors'; must be the plain name"),
    ("/etc/passwd", "index.json: weight_map .* '/etc/passwd'; must be the plain name"),
    ("pytorch_model.bin", "index.json: weight_map .* 'pytorch_model.bin'; must be the plain name"),
    ("elsewhere.safetensors", "elsewhere.safetensors: symbolic link to .*; must stay inside"),
    ("pointer.safetensors", "pointer.safetensors: a Git LFS pointer"),
    ("none.safetensors", "none.safetensors: missing"),
)
"""Where an index may lead, and what must be said of it."""


def write_astray(home: Path, target: str) -> None:
    """A model of two shards, in whose index NAME leads to `target`."""
    _SHARDS.write(home).rename(home.parent / "shard.safetensors")
    (home / "elsewhere.safetensors").symlink_to(home.parent / "shard.safetensors")
    (home / "pointer.safetensors").write_bytes(LFS)
    others = {name: "others.safetensors" for name in TENSORS if name != NAME}
    write_index(home, {**others, NAME: target})


def write_code(home: Path, would_write: Path) -> None:
    """Puts code of the model's own into its folder, which writes a file if it is ever run."""
    classes = {"AutoConfig": "configuration_own.Own", "AutoModelForCausalLM": "modeling_own.Own"}
    (home / "config.json").write_text(json.dumps({**CONFIG, "auto_map": classes}))
    for name in (
        "modeling_own.py",
        "configuration_own.py",
        "tokenization_own.py",
        "__init__.py",
        "conftest.py",
    ):
        (home / name).write_text(f"open({str(would_write)!r}, 'w')")
