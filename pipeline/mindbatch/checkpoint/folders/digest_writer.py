"""Writes digests.json beside checkpoints of every kind."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from mindbatch.checkpoint.faults import collecting, raise_if_any
from mindbatch.checkpoint.folders.digests import DIGESTS_NAME, digests_of
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_names, has_file
from mindbatch.checkpoint.folders.rank_folders import checkpoint_in, rank_folders
from mindbatch.checkpoint.folders.weight_files import MAP_NAME, open_shards, open_weights, weights_in
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.io.storage import StorageError, write_whole


def record_digests(path: str | os.PathLike[str], *, replace: bool = False) -> list[Path]:
    """Writes digests.json into a folder, or into each rank folder in it; returns the paths.

    The folder is a model's, one that MindSpore unified, or has one checkpoint file.

    Raises:
        ConfigError: no such folder; or there is a digests.json already, unless `replace`.
        CheckpointError: lists the faults of the files, or a digests.json that cannot be written.
    """
    folder = existing_folder(path)
    names = {*file_names(folder)}
    if weights_in(names) is not None:
        return [write_digests(folder, replace=replace)]
    ranks = rank_folders(folder)
    is_unified = MAP_NAME in names and not ranks
    homes = ranks or [folder]
    _refuse_existing(homes, replace)
    if is_unified:
        return [_written(folder, open_shards(folder, MAP_NAME))]
    files: list[Path] = []
    faults: list[str] = []
    for home in homes:
        with collecting(faults):
            file, _ = checkpoint_in(home)
            open_tensor_file(file).close()
            files.append(file)
    raise_if_any(faults)
    return [_written(file.parent, {file.name: open_tensor_file(file)}) for file in files]


def write_digests(folder: str | os.PathLike[str], *, replace: bool = False) -> Path:
    """Writes digests.json for the weights of a model folder, complete or not at all, and returns its path.

    Raises:
        ConfigError: no such folder; or there is a digests.json already, unless `replace`.
        CheckpointError: the weights have faults, or the file cannot be written.
    """
    home = existing_folder(folder)
    _refuse_existing([home], replace)
    return _written(home, open_weights(home))


def _refuse_existing(homes: Iterable[Path], replace: bool) -> None:
    """Refuses to replace digests.json, which may be the only sign of damaged weights."""
    there = [home / DIGESTS_NAME for home in homes if has_file(home, DIGESTS_NAME)]
    if there and not replace:
        raise ConfigError(f"{path}: exists already; remove it, or give --replace" for path in there)


def _written(folder: Path, files: Mapping[str, StoredFile]) -> Path:
    """Writes the digests of opened files, and closes these."""
    path = folder / DIGESTS_NAME
    try:
        write_whole(path, digests_of(files).as_json())
    except StorageError as error:
        raise CheckpointError(error.faults) from error
    finally:
        for file in files.values():
            file.close()
    return path
