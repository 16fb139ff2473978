"""digests.json beside the weights: one SHA-256 for each tensor, which neither format itself has.

Layout: `{"algorithm": "sha256", "files": {file name: {tensor name: hex digest}}, "heads": {file name: hex
digest}}`. A tensor's digest covers the line "DTYPE [sizes]\\n" and the tensor's bytes, so that a changed
dtype or shape is noticed as well. A file's head is all of its bytes that are no tensor's; `heads` may be
absent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import file_in, has_file
from mindbatch.checkpoint.formats.open_file import in_threads
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.io.errors import CheckpointError

DIGESTS_NAME = "digests.json"
_ALGORITHM = "sha256"
_MAX_DIGESTS_BYTES = 100_000_000


@dataclass(frozen=True)
class Digests:
    """Content of digests.json. files: digests by file and tensor; heads: by file, may be empty."""

    files: Mapping[str, Mapping[str, str]]
    heads: Mapping[str, str]

    def head_faults(self, files: Mapping[str, StoredFile]) -> list[str]:
        """A line for each file whose head does not match its digest."""
        return [
            f"{file.path}: damaged: the SHA-256 of what is around its tensors is not that of {DIGESTS_NAME}"
            for name, file in files.items()
            if name in self.heads and file.head_digest() != self.heads[name].lower()
        ]

    def as_json(self) -> bytes:
        content = {"algorithm": _ALGORITHM, "files": self.files, "heads": self.heads}
        return (json.dumps(content, indent=1) + "\n").encode()


def damage(file: StoredFile, name: str) -> str:
    """The fault line of a tensor whose digest is not the recorded one."""
    return f"{file.path}: tensor {shown(name)} is damaged: its SHA-256 is not the one in {DIGESTS_NAME}"


def started_digest(dtype: str, shape: Iterable[int]) -> hashlib._Hash:
    """A tensor's SHA-256 before its first byte."""
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
    """The digests of files as they are now."""
    places = [(file_name, name) for file_name, file in files.items() for name in file.tensors]
    digests = in_threads(lambda place: tensor_digest(files[place[0]], place[1]), places)
    tensors: dict[str, dict[str, str]] = {file_name: {} for file_name in files}
    for (file_name, name), digest in digests.items():
        tensors[file_name][name] = digest
    return Digests(tensors, {file_name: file.head_digest() for file_name, file in files.items()})


def read_digests(
    folder: Path, files: Mapping[str, StoredFile], *, others_allowed: bool = False
) -> Digests | None:
    """Reads the folder's digests of these files and checks their heads; None without a digests.json.

    others_allowed: it may list other files, too; None when it lists none of these.

    CheckpointError unless they name exactly the tensors of the files, and for each head that is another.
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
        gone = [name for name in listed if not _is_there(folder, name)]
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
    raise_if_any(digests.head_faults(files))
    return digests


def _is_there(folder: Path, name: str) -> bool:
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
