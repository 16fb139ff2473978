"""Finds the files that are a folder's weights: a whole model's, or those of ranks.

A model's are one file, or several with an index that agrees with them; safetensors, or PyTorch's where there
are none. Format of the index, as transformers' save_pretrained writes it to model.safetensors.index.json:
`{"metadata": {...}, "weight_map": {tensor: file}}`. MindSpore's unified_safetensors writes the same to
param_name_map.json, MindFormers' conversion of Hugging Face folders the inner object alone.
"""

import fnmatch
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath

from mindbatch.checkpoint.error_lines import collecting, first_lines, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import file_in, file_names, nothing_readable
from mindbatch.checkpoint.folders.foreign_folders import foreign_folder
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.registry import READ, SEARCHED_SUFFIXES, format_of, needed_model_files
from mindbatch.checkpoint.formats.safetensors import INDEX_NAME, MAP_NAME
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.io.errors import CheckpointError

RANK_FOLDER = re.compile(r"rank_(\d{1,6})")
_SAVED = re.compile(
    rf"(.*)-(\d{{1,18}})_(\d{{1,18}})({'|'.join(map(re.escape, SEARCHED_SUFFIXES))})", re.DOTALL
)

TrainingStep = tuple[int, int]
"""Epoch and step at the end of a checkpoint's name."""


def rank_folders(folder: Path) -> list[Path]:
    """Lists the rank folders by rank; empty if there is none.

    Raises:
        CheckpointError: a rank is missing, exists twice (rank_1 and rank_01), is no folder, or is a link that
            leads out.
    """
    names_by_rank: dict[int, list[str]] = {}
    for name in file_names(folder):
        if match := RANK_FOLDER.fullmatch(name):
            names_by_rank.setdefault(int(match[1]), []).append(name)
    missing = [rank for rank in range(max(names_by_rank, default=-1) + 1) if rank not in names_by_rank]
    errors = [f"{' and '.join(names)} are one rank" for names in names_by_rank.values() if len(names) > 1]
    errors += [
        error for names in names_by_rank.values() for name in names for error in _folder_errors(folder, name)
    ]
    if missing:
        ranks = ", ".join(first_lines(missing, str, noun="ranks"))
        errors.append(f"ranks are missing: {ranks}; there must be rank_0 to rank_{max(names_by_rank)}")
    raise_if_any(errors, str(folder))
    return [folder / names_by_rank[rank][0] for rank in range(len(names_by_rank))]


def _folder_errors(home: Path, name: str) -> list[str]:
    if not (home / name).is_dir():
        return [f"{name} is not a folder; must be one with the files of its rank"]
    target = Path(os.path.realpath(home / name))
    if target.is_relative_to(os.path.realpath(home)):
        return []
    return [f"{name} is a symbolic link to {target}; must stay inside {home}"]


def checkpoint_in(folder: Path) -> tuple[Path, TrainingStep | None]:
    """Finds the folder's checkpoint file; of several the newest, by the epoch and step in its name.

    MindSpore and MindFormers name them PREFIX-EPOCH_STEP.ckpt.

    Raises:
        CheckpointError: there is none, several differ by more than epoch and step, or it is a link that leads
            out of the folder.
    """
    names = [name for name in file_names(folder) if name.endswith(SEARCHED_SUFFIXES)]
    if not names:
        needed = f"needed is a {' or '.join(SEARCHED_SUFFIXES)} file, or give a file of PyTorch itself"
        raise CheckpointError(nothing_readable(folder, "no checkpoint", needed, foreign_folder(folder)))
    saved = {name: match for name in names if (match := _SAVED.fullmatch(name))}
    steps = {name: (int(match[2]), int(match[3])) for name, match in saved.items()}
    if len(names) == 1:
        return file_in(folder, names[0]), steps.get(names[0])
    kinds = {(match[1], match[4]) for match in saved.values()}
    if len(saved) < len(names) or len(kinds) > 1 or len(set(steps.values())) < len(names):
        listed = ", ".join(first_lines(names, shown, limit=4, noun="files"))
        raise CheckpointError(
            f"{folder}: several checkpoint files, {listed}; must be one, or differ by the epoch and step in "
            "PREFIX-EPOCH_STEP.ckpt alone, of which the newest is taken"
        )
    newest = max(steps, key=lambda name: steps[name])
    return file_in(folder, newest), steps[newest]


def step_errors(folder: Path, steps: Iterable[TrainingStep | None]) -> list[str]:
    """Lists an error if the ranks' files are of different steps, as a killed training may leave them."""
    ranks: dict[TrainingStep | None, int] = {}
    for rank, step in enumerate(steps):
        ranks.setdefault(step, rank)
    if len(ranks) < 2:
        return []
    shown_steps = [f"rank_{rank} {_shown_step(step)}" for step, rank in ranks.items()]
    listed = ", ".join(first_lines(shown_steps, str, limit=4, noun="steps"))
    return [f"{folder}: the newest files are of different steps: {listed}; must be of one"]


