"""Opens LoRA adapters of PEFT or MindFormers, and checks them in themselves."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mindbatch.checkpoint.faults import collecting, first_lines, raise_if_any
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_in, file_names, has_file
from mindbatch.checkpoint.folders.tensor_set import TensorSet, open_source
from mindbatch.checkpoint.lora.checks import effect_faults, shape_faults
from mindbatch.checkpoint.lora.config import ADAPTER_CONFIG, LoraSettings, read_lora_config
from mindbatch.checkpoint.lora.modules import AdaptedModule, Kind
from mindbatch.checkpoint.lora.names import Role, TensorNames, find_modules, unused_faults
from mindbatch.checkpoint.lora.stored_array import ArrayShard, StoredArray
from mindbatch.checkpoint.lora.targets import target_faults
from mindbatch.checkpoint.placement.regions import full_region
from mindbatch.errors import CheckpointError
from mindbatch.foreign_formats import HOW_TO_CONVERT, PICKLE_SUFFIXES

ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.ckpt")


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter that was checked in itself.

    modules: by their names, without PEFT's prefix. warnings: lines for the user.
    """

    path: Path
    settings: LoraSettings
    modules: Mapping[str, AdaptedModule]
    warnings: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """The hex SHA-256 of all that acts: the arrays of every module, and their scaling."""
        acting = sorted(module.identity for module in self.modules.values())
        return hashlib.sha256(json.dumps(acting).encode()).hexdigest()


def open_adapter(path: str | os.PathLike[str], scaling: float | None = None) -> LoraAdapter:
    """Reads a folder with adapter_config.json and adapter_model.safetensors or .ckpt, and checks all of it.

    scaling: as the user says it, for an adapter without lora_alpha or without adapter_config.json.

    Raises:
        ConfigError: there is no such folder.
        CheckpointError: lists what is wrong: settings that are not supported, tensors that would not be used,
            halves without the other, other ranks than the settings say, no effect.
    """
    folder = existing_folder(path)
    faults: list[str] = []
    settings = None
    is_unsaid = scaling is not None and not has_file(folder, ADAPTER_CONFIG)
    with collecting(faults):
        settings = None if is_unsaid else read_lora_config(file_in(folder, ADAPTER_CONFIG), scaling)
    with collecting(faults), open_source(_file_of(folder)) as source:
        [tensors] = source.ranks
        if is_unsaid:
            settings = LoraSettings(_rank_of(tensors), 0.0, given=scaling)
        adapter = _checked(folder, settings, tensors, faults)
    raise_if_any(faults)
    return adapter


def _file_of(folder: Path) -> Path:
    found = [name for name in ADAPTER_FILES if has_file(folder, name)]
    if len(found) == 1:
        return file_in(folder, found[0])
    needed = f"must have one of {' and '.join(ADAPTER_FILES)}"
    if found:
        raise CheckpointError(f"{folder}: has both; {needed}")
    pickles = [name for name in file_names(folder) if name.endswith(PICKLE_SUFFIXES)]
    if pickles:
        raise CheckpointError(f"{folder / pickles[0]}: {HOW_TO_CONVERT.format(needed=needed)}")
    raise CheckpointError(f"{folder}: no adapter; {needed}")


def _rank_of(tensors: TensorSet) -> int:
    """The rank of the first matrix A; those of the others are compared with it."""
    return first_rank(find_modules(tensors.tensors).modules, tensors.shapes)


def first_rank(modules: TensorNames, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Rows of the first matrix A; 1 where there is none."""
    found = (shapes[names[Role.A]] for names in modules.values() if Role.A in names)
    return next((shape[0] for shape in found if shape), 1)


def _checked(
    folder: Path, settings: LoraSettings | None, tensors: TensorSet, faults: list[str]
) -> LoraAdapter:
    found = find_modules(tensors.tensors)
    where = f"{tensors.path}: "
    unused = first_lines(unused_faults(found.others), str, limit=4)
    faults += [where + line for line in (*found.faults, *unused)]
    if settings is None:
        raise CheckpointError([])  # the faults are told already
    faults += [where + line for line in shape_faults(found.modules, settings.rank, tensors.tensors)]
    faults += [where + line for line in target_faults(found.modules, settings.targets)]
    if faults:
        raise CheckpointError([])
    modules = adapted_modules(found.modules, settings, _arrays(tensors, found.modules))
    raise_if_any([*effect_faults(modules.values())], str(tensors.path))
    return LoraAdapter(folder, settings, modules)


def _arrays(tensors: TensorSet, modules: TensorNames) -> dict[str, StoredArray]:
    """Where the tensors are stored, each checked against its digest, if it has one."""
    found: dict[str, StoredArray] = {}
    names = [name for roles in modules.values() for name in roles.values()]
    for name, digest in tensors.checked_digests(names).items():
        path, shape = str(tensors.file(name).path.resolve()), tensors.info(name).shape
        whole = full_region(shape)
        found[name] = StoredArray(name, shape, (ArrayShard(path, name, digest, whole, whole),))
    return found


def adapted_modules(
    modules: TensorNames, settings: LoraSettings, arrays: Mapping[str, StoredArray]
) -> dict[str, AdaptedModule]:
    """What an adapter of these settings does to each module. arrays: by the names of their tensors."""
    return {
        module: AdaptedModule(
            module, Kind.LINEAR, {role: arrays[name] for role, name in names.items()}, settings.scaling
        )
        for module, names in modules.items()
    }
