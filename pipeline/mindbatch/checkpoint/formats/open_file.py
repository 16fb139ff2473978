"""Opening one file of tensors, whichever of the formats it is in."""

import os
from pathlib import Path

from mindbatch.checkpoint.formats.ckpt_file import open_ckpt
from mindbatch.checkpoint.formats.safetensors_file import open_safetensors
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.errors import CheckpointError
from mindbatch.foreign_formats import HOW_TO_CONVERT, PICKLE_SUFFIXES, foreign_file

SUFFIXES = (".safetensors", ".ckpt")
_NEEDED = f"must be a file of tensors, {' or '.join(SUFFIXES)}"


def open_tensor_file(path: str | os.PathLike[str]) -> StoredFile:
    """Opens and checks a .safetensors or .ckpt file; what its tensors hold is not read.

    CheckpointError for a damaged file or one of another format, pickles among them.
    """
    path = Path(path)
    if path.suffix == ".safetensors":
        return open_safetensors(path)
    if path.suffix == ".ckpt":
        return open_ckpt(path)
    if path.suffix in PICKLE_SUFFIXES:
        raise CheckpointError(f"{path}: {HOW_TO_CONVERT.format(needed=_NEEDED)}")
    raise CheckpointError(f"{path}: {foreign_file(path) or _NEEDED}")