def _shown_step(step: TrainingStep | None) -> str:
    return "has none in its name" if step is None else f"epoch {step[0]} step {step[1]}"


_MAX_INDEX_BYTES = 100_000_000
_MAX_SHARDS = 10_000
_MAX_FILE_NAME = 255


def read_weight_map(folder: Path, index: str = INDEX_NAME) -> dict[str, str]:
    """Reads the folder's index: file by tensor. CheckpointError unless all are plain names of files."""
    path = file_in(folder, index)
    content = read_json_object(path, _MAX_INDEX_BYTES)
    is_bare = index == MAP_NAME and "weight_map" not in content
    weight_map = content if is_bare else content.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path}: weight_map must be an object of tensor names and file names")
    num_shards = len({*map(str, weight_map.values())})
    if num_shards > _MAX_SHARDS:
        raise CheckpointError(f"{path}: weight_map names {num_shards} files; at most {_MAX_SHARDS} may be")
    suffix = _suffix_of(index)
    assert suffix is not None
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


def _suffix_of(index: str) -> str | None:
    """The suffix of the files that an index names; None for what is no index."""
    named = (known for known in READ if any(fnmatch.fnmatch(index, pattern) for pattern in known.indexes))
    return next((known.suffixes[0] for known in named), None)


def _is_plain_shard(file: object, suffix: str) -> bool:
    """True if it names a file of the same folder and nothing else, on any system."""
    if not isinstance(file, str) or not file.isprintable() or not file.endswith(suffix):
        return False
    return len(file) <= _MAX_FILE_NAME and PurePosixPath(file).name == file == PureWindowsPath(file).name


def shard_errors(
    weight_map: Mapping[str, str], shards: Mapping[str, Collection[str]], where: str
) -> list[str]:
    """Lists every disagreement between the index and the tensors in its (readable) shards."""
    indexed = {(name, file) for name, file in weight_map.items() if file in shards}
    stored = {(name, file) for file, names in shards.items() for name in names}
    absent = [
        f"{shown(name)} is not in {file}, where the index puts it" for name, file in sorted(indexed - stored)
    ]
    others = [
        f"{shown(name)} is in {file}, where the index does not put it"
        for name, file in sorted(stored - indexed)
    ]
    return [f"{where}: tensor {error}" for error in (*absent, *others)]


def open_weights(folder: Path) -> dict[str, StoredFile]:
    """Opens all weight files, by name.

    As in transformers, a single file wins over an index, and safetensors over PyTorch's files; of these one
    .pth file of any name is taken, too. CheckpointError lists what is missing, damaged, unsafe or
    contradictory.
    """
    names = file_names(folder)
    weights_file = weights_in(names)
    if weights_file is None:
        needed = needed_model_files()
        if any(_is_for_reshard(name) for name in names):
            needed += (
                "; `mindbatch reshard source=FOLDER target.dir=NEW_FOLDER` makes that of MindSpore's files"
            )
        raise CheckpointError(nothing_readable(folder, "no model weights", needed, foreign_folder(folder)))
    if _suffix_of(weights_file) is not None:
        return open_shards(folder, weights_file)
    return {weights_file: open_tensor_file(file_in(folder, weights_file))}


def weights_in(names: Collection[str]) -> str | None:
    """Finds the file that holds a full model's weights, or is their index; None if there is none."""
    for known in READ:
        others = {name for pattern in known.not_models for name in fnmatch.filter(names, pattern)}
        for pattern in known.model_files:
            matching = [name for name in fnmatch.filter(names, pattern) if name not in others]
            if len(matching) == 1:
                return matching[0]
    return None


def _is_for_reshard(name: str) -> bool:
    """True for names of files and folders that hold weights, but never those of a whole model."""
    known = format_of(name)
    is_read = known is not None and known.open is not None and not known.model_files
    return is_read or RANK_FOLDER.fullmatch(name) is not None


def open_shards(folder: Path, index: str = INDEX_NAME) -> dict[str, StoredFile]:
    """Opens the files that an index names, and no others. CheckpointError as for open_weights."""
    weight_map = read_weight_map(folder, index)
    shards: dict[str, StoredFile] = {}
    errors: list[str] = []
    for file in sorted(set(weight_map.values())):
        with collecting(errors):
            shards[file] = open_tensor_file(file_in(folder, file))
    errors += shard_errors(weight_map, {file: shard.tensors for file, shard in shards.items()}, str(folder))
    if errors:
        for shard in shards.values():
            shard.close()
    raise_if_any(errors)
    return shards
