"""Writes digests.json beside checkpoints of every kind."""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mindbatch.checkpoint.faults import collecting, raise_if_any
from mindbatch.checkpoint.folders.digests import DIGESTS_NAME, digests_of
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_names, has_file
from mindbatch.checkpoint.folders.rank_folders import checkpoint_in, rank_folders
from mindbatch.checkpoint.folders.weight_files import MAP_NAME, open_shards, open_weights, weights_in
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.io.foreign_formats import PYTORCH_SUFFIXES
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.storage import StorageError, write_whole

_HEAD_BYTES = 1 << 20
"""Leading bytes of each file: all of a config.json, and the names and positions of tensors."""
_WHOLE_BYTES = 64 << 20
_WHOLE = (
    DIGESTS_NAME,
    "tokenizer.json",
    "tokenizer.model",
    "ice_text.model",
    "vocab.model",
    "adapter_model.safetensors",
    "adapter_model.ckpt",
    "adapter_model.bin",
)
_SUFFIXES = (".json", ".safetensors", ".ckpt", ".model", ".txt", ".jinja")
_ALL_SUFFIXES = (*_SUFFIXES, *PYTORCH_SUFFIXES)  # beside safetensors nobody reads those


def folder_digest(folder: Path) -> str:
    """A digest of what the folder's files are called, how large they are and how they begin.

    folder: an adapter's file stands for all that are beside it: its settings may be there.
    Of digests.json, the tokenizer and an adapter all is looked at. Rank folders are not: each host may
    have its own.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    total = hashlib.blake2b(digest_size=16)
    folder, whole = (folder.parent, (*_WHOLE, folder.name)) if folder.is_file() else (folder, _WHOLE)
    names = file_names(folder)
    suffixes = _SUFFIXES if any(name.endswith(".safetensors") for name in names) else _ALL_SUFFIXES
    for name in names:
        with suppress(OSError):  # a file that cannot be read is refused by who reads it
            status = os.stat(folder / name)
            if name.endswith(suffixes) and stat.S_ISREG(status.st_mode):
                head = first_bytes(folder / name, _WHOLE_BYTES if name in whole else _HEAD_BYTES)
                content = hashlib.blake2b(head).hexdigest()
                total.update(json.dumps([name, status.st_size, content]).encode())
    return total.hexdigest()


def record_digests(path: str | os.PathLike[str], *, replace: bool = False) -> list[Path]:
    """Writes digests.json into a folder, or into each rank folder in it; returns the paths.

    The folder is a model's, one that MindSpore unified, or has one checkpoint file.

    Raises:
        ConfigError: no such folder; or there is a digests.json already, unless `replace`.
        CheckpointError: lists the faults of the files, or a digests.json that cannot be written.
    """
    folder = existing_folder(path)
    names = {*file_names(folder)}
    is_model = weights_in(names) is not None
    ranks = [] if is_model else rank_folders(folder)
    homes = ranks or [folder]
    # digests.json may be the only sign of damaged weights
    there = [home / DIGESTS_NAME for home in homes if has_file(home, DIGESTS_NAME)]
    if there and not replace:
        raise ConfigError(f"{path}: exists already; remove it, or give --replace" for path in there)
    if is_model:
        return [_written(folder, open_weights(folder))]
    if MAP_NAME in names and not ranks:
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
