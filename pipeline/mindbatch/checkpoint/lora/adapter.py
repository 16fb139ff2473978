"""Opens LoRA adapters of PEFT or MindFormers, and checks them in themselves."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mindbatch.checkpoint.faults import collecting, first_lines, raise_if_any
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_in, has_file, nothing_readable
from mindbatch.checkpoint.folders.tensor_set import TensorSet, open_source
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.lora.base_weight import ArrayShard, StoredArray
from mindbatch.checkpoint.lora.checks import effect_faults, setting_faults, shape_faults, tied_faults
from mindbatch.checkpoint.lora.config import ADAPTER_CONFIG, config_warnings, read_lora_config
from mindbatch.checkpoint.lora.modules import AdaptedModule, ModuleKind
from mindbatch.checkpoint.lora.names import (
    FoundModules,
    Role,
    find_modules,
    is_of_training,
    unused_faults,
)
from mindbatch.checkpoint.lora.settings import LoraSettings
from mindbatch.checkpoint.placement.regions import full_region
from mindbatch.io.errors import CheckpointError

ADAPTER_FILES = tuple(f"adapter_model{suffix}" for suffix in (".safetensors", ".ckpt"))
OLD_ADAPTER_FILE = "adapter_model.bin"
"""As PEFT wrote it once; ignored beside one of the others, as by PEFT."""


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


def open_adapter(
    path: str | os.PathLike[str], scaling: float | None = None, base: str | None = None
) -> LoraAdapter:
    """Reads a folder with adapter_config.json and adapter_model.safetensors, .ckpt or .bin; checks all of it.

    path: may also be a file with the tensors, by whatever name; adapter_config.json is looked for beside it.
    scaling: as the user says it, for an adapter without lora_alpha or without adapter_config.json; it is
    never guessed. base: name or path of the model, to be compared with the one that the adapter records.

    Raises:
        ConfigError: there is nothing at the path.
        CheckpointError: lists what is wrong: settings that are not supported, tensors that would not be used,
            halves without the other, other ranks than the settings say, no effect.
    """
    adapter_path = Path(path)
    folder = adapter_path.parent if adapter_path.is_file() else existing_folder(path)
    faults: list[str] = []
    settings = None
    is_unsaid = not has_file(folder, ADAPTER_CONFIG)
    if is_unsaid and scaling is None:
        faults.append(
            f"{folder / ADAPTER_CONFIG}: missing; without it the scaling (lora_alpha / rank) must be given: "
            "{path: ..., scaling: ...} in lora.adapters, lora.scaling of mindbatch reshard"
        )
    with collecting(faults):
        settings = None if is_unsaid else read_lora_config(file_in(folder, ADAPTER_CONFIG), scaling)
    with (
        collecting(faults),
        open_source(adapter_path if adapter_path.is_file() else _file_of(folder)) as source,
    ):
        [tensors] = source.ranks
        stored = _without_training(tensors.tensors)
        if is_unsaid and scaling is not None:
            settings = LoraSettings(
                first_rank(find_modules(stored), tensors.shapes), 0.0, uniform_scaling=scaling
            )
        modules = _checked(settings, tensors, stored, faults)
    raise_if_any(faults)
    assert settings is not None
    warnings = [*config_warnings(settings, base), *_dropped_warnings(len(tensors.tensors) - len(stored))]
    return LoraAdapter(adapter_path, settings, modules, tuple(f"{adapter_path}: {line}" for line in warnings))


def _without_training(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    return {name: tensor for name, tensor in tensors.items() if not is_of_training(name)}


def _dropped_warnings(count: int) -> Iterator[str]:
    if count:
        yield f"{count} tensors of the training (optimizer, counters) are left out"


def _file_of(folder: Path) -> Path:
    present = [name for name in ADAPTER_FILES if has_file(folder, name)]
    if len(present) == 1:
        return file_in(folder, present[0])
    needed = f"must have one of {' and '.join(ADAPTER_FILES)}"
    if present:
        raise CheckpointError(f"{folder}: has both; {needed}")
    if has_file(folder, OLD_ADAPTER_FILE):
        return file_in(folder, OLD_ADAPTER_FILE)
    raise CheckpointError(nothing_readable(folder, "no adapter", f"{needed}, or give the file itself"))


def first_rank(found_modules: FoundModules, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Rows of the first matrix A, with which those of the others are compared; 1 where there is none."""
    first = (shapes[names[Role.A]] for names in found_modules.modules.values() if Role.A in names)
    return next((shape[0] for shape in first if shape), 1)


def _checked(
    settings: LoraSettings | None, tensors: TensorSet, stored: Mapping[str, StoredTensor], faults: list[str]
) -> dict[str, AdaptedModule]:
    found_modules = find_modules(stored)
    where = f"{tensors.path}: "
    unused = first_lines(unused_faults(found_modules.others), str, limit=4)
    faults += [where + line for line in (*found_modules.faults, *unused)]
    if settings is None:
        raise CheckpointError([])  # the faults are told already
    faults += [where + line for line in module_faults(found_modules, settings, stored)]
    if faults:
        raise CheckpointError([])
    modules = adapted_modules(found_modules, settings, _arrays(tensors, found_modules))
    raise_if_any(
        [*effect_faults(modules.values()), *tied_faults(modules.values(), settings)], str(tensors.path)
    )
    return modules


def module_faults(
    found_modules: FoundModules, settings: LoraSettings, stored: Mapping[str, StoredTensor]
) -> list[str]:
    """A line for each module, or tensor, that does not go with the settings or with the others."""
    try:
        return [*shape_faults(found_modules, settings, stored), *setting_faults(found_modules, settings)]
    except ValueError as error:
        return [f"{ADAPTER_CONFIG}: an expression {error}"]


def _arrays(tensors: TensorSet, found_modules: FoundModules) -> dict[str, StoredArray]:
    """Locates the stored tensors, each checked against its digest, if it has one."""
    arrays: dict[str, StoredArray] = {}
    names = [name for roles in found_modules.modules.values() for name in roles.values()]
    for name, digest in tensors.checked_digests(names).items():
        path, shape = str(tensors.file(name).path.resolve()), tensors.info(name).shape
        whole = full_region(shape)
        arrays[name] = StoredArray(name, shape, (ArrayShard(path, name, digest, whole, whole),))
    return arrays


def adapted_modules(
    found_modules: FoundModules, settings: LoraSettings, arrays: Mapping[str, StoredArray]
) -> dict[str, AdaptedModule]:
    """Builds an AdaptedModule for each module by these settings. arrays: by the names of their tensors."""
    modules: dict[str, AdaptedModule] = {}
    for module, names in found_modules.modules.items():
        kind = ModuleKind.EMBEDDING if module in found_modules.embeddings else ModuleKind.LINEAR
        kind = ModuleKind.WHOLE if {Role.WEIGHT, Role.BASE} & {*names} else kind
        scaling = settings.scaling_of(module) if Role.A in names else 0.0
        stored = {role: arrays[name] for role, name in names.items()}
        modules[module] = AdaptedModule(module, kind, stored, scaling, module in found_modules.embeddings)
    return modules
