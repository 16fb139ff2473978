"""Opens LoRA adapters of PEFT or MindFormers, and checks them without their model."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from mindbatch.checkpoint.error_lines import collecting, first_lines, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_in, has_file, nothing_readable
from mindbatch.checkpoint.folders.tensor_set import TensorSet, open_source, stored_segments
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, FloatArray
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.registry import READ
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.lora.config import ADAPTER_CONFIG, LoraSettings, config_warnings, read_lora_config
from mindbatch.checkpoint.lora.modules import AdaptedModule, StoredArray, stored_array
from mindbatch.checkpoint.lora.names import (
    FoundModules,
    Role,
    find_modules,
    is_head,
    is_of_training,
    is_vocabulary,
    unused_errors,
)
from mindbatch.checkpoint.placement.regions import as_rank_files, whole_placements
from mindbatch.io.errors import CheckpointError

ADAPTER_FILES = tuple(known.adapter_file for known in READ if not known.is_pickle)
OLD_ADAPTER_FILES = tuple(known.adapter_file for known in READ if known.is_pickle)
"""Written by PEFT in the past; ignored beside one of the others, as by PEFT."""


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter that was checked without its model.

    modules: modules by name, without PEFT's prefix.
    warnings: lines for the user.
    """

    path: Path
    settings: LoraSettings
    modules: Mapping[str, AdaptedModule]
    warnings: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """The hex SHA-256 of everything that has an effect: the arrays of every module, and their scaling."""
        acting = sorted(module.identity for module in self.modules.values())
        return hashlib.sha256(json.dumps(acting).encode()).hexdigest()


def open_adapter(
    path: str | os.PathLike[str], scaling: float | None = None, base: str | None = None
) -> LoraAdapter:
    """Reads a folder with adapter_config.json and adapter_model.safetensors, .ckpt or .bin; checks all of it.

    path: the folder, or a file with the tensors, of any name, beside which adapter_config.json is read.
    scaling: the user's scaling, for an adapter without lora_alpha or adapter_config.json; never guessed.
    base: name or path of the model, which is compared with the one that the adapter records.

    Raises:
        ConfigError: there is nothing at the path.
        CheckpointError: lists what is wrong: settings that are not supported, tensors that would not be used,
            halves without the other, other ranks than the settings say, no effect.
    """
    adapter_path = Path(path)
    folder = adapter_path.parent if adapter_path.is_file() else existing_folder(path)
    has_config = has_file(folder, ADAPTER_CONFIG)
    errors: list[str] = []
    settings = None
    if has_config:
        with collecting(errors):
            settings = read_lora_config(file_in(folder, ADAPTER_CONFIG), scaling)
    elif scaling is None:
        errors.append(
            f"{folder / ADAPTER_CONFIG}: missing; without it the scaling (lora_alpha / rank) must be given: "
            "{path: ..., scaling: ...} in lora.adapters, lora.scaling of mindbatch reshard"
        )
    with (
        collecting(errors),
        open_source(adapter_path if adapter_path.is_file() else _file_of(folder)) as source,
    ):
        [tensors] = source.ranks
        stored = {name: tensor for name, tensor in tensors.tensors.items() if not is_of_training(name)}
        found_modules = find_modules(stored)
        if not has_config and scaling is not None:
            settings = LoraSettings(first_rank(found_modules, tensors.shapes), 0.0, uniform_scaling=scaling)
        raise_if_any(_found_errors(found_modules, settings, stored), str(tensors.path))
        if settings is not None:
            modules = checked_modules(found_modules, settings, _arrays(tensors, found_modules), tensors.path)
    raise_if_any(errors)
    assert settings is not None
    warnings = [*config_warnings(settings, base)]
    if dropped := len(tensors.tensors) - len(stored):
        warnings.append(f"{dropped} tensors of the training (optimizer, counters) are left out")
    return LoraAdapter(adapter_path, settings, modules, tuple(f"{adapter_path}: {line}" for line in warnings))


def _found_errors(
    found_modules: FoundModules, settings: LoraSettings | None, stored: Mapping[str, StoredTensor]
) -> list[str]:
    unused = first_lines(unused_errors(found_modules.others), str, limit=4)
    of_modules = [] if settings is None else module_errors(found_modules, settings, stored)
    return [*found_modules.errors, *unused, *of_modules]


