"""The weights of a model folder, one safetensors file or several with an index, and nothing else."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from mindbatch.checkpoint.faults import collecting, raise_if_any
from mindbatch.checkpoint.folders.folder_files import file_in, file_names
from mindbatch.checkpoint.folders.shard_index import INDEX_NAME, read_weight_map, shard_faults
from mindbatch.errors import CheckpointError
from mindbatch.foreign_formats import HOW_TO_CONVERT, PICKLE_SUFFIXES, foreign_folder
from mindbatch.regular_file import first_bytes

SINGLE_NAME = "model.safetensors"
_OTHER_SUFFIXES = (".gguf", ".h5", ".msgpack", ".npz", ".onnx")
_MAX_NAMES_SHOWN = 3
_RANK = re.compile(r"rank_\d{1,6}")


class NamedTensors(Protocol):
    """An opened file that has tensors."""

    @property
    def tensors(self) -> Mapping[str, object]: ...


File = TypeVar("File", bound=NamedTensors)


@dataclass(frozen=True)
class WeightFiles(Generic[File]):
    """The open files by name, and for each tensor the name of the one file that holds it."""

    files: dict[str, File]
    file_of: dict[str, str]


def open_weights(folder: Path, opened: Callable[[Path], File]) -> WeightFiles[File]:
    """Opens all weight files with `opened`; model.safetensors wins over an index, as in transformers.

    CheckpointError lists what is missing, damaged, unsafe or contradictory. A folder with pickled weights
    only is refused with the way to convert it.
    """
    names = file_names(folder)
    if SINGLE_NAME in names:
        single = opened(file_in(folder, SINGLE_NAME))
        return WeightFiles({SINGLE_NAME: single}, dict.fromkeys(single.tensors, SINGLE_NAME))
    if INDEX_NAME in names:
        return open_shards(folder, opened)
    raise CheckpointError(_no_weights(folder, names))


def open_shards(folder: Path, opened: Callable[[Path], File], index: str = INDEX_NAME) -> WeightFiles[File]:
    """Opens the files that an index names; others are left alone. CheckpointError as of open_weights."""
    weight_map = read_weight_map(folder, index)
    shards: dict[str, File] = {}
    faults: list[str] = []
    for file in sorted(set(weight_map.values())):
        with collecting(faults):
            shards[file] = opened(file_in(folder, file))
    held = {file: shard.tensors for file, shard in shards.items()}
    raise_if_any(faults + shard_faults(weight_map, held, str(folder)))
    return WeightFiles(shards, weight_map)


def _no_weights(folder: Path, names: list[str]) -> str:
    pickles = [
        name
        for name in names
        if name.endswith(PICKLE_SUFFIXES) or (name.endswith(".ckpt") and not _is_of_mindspore(folder / name))
    ]
    others = [name for name in names if name.endswith((*_OTHER_SUFFIXES, ".safetensors"))]
    foreign = foreign_folder(folder)
    native = [name for name in names if name.endswith(".ckpt") or _RANK.fullmatch(name)]
    needed = f"needed is {SINGLE_NAME}, or {INDEX_NAME} with its shards"
    if native:
        needed += "; `mindbatch reshard source=FOLDER target.dir=NEW_FOLDER` makes that of MindSpore's files"
    if foreign and not pickles:
        return f"{folder}: {foreign}"
    if others:
        return f"{folder}: no model weights under a known name, only {_listed(others)}; {needed}"
    if pickles:
        return f"{folder}: only {_listed(pickles)}; {HOW_TO_CONVERT.format(needed=needed)}"
    return f"{folder}: no model weights{f', only {_listed(native)}' if native else ''}; {needed}"


def _is_of_mindspore(path: Path) -> bool:
    """Whether a .ckpt may be MindSpore's: PyTorch's pickles have that ending, too."""
    try:
        return first_bytes(path, 1) == b"\n"  # protobuf's tag of the first field
    except OSError:
        return False


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES_SHOWN
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
