"""digests.json beside the weights: one SHA-256 for each tensor, which safetensors itself does not have.

Layout: `{"algorithm": "sha256", "files": {file name: {tensor name: hex digest}}}`. A digest covers the line
"DTYPE [sizes]\\n" and the tensor's bytes, so that a changed dtype or shape is noticed as well.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import TypeGuard

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folder_files import existing_folder, file_in, has_file
from mindbatch.checkpoint.safetensors_file import SafetensorsFile
from mindbatch.checkpoint.strict_json import read_json_object
from mindbatch.checkpoint.weight_files import WeightFiles, open_weights
from mindbatch.errors import CheckpointError, ConfigError
from mindbatch.storage import StorageError, write_whole

DIGESTS_NAME = "digests.json"
_ALGORITHM = "sha256"
_MAX_DIGESTS_BYTES = 100_000_000

Digests = dict[str, dict[str, str]]


def tensor_digest(file: SafetensorsFile, name: str) -> str:
    """The hex SHA-256 of the tensor's dtype, shape and bytes."""
    info = file.info(name)
    digest = hashlib.sha256(f"{info.dtype} {[*info.shape]}\n".encode())
    for chunk in file.chunks(name):
        digest.update(chunk)
    return digest.hexdigest()


def write_digests(folder: str | os.PathLike[str], *, replace: bool = False) -> Path:
    """Writes digests.json for the folder's weights, complete or not at all, and returns its path.

    ConfigError when there is one already (the only witness, perhaps, of damaged weights) unless `replace`;
    CheckpointError when the weights are not in order or the file cannot be written.
    """
    home = existing_folder(folder)
    path = home / DIGESTS_NAME
    if has_file(home, DIGESTS_NAME) and not replace:
        raise ConfigError(f"{path}: exists already; remove it or ask for it to be replaced")
    weights = open_weights(home)
    files = {
        file_name: {name: tensor_digest(file, name) for name in file.tensors}
        for file_name, file in weights.files.items()
    }
    try:
        content = json.dumps({"algorithm": _ALGORITHM, "files": files}, indent=1) + "\n"
        write_whole(path, content.encode())
    except StorageError as error:
        raise CheckpointError(error.faults) from error
    return path


def read_digests(folder: Path, weights: WeightFiles) -> Digests | None:
    """The folder's digests, None without a digests.json.

    CheckpointError unless they name exactly the tensors of the weights.
    """
    if not has_file(folder, DIGESTS_NAME):
        return None
    path = file_in(folder, DIGESTS_NAME)
    content = read_json_object(path, _MAX_DIGESTS_BYTES)
    if content.get("algorithm") != _ALGORITHM:
        raise CheckpointError(f"{path}: algorithm {shown(content.get('algorithm'))}; must be '{_ALGORITHM}'")
    files = content.get("files")
    if not _is_digests(files):
        raise CheckpointError(f"{path}: files must map file names to tensor names and hex digests")
    listed = {(file, name) for file, digests in files.items() for name in digests}
    present = {(file, name) for file, opened in weights.files.items() for name in opened.tensors}
    raise_if_any(
        [f"no digest for tensor {shown(name)} of {shown(file)}" for file, name in sorted(present - listed)]
        + [f"tensor {shown(name)} is not in {shown(file)}" for file, name in sorted(listed - present)],
        str(path),
    )
    return files


def _is_digests(files: object) -> TypeGuard[Digests]:
    return isinstance(files, dict) and all(
        isinstance(digests, dict) and all(isinstance(digest, str) for digest in digests.values())
        for digests in files.values()
    )


def check_tensor(digests: Digests, weights: WeightFiles, name: str) -> None:
    """CheckpointError, naming tensor and file, when the tensor's digest is not the recorded one."""
    file_name = weights.file_of[name]
    file = weights.files[file_name]
    if tensor_digest(file, name) != digests[file_name][name].lower():
        raise CheckpointError(
            f"{file.path}: tensor {shown(name)} is damaged: its SHA-256 is not the one in {DIGESTS_NAME}"
        )