def _file_of(folder: Path) -> Path:
    present = [name for name in ADAPTER_FILES if has_file(folder, name)]
    if len(present) == 1:
        return file_in(folder, present[0])
    needed = f"must have one of {' and '.join(ADAPTER_FILES)}"
    if present:
        raise CheckpointError(f"{folder}: has both; {needed}")
    if old := next((name for name in OLD_ADAPTER_FILES if has_file(folder, name)), None):
        return file_in(folder, old)
    raise CheckpointError(nothing_readable(folder, "no adapter", f"{needed}, or give the file itself"))


def first_rank(found_modules: FoundModules, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Number of rows of the first matrix A, which others must have, too; 1 if there is none."""
    first = (shapes[names[Role.A]] for names in found_modules.modules.values() if Role.A in names)
    return next((shape[0] for shape in first if shape), 1)


def module_errors(
    found_modules: FoundModules, settings: LoraSettings, stored: Mapping[str, StoredTensor]
) -> list[str]:
    """Lists modules and tensors that do not match the settings or each other."""
    try:
        return [*_shape_errors(found_modules, settings, stored), *_setting_errors(found_modules, settings)]
    except ValueError as error:
        return [f"{ADAPTER_CONFIG}: an expression {error}"]


def _arrays(tensors: TensorSet, found_modules: FoundModules) -> dict[str, StoredArray]:
    """Locates the stored tensors, each checked against its digest, if it has one."""
    names = [name for roles in found_modules.modules.values() for name in roles.values()]
    files = as_rank_files(whole_placements({name: tensors.info(name).shape for name in names}), 1)
    digests = tensors.checked_digests(names)
    return {
        name: stored_array(name, files.shapes[name], segments, lambda _, stored: digests[stored])
        for name, segments in stored_segments(files, [tensors]).items()
    }


def checked_modules(
    found_modules: FoundModules, settings: LoraSettings, arrays: Mapping[str, StoredArray], where: Path
) -> dict[str, AdaptedModule]:
    """Builds the modules by these settings, when `module_errors` has found nothing.

    arrays: arrays by the names of their tensors.

    Raises:
        CheckpointError: values that are no numbers, no effect, tied modules that are not alike.
    """
    modules: dict[str, AdaptedModule] = {}
    for module, names in found_modules.modules.items():
        scaling = settings.scaling_of(module) if Role.A in names else 0.0
        stored = {role: arrays[name] for role, name in names.items()}
        modules[module] = AdaptedModule(module, stored, scaling, module in found_modules.embeddings)
    errors = [*_effect_errors(modules.values())]
    if settings.ties:
        errors += _tied_errors(modules.values())
    raise_if_any(errors, str(where))
    return modules


def _setting_errors(found_modules: FoundModules, settings: LoraSettings) -> Iterator[str]:
    """Lists modules that the settings do not target, and targets that are missing."""
    low_rank = [module for module, roles in found_modules.modules.items() if Role.A in roles]
    if not found_modules.modules:
        yield "no pair of lora_A and lora_B"
    meant = [module for module in low_rank if not _follows(module, found_modules, settings)]
    yield from settings.targets.errors(meant)
    if settings.targets.all_linear:
        for module in low_rank:
            if module in found_modules.embeddings or is_head(module):
                yield f"module {shown(module)} is none of target_modules, 'all-linear'"
    whole = [module for module, roles in found_modules.modules.items() if Role.WEIGHT in roles]
    for name in sorted(settings.targets.saved.names):
        if not any(f".{module}".endswith(f".{name}") for module in whole):
            yield f"modules_to_save has {shown(name)}, of which there is no weight"
    yield from _role_errors(found_modules, low_rank, settings)


def _follows(module: str, found_modules: FoundModules, settings: LoraSettings) -> bool:
    """True for a head that no target names, and that is adapted because the embedding is."""
    is_tied = settings.ties and bool(found_modules.embeddings) and is_head(module)
    return is_tied and settings.targets.meant_by(module) is None


def _role_errors(
    found_modules: FoundModules, low_rank: Iterable[str], settings: LoraSettings
) -> Iterator[str]:
    """Lists biases and magnitudes that the settings do not name, or that are missing."""
    for role, key, is_said in (
        (Role.MAGNITUDE, "use_dora", settings.has_magnitudes),
        (Role.BIAS, "lora_bias", settings.has_biases),
    ):
        for module in low_rank:
            name = found_modules.modules[module].get(role)
            if name is not None and not is_said:
                yield f"tensor {shown(name)}: would not be used, for {key} is not true"
            if name is None and is_said:
                missing = "lora_magnitude_vector" if role is Role.MAGNITUDE else "lora_B.bias"
                yield f"module {shown(module)}: {key} is true, and it has no {missing}"


def _shape_errors(
    found_modules: FoundModules, settings: LoraSettings, stored: Mapping[str, StoredTensor]
) -> Iterator[str]:
    """Lists tensors of another rank than the settings have, of shapes that do not match, or of no floats."""
    for module, names in found_modules.modules.items():
        shapes = {role: stored[name].shape for role, name in names.items()}
        for role, needed, requirement in _needed(module, shapes, settings):
            if not _fits(shapes[role], needed):
                yield f"tensor {shown(names[role])}: shape {[*shapes[role]]} must be {requirement}"
        for name in names.values():
            if stored[name].dtype not in FLOAT_DTYPES:
                allowed = ", ".join(FLOAT_DTYPES)
                yield f"tensor {shown(name)}: dtype {stored[name].dtype} must be one of {allowed}"


def _needed(
    module: str, shapes: Mapping[Role, tuple[int, ...]], settings: LoraSettings
) -> Iterator[tuple[Role, tuple[int | None, ...], str]]:
    """Returns, by role, the sizes that its tensor must have, None for any, and their description."""
    rank = settings.rank_of(module) if Role.A in shapes else 0
    if Role.A in shapes:
        yield Role.A, (rank, None), f"[r, inputs] with r={rank}"
        yield Role.B, (None, rank), f"[outputs, r] with r={rank}"
    else:
        yield Role.WEIGHT, (None, None), "[outputs, inputs]"
    outputs = shapes.get(Role.B, shapes.get(Role.WEIGHT, ()))[:1]
    for role in (Role.BIAS, Role.MAGNITUDE):
        if role in shapes:
            yield role, outputs, f"[outputs], {[*outputs]}"
    if Role.BASE in shapes:
        yield Role.BASE, (None, None), "a matrix"


def _fits(shape: tuple[int, ...], needed: tuple[int | None, ...]) -> bool:
    return len(shape) == len(needed) and all(
        size > 0 and wanted in (None, size) for size, wanted in zip(shape, needed, strict=True)
    )


def _effect_errors(modules: Iterable[AdaptedModule]) -> Iterator[str]:
    """Lists values that are no numbers, and an adapter without any effect."""
    effective = False
    with OpenFiles() as files:
        for module in modules:
            read = {}
            for role, array in module.arrays.items():
                read[role] = array.read(files)
                if not np.isfinite(read[role]).all():
                    yield f"tensor {shown(array.name)}: has values that are infinite or no numbers"
            effective = effective or _acts(read)
    if not effective:
        yield "lora_A or lora_B of every module is zero: the adapter would have no effect (was it trained?)"


def _tied_errors(modules: Iterable[AdaptedModule]) -> Iterator[str]:
    """Checks that ensure_weight_tying adapts head and embedding alike, for PEFT keeps one of the two."""
    adapted = [module for module in modules if is_vocabulary(module.module)]
    heads = [module for module in adapted if is_head(module.module)]
    embeddings = [module for module in adapted if not is_head(module.module)]
    if adapted and not len(heads) == len(embeddings) == 1:
        only = ", ".join(shown(module.module) for module in adapted)
        yield f"ensure_weight_tying=True: head and token embedding must both be adapted; here are {only}"
    elif adapted and not _is_same(heads[0], embeddings[0]):
        yield (
            f"ensure_weight_tying=True: {shown(heads[0].module)} and {shown(embeddings[0].module)} are "
            "adapted differently, and must be alike"
        )


def _is_same(head: AdaptedModule, embedding: AdaptedModule) -> bool:
    """True if both have one weight, or the matrices of one another, transposed."""
    if {*head.arrays} != {*embedding.arrays} or head.scaling != embedding.scaling:
        return False
    swapped = {Role.A: Role.B, Role.B: Role.A} if embedding.of_tokens else {}
    with OpenFiles() as files:
        for role, array in head.arrays.items():
            other = embedding.arrays[swapped.get(role, role)].read(files)
            if not np.array_equal(array.read(files), other.T if role in swapped else other):
                return False
    return True


def _acts(read: Mapping[Role, FloatArray]) -> bool:
    """True if both matrices, or a bias, are non-zero, or a weight is replaced; NaN counts as non-zero."""
    if Role.WEIGHT in read:
        return True
    with np.errstate(invalid="ignore"):
        has_bias = Role.BIAS in read and bool(read[Role.BIAS].any())
        return has_bias or bool(read[Role.A].any() and read[Role.B].any())
