"""digests.json beside the weights: one SHA-256 for each tensor, which neither format itself has.

Layout: `{"algorithm": "sha256", "files": {file name: {tensor name: hex digest}}, "heads": {file name: hex
digest}}`. A tensor's digest covers the line "DTYPE [sizes]\\n" and the tensor's bytes, so that a changed
dtype or shape is noticed as well. A file's head is all of its bytes that are no tensor's; `heads` may be
absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from mindbatch.checkpoint.error_lines import collecting, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import (
    TOKENIZER_FILES,
    existing_folder,
    file_in,
    file_names,
    has_file,
)
from mindbatch.checkpoint.folders.weight_files import (
    checkpoint_in,
    open_shards,
    open_weights,
    rank_folders,
    weights_in,
)
from mindbatch.checkpoint.formats.open_file import in_threads, open_tensor_file
from mindbatch.checkpoint.formats.registry import READ, SEARCHED_SUFFIXES
from mindbatch.checkpoint.formats.safetensors import MAP_NAME, SAFETENSORS
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.io.regular_file import first_bytes
from mindbatch.io.storage import StorageError, write_whole

DIGESTS_NAME = "digests.json"
_ALGORITHM = "sha256"
_MAX_DIGESTS_BYTES = 100_000_000


@dataclass(frozen=True)
class Digests:
    """Content of digests.json: digests of tensors by file and name; those of heads by file may be absent."""

    files: Mapping[str, Mapping[str, str]]
    heads: Mapping[str, str]

    def head_errors(self, files: Mapping[str, StoredFile]) -> list[str]:
        """Lists the files whose heads do not match their digests."""
        return [
            f"{file.path}: damaged: the SHA-256 of what is around its tensors is not that of {DIGESTS_NAME}"
            for name, file in files.items()
            if name in self.heads and file.head_digest() != self.heads[name].lower()
        ]

    def as_json(self) -> bytes:
        content = {"algorithm": _ALGORITHM, "files": self.files, "heads": self.heads}
        return (json.dumps(content, indent=1) + "\n").encode()


def damage(file: StoredFile, name: str) -> str:
    return f"{file.path}: tensor {shown(name)} is damaged: its SHA-256 is not the one in {DIGESTS_NAME}"


def started_digest(dtype: str, shape: Iterable[int]) -> hashlib._Hash:
    """Begins the SHA-256 of a tensor with its dtype and shape."""
    return hashlib.sha256(f"{dtype} {[*shape]}\n".encode())


def digest_of(dtype: str, shape: Iterable[int], chunks: Iterable[memoryview | bytes]) -> str:
    digest = started_digest(dtype, shape)
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def tensor_digest(file: StoredFile, name: str) -> str:
    info = file.info(name)
    return digest_of(info.dtype, info.shape, file.chunks(name))


def digests_of(files: Mapping[str, StoredFile]) -> Digests:
    tensors = [(file_name, name) for file_name, file in files.items() for name in file.tensors]
    digests = in_threads(lambda tensor: tensor_digest(files[tensor[0]], tensor[1]), tensors)
    by_file: dict[str, dict[str, str]] = {file_name: {} for file_name in files}
    for (file_name, name), digest in digests.items():
        by_file[file_name][name] = digest
    return Digests(by_file, {file_name: file.head_digest() for file_name, file in files.items()})


def read_digests(
    folder: Path, files: Mapping[str, StoredFile], *, others_allowed: bool = False
) -> Digests | None:
    """Reads the folder's digests of these files and checks the files' heads; None without a digests.json.

    others_allowed: True if digests.json may list other files, too; if it lists none of these, None is
        returned.

    Raises:
        CheckpointError: digests.json does not name exactly the tensors of the files, or a head has changed.
    """
    if not has_file(folder, DIGESTS_NAME):
        return None
    path = file_in(folder, DIGESTS_NAME)
    content = read_json_object(path, _MAX_DIGESTS_BYTES)
    if content.get("algorithm") != _ALGORITHM:
        raise CheckpointError(f"{path}: algorithm {shown(content.get('algorithm'))}; must be '{_ALGORITHM}'")
    others = sorted(content.keys() - {"algorithm", "files", "heads"})
    raise_if_any(
        [f"unknown key {shown(key)}; known are algorithm, files, heads" for key in others], str(path)
    )
    listed, heads = content.get("files"), content.get("heads", {})
    if not _are_digests(listed):
        raise CheckpointError(f"{path}: files must map file names to tensor names and hex digests")
    if not _are_texts(heads):
        raise CheckpointError(f"{path}: heads must map file names to hex digests")
    if others_allowed:
        gone = [name for name in listed if not _exists(folder, name)]
        listed = {file_name: digests for file_name, digests in listed.items() if file_name in files}
        if not listed and gone:
            present = ", ".join(map(shown, files))
            raise CheckpointError(f"{path}: is of {shown(gone[0])}, which is not here; must be of {present}")
        if not listed:
            return None
    elif others := sorted(heads.keys() - files.keys()):
        raise_if_any([f"heads has {shown(name)}, which has no tensors" for name in others], str(path))
    raise_if_any(_disagreements(listed, files), str(path))
    digests = Digests(listed, heads)
    raise_if_any(digests.head_errors(files))
    return digests


def _exists(folder: Path, name: str) -> bool:
    return "\0" not in name and len(name) < 256 and has_file(folder, name)


def _disagreements(listed: Mapping[str, Mapping[str, str]], files: Mapping[str, StoredFile]) -> list[str]:
    named = {(file, name) for file, digests in listed.items() for name in digests}
    present = {(file, name) for file, opened in files.items() for name in opened.tensors}
    return [
        f"no digest for tensor {shown(name)} of {shown(file)}" for file, name in sorted(present - named)
    ] + [f"tensor {shown(name)} is not in {shown(file)}" for file, name in sorted(named - present)]


def _are_digests(files: object) -> TypeGuard[dict[str, dict[str, str]]]:
    return isinstance(files, dict) and all(_are_texts(digests) for digests in files.values())


def _are_texts(digests: object) -> TypeGuard[dict[str, str]]:
    return isinstance(digests, dict) and all(isinstance(digest, str) for digest in digests.values())


_HEAD_BYTES = 1 << 20
"""Leading bytes of each file: all of a config.json, and the names and positions of tensors."""
_WHOLE_BYTES = 64 << 20
_WHOLE = (DIGESTS_NAME, *TOKENIZER_FILES, *(known.adapter_file for known in READ))
_SUFFIXES = (".json", ".model", ".txt", ".jinja", *SEARCHED_SUFFIXES)
_PICKLE_SUFFIXES = tuple(suffix for known in READ if known.is_pickle for suffix in known.suffixes)


def folder_digest(folder: Path) -> str:
    """Digests the names, sizes and beginnings of a folder's files.

    Files of digests, tokenizers and adapters are digested whole. Rank folders are left out, for each host may
    have its own. The file of an adapter stands for its folder, which may hold its settings.

    Raises:
        CheckpointError: the folder cannot be listed.
    """
    total = hashlib.blake2b(digest_size=16)
    folder, whole = (folder.parent, (*_WHOLE, folder.name)) if folder.is_file() else (folder, _WHOLE)
    names = file_names(folder)
    reads_pickles = not any(map(SAFETENSORS.matches, names))
    suffixes = (*_SUFFIXES, *(_PICKLE_SUFFIXES if reads_pickles else ()))
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
        ConfigError: no such folder; or digests.json already exists, unless `replace`.
        CheckpointError: lists the errors of the files, or a digests.json that cannot be written.
    """
    folder = existing_folder(path)
    names = {*file_names(folder)}
    is_model = weights_in(names) is not None
    ranks = [] if is_model else rank_folders(folder)
    homes = ranks or [folder]
    # digests.json may be the only sign of damaged weights
    there = [home / DIGESTS_NAME for home in homes if has_file(home, DIGESTS_NAME)]
    if there and not replace:
        raise ConfigError(f"{path}: already exists; remove it, or give --replace" for path in there)
    if is_model:
        return [_written(folder, open_weights(folder))]
    if MAP_NAME in names and not ranks:
        return [_written(folder, open_shards(folder, MAP_NAME))]
    files: list[Path] = []
    errors: list[str] = []
    for home in homes:
        with collecting(errors):
            file, _ = checkpoint_in(home)
            open_tensor_file(file).close()
            files.append(file)
    raise_if_any(errors)
    return [_written(file.parent, {file.name: open_tensor_file(file)}) for file in files]


def _written(folder: Path, files: Mapping[str, StoredFile]) -> Path:
    """Writes the digests of opened files, and closes these."""
    path = folder / DIGESTS_NAME
    try:
        write_whole(path, digests_of(files).as_json())
    except StorageError as error:
        raise CheckpointError(error.lines) from error
    finally:
        for file in files.values():
            file.close()
    return path
