"""A Hugging Face model folder: its configuration and weights, checked as a whole. No code of it ever runs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.faults import collecting, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.folders.digests import Digests, read_digests
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_names
from mindbatch.checkpoint.folders.model_config import CONFIG_NAME, read_configs
from mindbatch.checkpoint.folders.weight_files import WeightFiles, open_weights
from mindbatch.checkpoint.formats.float_rounding import FloatArray
from mindbatch.checkpoint.formats.open_file import open_safetensors
from mindbatch.checkpoint.formats.read_floats import read_float32
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.formats.stored_file import StoredFile
from mindbatch.errors import CheckpointError
from mindbatch.parallel.topology import WHOLE


class ModelFolder:
    """An opened folder: `config`, `generation_config` (None when absent) and tensors by name.

    Opening reads headers only. ConfigError when `path` is not a folder, CheckpointError with the faults of
    its files. With a digests.json what is around the tensors is verified at once, and each
    tensor when it is first read. `notes` are remarks for
    the user, one line each.
    """

    held = WHOLE

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = existing_folder(path)
        faults: list[str] = []
        with collecting(faults):
            self.config, self.generation_config = read_configs(self.path)
        with collecting(faults):
            self._weights: WeightFiles[StoredFile] = open_weights(self.path, open_safetensors)
            self._digests: Digests | None = read_digests(self.path, self._weights.files)
        raise_if_any(faults)
        self._verified: set[str] = set()
        self.notes = _code_notes(self.path, self.config)

    @property
    def names(self) -> tuple[str, ...]:
        """All tensor names."""
        return tuple(self._weights.file_of)

    @property
    def weight_paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors, sorted by name."""
        return tuple(self._weights.files[name].path for name in sorted(self._weights.files))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(info.nbytes for file in self._weights.files.values() for info in file.tensors.values())

    def file_name(self, name: str) -> str:
        """The name of the file that holds the tensor. CheckpointError when none does."""
        try:
            return self._weights.file_of[name]
        except KeyError:
            near = did_you_mean(name, self._weights.file_of)
            raise CheckpointError(f"{self.path}: no tensor {shown(name)}{near}") from None

    def info(self, name: str) -> StoredTensor:
        """The tensor's dtype, shape and place. CheckpointError when there is none of that name."""
        return self._weights.files[self.file_name(name)].info(name)

    def float32(self, name: str, *, rows: slice | None = None) -> FloatArray:
        """As read_float32, verified (the whole tensor, whatever the rows)."""
        return read_float32(self._verified_file(name), name, rows)

    def verify(self) -> None:
        """Reads all tensors against digests.json, if there is one. CheckpointError names the damaged ones."""
        faults: list[str] = []
        for name in self.names:
            with collecting(faults):
                self._verified_file(name)
        raise_if_any(faults)

    def _verified_file(self, name: str) -> StoredFile:
        file = self._weights.files[self.file_name(name)]
        if self._digests is not None and name not in self._verified:
            self._digests.check(self.file_name(name), file, name)
            self._verified.add(name)
        return file


def _code_notes(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """What the folder brings of its own code, which is not executed."""
    notes = []
    if "auto_map" in config:
        notes.append(f"{folder / CONFIG_NAME}: auto_map is ignored; code of a model folder is never executed")
    scripts = [name for name in file_names(folder) if name.endswith(".py")]
    if scripts:
        more = f" and {len(scripts) - 1} more" if len(scripts) > 1 else ""
        notes.append(f"{folder / scripts[0]}{more}: ignored; code of a model folder is never executed")
    return tuple(notes)
