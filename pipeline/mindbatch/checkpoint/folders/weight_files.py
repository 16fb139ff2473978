"""The weights of a model folder: one file, or several with an index that agrees with them.

They are safetensors, or PyTorch's where there are none. Format of the index, as transformers' save_pretrained
writes it to model.safetensors.index.json:
`{"metadata": {...}, "weight_map": {tensor: file}}`. MindSpore's unified_safetensors writes the same to
param_name_map.json, MindFormers' conversion of Hugging Face folders the inner object alone.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from mindbatch.checkpoint.faults import collecting, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import file_in, file_names, nothing_readable
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.io.errors import CheckpointError
from mindbatch.io.foreign_formats import foreign_folder

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
PYTORCH_NAME = "pytorch_model.bin"
PYTORCH_INDEX_NAME = "pytorch_model.bin.index.json"
MAP_NAME = "param_name_map.json"
_MAX_INDEX_BYTES = 100_000_000
_MAX_SHARDS = 10_000
_MAX_FILE_NAME = 255
_SUFFIX_OF = {INDEX_NAME: ".safetensors", MAP_NAME: ".safetensors", PYTORCH_INDEX_NAME: ".bin"}


def read_weight_map(folder: Path, index: str = INDEX_NAME) -> dict[str, str]:
    """Tensor name to shard name, from the folder's index. CheckpointError unless all of them are plain."""
    path = file_in(folder, index)
    content = read_json_object(path, _MAX_INDEX_BYTES)
    is_bare = index == MAP_NAME and "weight_map" not in content
    weight_map = content if is_bare else content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map must be an object of tensor names and file names")
    num_shards = len({*map(str, weight_map.values())})
    if num_shards > _MAX_SHARDS:
        raise CheckpointError(f"{path}: weight_map names {num_shards} files; at most {_MAX_SHARDS} may be")
    suffix = _SUFFIX_OF[index]
    entries = reversed(weight_map.items())
    unsafe = {shown(file): name for name, file in entries if not _is_plain_shard(file, suffix)}
    raise_if_any(
        [
            f"weight_map sends tensor {shown(name)} to {file}; must be the plain name of a {suffix} file"
            for file, name in unsafe.items()
        ],
        str(path),
    )
    return weight_map


def _is_plain_shard(file: object, suffix: str) -> bool:
    """True if it names a file of the same folder and nothing else, on any system."""
    if not isinstance(file, str) or not file.isprintable() or not file.endswith(suffix):
        return False
    return len(file) <= _MAX_FILE_NAME and PurePosixPath(file).name == file == PureWindowsPath(file).name


def shard_faults(
    weight_map: Mapping[str, str], shards: Mapping[str, Collection[str]], where: str
) -> list[str]:
    """Every disagreement between the index and the names of the tensors in its (readable) shards."""
    indexed = {(name, file): None for name, file in weight_map.items() if file in shards}
    stored = {(name, file): None for file, names in shards.items() for name in names}
    absent = [place for place in indexed if place not in stored]
    others = [place for place in stored if place not in indexed]
    return [
        f"{where}: tensor {shown(name)} is not in {file}, where the index puts it" for name, file in absent
    ] + [
        f"{where}: tensor {shown(name)} is in {file}, where the index does not put it"
        for name, file in others
    ]


_NO_WEIGHTS = ("consolidated.", "rng_state")  # .pth files of Meta's own format, and of trainings
_RANK = re.compile(r"rank_\d{1,6}")


def open_weights(folder: Path) -> dict[str, StoredFile]:
    """Opens all weight files, by name.

    As in transformers, a single file wins over an index, and safetensors over PyTorch's files; of these one
    .pth file of any name is taken, too. CheckpointError lists what is missing, damaged, unsafe or
    contradictory.
    """
    names = file_names(folder)
    weights_file = weights_in(names)
    if weights_file is None:
        needed = (
            f"needed is {SINGLE_NAME}, or {INDEX_NAME} with its shards, or PyTorch's {PYTORCH_NAME} likewise"
        )
        if any(name.endswith(".ckpt") or _RANK.fullmatch(name) for name in names):
            needed += (
                "; `mindbatch reshard source=FOLDER target.dir=NEW_FOLDER` makes that of MindSpore's files"
            )
        raise CheckpointError(nothing_readable(folder, "no model weights", needed, foreign_folder(folder)))
    if weights_file in _SUFFIX_OF:
        return open_shards(folder, weights_file)
    return {weights_file: open_tensor_file(file_in(folder, weights_file))}


def weights_in(names: Collection[str]) -> str | None:
    """Finds the file that holds a full model's weights, or is their index; None if there is none."""
    known = (SINGLE_NAME, INDEX_NAME, PYTORCH_NAME, PYTORCH_INDEX_NAME)
    others = [name for name in names if name.endswith(".pth") and not name.startswith(_NO_WEIGHTS)]
    return next((name for name in known if name in names), others[0] if len(others) == 1 else None)


def open_shards(folder: Path, index: str = INDEX_NAME) -> dict[str, StoredFile]:
    """Opens the files that an index names; others are left alone. CheckpointError as of open_weights."""
    weight_map = read_weight_map(folder, index)
    shards: dict[str, StoredFile] = {}
    faults: list[str] = []
    for file in sorted(set(weight_map.values())):
        with collecting(faults):
            shards[file] = open_tensor_file(file_in(folder, file))
    faults += shard_faults(weight_map, {file: shard.tensors for file, shard in shards.items()}, str(folder))
    if faults:
        for shard in shards.values():
            shard.close()
    raise_if_any(faults)
    return shards
