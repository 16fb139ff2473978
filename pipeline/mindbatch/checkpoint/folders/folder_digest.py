"""A digest by which two hosts see that they have the same model or adapter, without reading its weights."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from contextlib import suppress
from pathlib import Path

from mindbatch.checkpoint.folders.digests import DIGESTS_NAME
from mindbatch.checkpoint.folders.folder_files import file_names
from mindbatch.io.foreign_formats import PYTORCH_SUFFIXES
from mindbatch.io.regular_file import first_bytes

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
