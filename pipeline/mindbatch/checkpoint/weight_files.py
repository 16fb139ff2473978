"""The weights of a model folder, one safetensors file or several with an index, and nothing else."""

from dataclasses import dataclass
from pathlib import Path

from mindbatch.checkpoint.faults import collecting, raise_if_any
from mindbatch.checkpoint.folder_files import file_in, file_names
from mindbatch.checkpoint.safetensors_file import SafetensorsFile
from mindbatch.checkpoint.shard_index import INDEX_NAME, read_weight_map, shard_faults
from mindbatch.errors import CheckpointError

SINGLE_NAME = "model.safetensors"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_OTHER_SUFFIXES = (".gguf", ".h5", ".msgpack", ".npz", ".onnx")
_MAX_NAMES_SHOWN = 3


@dataclass(frozen=True)
class WeightFiles:
    """The open files by name, and for each tensor the name of the one file that holds it."""

    files: dict[str, SafetensorsFile]
    file_of: dict[str, str]


def open_weights(folder: Path) -> WeightFiles:
    """Opens and checks all weight files; model.safetensors wins over an index, as in transformers.

    CheckpointError lists what is missing, damaged, unsafe or contradictory. A folder with pickled weights
    only is refused with the way to convert it.
    """
    names = file_names(folder)
    if SINGLE_NAME in names:
        single = SafetensorsFile(file_in(folder, SINGLE_NAME))
        return WeightFiles({SINGLE_NAME: single}, dict.fromkeys(single.tensors, SINGLE_NAME))
    if INDEX_NAME in names:
        return _open_shards(folder)
    raise CheckpointError(_no_weights(folder, names))


def _open_shards(folder: Path) -> WeightFiles:
    weight_map = read_weight_map(folder)
    shards: dict[str, SafetensorsFile] = {}
    faults: list[str] = []
    for file in sorted(set(weight_map.values())):
        with collecting(faults):
            shards[file] = SafetensorsFile(file_in(folder, file))
    raise_if_any(faults + shard_faults(weight_map, shards, str(folder)))
    return WeightFiles(shards, weight_map)


def _no_weights(folder: Path, names: list[str]) -> str:
    pickles = [name for name in names if name.endswith(_PICKLE_SUFFIXES)]
    others = [name for name in names if name.endswith((*_OTHER_SUFFIXES, ".safetensors"))]
    needed = f"needed is {SINGLE_NAME}, or {INDEX_NAME} with its shards"
    if others:
        return f"{folder}: no model weights under a known name, only {_listed(others)}; {needed}"
    if pickles:
        return (
            f"{folder}: only {_listed(pickles)}; pickled weights can run code and are never opened; {needed};"
            " convert them where you trust them, with transformers' model.save_pretrained(NEW_FOLDER,"
            " safe_serialization=True) or safetensors.torch.save_file(state_dict, 'model.safetensors')"
        )
    return f"{folder}: no model weights; {needed}"


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_NAMES_SHOWN
    return ", ".join(names[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
