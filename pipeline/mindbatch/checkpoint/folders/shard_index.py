"""The index of a folder of shards: which one holds which tensor, checked against the shards themselves.

Format, as transformers' save_pretrained writes it to model.safetensors.index.json: `{"metadata": {...},
"weight_map": {tensor: file}}`. MindSpore's unified_safetensors writes the same to param_name_map.json,
MindFormers' conversion of Hugging Face folders the inner object alone.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import file_in
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.errors import CheckpointError

INDEX_NAME = "model.safetensors.index.json"
MAP_NAME = "param_name_map.json"
_MAX_INDEX_BYTES = 100_000_000
_MAX_SHARDS = 10_000


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
    unsafe = {shown(file): name for name, file in reversed(weight_map.items()) if not _is_plain_shard(file)}
    raise_if_any(
        [
            f"weight_map sends tensor {shown(name)} to {file}; must be the plain name of a .safetensors file"
            for file, name in unsafe.items()
        ],
        str(path),
    )
    return weight_map


def _is_plain_shard(file: object) -> bool:
    """Whether it names a file of the same folder and nothing else, on any system."""
    if not isinstance(file, str) or not file.isprintable() or not file.endswith(".safetensors"):
        return False
    return PurePosixPath(file).name == file == PureWindowsPath(file).name


def shard_faults(
    weight_map: Mapping[str, str], shards: Mapping[str, Collection[str]], where: str
) -> list[str]:
    """Every disagreement between the index and the names of the tensors in its (readable) shards."""
    holders: dict[str, list[str]] = {}
    for file, names in shards.items():
        for name in names:
            holders.setdefault(name, []).append(file)
    faults = [
        f"{where}: tensor {shown(name)} is in several shards: {', '.join(files)}"
        for name, files in holders.items()
        if len(files) > 1
    ]
    faults += _absent(weight_map, shards, holders, where)
    faults += [
        f"{where}: tensor {shown(name)} is in {files[0]} but not in the index"
        for name, files in holders.items()
        if name not in weight_map
    ]
    return faults


def _absent(
    weight_map: Mapping[str, str],
    shards: Mapping[str, Collection[str]],
    holders: Mapping[str, Iterable[str]],
    where: str,
) -> list[str]:
    faults = []
    for name, file in weight_map.items():
        found = holders.get(name, ())
        if file in shards and file not in found:
            place = f"; it is in {', '.join(found)}" if found else ""
            faults.append(f"{where}: tensor {shown(name)} is not in {file}, where the index puts it{place}")
    return faults
