"""Checks the tensors of an adapter in themselves: ranks, dtypes, values, and that they have an effect."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, FloatArray
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.lora.base_weight import read_array
from mindbatch.checkpoint.lora.modules import AdaptedModule
from mindbatch.checkpoint.lora.names import FoundModules, Role, is_head, is_vocabulary
from mindbatch.checkpoint.lora.settings import LoraSettings


def setting_faults(found_modules: FoundModules, settings: LoraSettings) -> Iterator[str]:
    """Modules that the settings do not mean, and what they say to be there and is not."""
    low_rank = [module for module, roles in found_modules.modules.items() if Role.A in roles]
    if not found_modules.modules:
        yield "no pair of lora_A and lora_B"
    meant = [module for module in low_rank if not _follows(module, found_modules, settings)]
    yield from settings.targets.faults(meant)
    if settings.targets.all_linear:
        for module in low_rank:
            if module in found_modules.embeddings or is_head(module):
                yield f"module {shown(module)} is none of target_modules, 'all-linear'"
    whole = [module for module, roles in found_modules.modules.items() if Role.WEIGHT in roles]
    for name in sorted(settings.targets.saved.names):
        if not any(f".{module}".endswith(f".{name}") for module in whole):
            yield f"modules_to_save has {shown(name)}, of which there is no weight"
    yield from _role_faults(found_modules, low_rank, settings)


def _follows(module: str, found_modules: FoundModules, settings: LoraSettings) -> bool:
    """True if it is a head that no target names, and that is adapted because the embedding is."""
    is_tied = settings.ties and bool(found_modules.embeddings) and is_head(module)
    return is_tied and settings.targets.meant_by(module) is None


def _role_faults(
    found_modules: FoundModules, low_rank: Iterable[str], settings: LoraSettings
) -> Iterator[str]:
    """Biases and magnitudes that the settings do not say, or say and are missing."""
    for role, key, is_said in (
        (Role.MAGNITUDE, "use_dora", settings.has_magnitudes),
        (Role.BIAS, "lora_bias", settings.has_biases),
    ):
        for module in low_rank:
            name = found_modules.modules[module].get(role)
            if name is not None and not is_said:
                yield f"tensor {shown(name)}: would not be used, for {key} is not true"
            if name is None and is_said:
                what = "lora_magnitude_vector" if role is Role.MAGNITUDE else "lora_B.bias"
                yield f"module {shown(module)}: {key} is true, and it has no {what}"


def shape_faults(
    found_modules: FoundModules, settings: LoraSettings, stored: Mapping[str, StoredTensor]
) -> Iterator[str]:
    """Tensors of another rank than the settings say, that do not go together, or are no floats."""
    for module, names in found_modules.modules.items():
        shapes = {role: stored[name].shape for role, name in names.items()}
        for role, needed, requirement in _needed(module, shapes, settings):
            if not _fits(shapes[role], needed):
                yield f"tensor {shown(names[role])}: shape {[*shapes[role]]} must be {requirement}"
        for name in names.values():
            if stored[name].dtype not in FLOAT_DTYPES:
                allowed = ", ".join(FLOAT_DTYPES)
                yield f"tensor {shown(name)}: dtype {stored[name].dtype} must be one of {allowed}"


_Sizes = tuple[int | None, ...]


def _needed(
    module: str, shapes: Mapping[Role, tuple[int, ...]], settings: LoraSettings
) -> Iterator[tuple[Role, _Sizes, str]]:
    """Each role with the sizes that its tensor must have, None where any is right, and how they are told."""
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


def _fits(shape: tuple[int, ...], needed: _Sizes) -> bool:
    return len(shape) == len(needed) and all(
        size > 0 and wanted in (None, size) for size, wanted in zip(shape, needed, strict=True)
    )


def effect_faults(modules: Iterable[AdaptedModule]) -> Iterator[str]:
    """Values that are no numbers, and an adapter that changes nothing."""
    effective = False
    with OpenFiles() as files:
        for module in modules:
            read = {}
            for role, array in module.arrays.items():
                read[role] = read_array(array, files)
                if not np.isfinite(read[role]).all():
                    yield f"tensor {shown(array.name)}: has values that are infinite or no numbers"
            effective = effective or _acts(read)
    if not effective:
        yield "lora_A or lora_B of every module is zero: the adapter would have no effect (was it trained?)"


def tied_faults(modules: Collection[AdaptedModule], settings: LoraSettings) -> Iterator[str]:
    """With ensure_weight_tying head and embedding must be adapted alike: PEFT keeps one of the two."""
    adapted = [module for module in modules if is_vocabulary(module.module)] if settings.ties else []
    if not adapted:
        return
    heads, embeddings = (
        [module for module in adapted if is_head(module.module) is is_it] for is_it in (True, False)
    )
    if len(heads) != 1 or len(embeddings) != 1:
        only = ", ".join(shown(module.module) for module in adapted)
        yield f"ensure_weight_tying=True: head and token embedding must both be adapted; here are {only}"
    elif not _is_same(heads[0], embeddings[0]):
        yield (
            f"ensure_weight_tying=True: {shown(heads[0].module)} and {shown(embeddings[0].module)} are "
            "adapted differently, and must be alike"
        )


def _is_same(head: AdaptedModule, embedding: AdaptedModule) -> bool:
    """True if both have one weight, or the matrices of one another, transposed."""
    if {*head.arrays} != {*embedding.arrays} or head.scaling != embedding.scaling:
        return False
    turned = {Role.A: Role.B, Role.B: Role.A} if embedding.of_tokens else {}
    with OpenFiles() as files:
        for role, array in head.arrays.items():
            other = read_array(embedding.arrays[turned.get(role, role)], files)
            if not np.array_equal(read_array(array, files), other.T if role in turned else other):
                return False
    return True


def _acts(read: Mapping[Role, FloatArray]) -> bool:
    """True if both matrices, or a bias, are non-zero, or a weight is replaced; NaN counts as non-zero."""
    if Role.WEIGHT in read:
        return True
    with np.errstate(invalid="ignore"):
        has_bias = Role.BIAS in read and bool(read[Role.BIAS].any())
        return has_bias or bool(read[Role.A].any() and read[Role.B].any())
