"""LoRA adapters of PEFT or MindFormers, checked in themselves and against the model that they are for."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindbatch.checkpoint.faults import MAX_LINES, collecting, did_you_mean, first_lines, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_in, file_names, has_file
from mindbatch.checkpoint.folders.tensor_set import TensorSet, open_source
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.lora.config import ADAPTER_CONFIG, LoraSettings, read_lora_config
from mindbatch.checkpoint.lora.merge import Matrix, MatrixShard, StoredMatrix, read_matrix
from mindbatch.checkpoint.lora.names import LoraPair, find_pairs, unused_faults, weight_of
from mindbatch.checkpoint.placement.regions import Shape, full_region
from mindbatch.errors import CheckpointError
from mindbatch.foreign_formats import HOW_TO_CONVERT, PICKLE_SUFFIXES

_MAX_TARGET_PARTS = 16  # dots of a name are not so many; a hostile one has hundreds
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.ckpt")


@dataclass(frozen=True)
class LoraAdapter:
    """An adapter that was checked. matrices: by name. pairs: by the module, without PEFT's prefix."""

    path: Path
    settings: LoraSettings
    pairs: Mapping[str, LoraPair]
    matrices: Mapping[str, StoredMatrix]

    def matrix(self, name: str) -> Matrix:
        """A whole matrix. CheckpointError when it is not what it was when the adapter was opened."""
        with OpenFiles() as files:
            return read_matrix(self.matrices[name], files)


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
    shapes = [tensors.info(pair.a).shape for pair in find_pairs(tensors.tensors).pairs.values()]
    return next((shape[0] for shape in shapes if shape), 1)


def _checked(
    folder: Path, settings: LoraSettings | None, tensors: TensorSet, faults: list[str]
) -> LoraAdapter:
    found = find_pairs(tensors.tensors)
    where = f"{tensors.path}: "
    unused = first_lines(unused_faults(found.others), str, limit=4)
    faults += [where + line for line in (*found.faults, *unused)]
    if settings is None:
        raise CheckpointError([])  # the faults are told already
    faults += [where + line for line in shape_faults(found.pairs, settings.rank, tensors.tensors)]
    faults += [where + line for line in _target_faults(found.pairs, settings.targets)]
    if faults:
        raise CheckpointError([])
    adapter = LoraAdapter(folder, settings, found.pairs, _matrices(tensors, found.pairs))
    raise_if_any([*effect_faults(adapter)], str(tensors.path))
    return adapter


def _matrices(tensors: TensorSet, pairs: Mapping[str, LoraPair]) -> dict[str, StoredMatrix]:
    """Where the matrices are stored, each checked against its digest, if it has one."""
    found: dict[str, StoredMatrix] = {}
    for name, digest in tensors.checked_digests(name for pair in pairs.values() for name in pair).items():
        path, shape = str(tensors.file(name).path.resolve()), tensors.info(name).shape
        whole = full_region(shape)
        found[name] = StoredMatrix(name, shape, (MatrixShard(path, name, digest, whole, whole),))
    return found


def shape_faults(
    pairs: Mapping[str, LoraPair], rank: int, stored: Mapping[str, StoredTensor]
) -> Iterator[str]:
    """Matrices of another rank than the settings say, or of other dtypes than floating point."""
    for pair in pairs.values():
        for name, along, kind in ((pair.a, 0, "[r, inputs]"), (pair.b, 1, "[outputs, r]")):
            info = stored[name]
            if len(info.shape) != 2 or info.shape[along] != rank:
                yield f"tensor {shown(name)}: shape {[*info.shape]} must be {kind} with r={rank}"
            if info.dtype not in FLOAT_DTYPES:
                yield f"tensor {shown(name)}: dtype {info.dtype} must be one of {', '.join(FLOAT_DTYPES)}"


def _target_faults(pairs: Mapping[str, LoraPair], targets: Sequence[str]) -> Iterator[str]:
    """Modules that are adapted though no target, and targets of which nothing is there."""
    if not pairs:
        yield "no pair of lora_A and lora_B"
    modules = {module.rpartition(".")[2] for module in pairs}
    shown_targets, wanted = shown([*targets]), {*targets}
    for module in pairs:
        if targets and not _target_of(module, wanted):
            yield f"module {shown(module)} is none of target_modules, {shown_targets}"
    met = {end for module in pairs for end in _ends(module)} if targets else set()
    unmet = [target for target in targets if pairs and target not in met]
    for number, target in enumerate(unmet):
        near = did_you_mean(target, modules) if number < MAX_LINES else ""
        yield f"target_modules has {shown(target)}, of which there are no matrices{near}"


def _target_of(module: str, targets: Collection[str]) -> str | None:
    """The target that the module is meant by: its name, or the end of it after a dot."""
    return next((end for end in _ends(module) if end in targets), None)


def _ends(module: str) -> Iterator[str]:
    """The module's name, and what of it is left after each of the last dots that a target may have."""
    parts = module.split(".")
    for first in {0, *range(max(0, len(parts) - _MAX_TARGET_PARTS), len(parts))}:
        yield ".".join(parts[first:])


def effect_faults(adapter: LoraAdapter) -> Iterator[str]:
    """Values that are no numbers, and an adapter that changes nothing."""
    effective = False
    with OpenFiles() as files:
        for pair in adapter.pairs.values():
            matrices = [read_matrix(adapter.matrices[name], files) for name in pair]
            for name, matrix in zip(pair, matrices, strict=True):
                if not np.isfinite(matrix).all():
                    yield f"tensor {shown(name)}: has values that are infinite or no numbers"
            with np.errstate(invalid="ignore"):  # NaN is no zero
                effective = effective or all(bool(matrix.any()) for matrix in matrices)
    if not effective:
        yield "lora_A or lora_B of every module is zero: the adapter would have no effect (was it trained?)"


def adapted_weights(
    adapter: LoraAdapter,
    shapes: Mapping[str, Shape],
    renames: Mapping[str, str] | None = None,
    transposed: Collection[str] | None = None,
) -> dict[str, LoraPair]:
    """The pairs by the name of the model's weight that each is added to.

    shapes: of the whole model's tensors. renames: from names of the adapter's kind, with .weight, to the
    model's own, where they are others (MindFormers' and Hugging Face's). transposed: the weights that are
    stored [inputs, outputs], None where that is not known: square ones do not tell.

    Raises:
        CheckpointError: lists modules that the model has not got, shapes or orders that do not fit, targets
            that have matrices in some layers only.
    """
    faults: list[str] = []
    found: dict[str, LoraPair] = {}
    for module, pair in adapter.pairs.items():
        weight = weight_of(module, renames or {})
        if weight not in shapes:
            near = did_you_mean(weight, shapes) if len(faults) < MAX_LINES else ""
            faults.append(f"tensor {shown(pair.a)}: the model has no {shown(weight)}{near}")
            continue
        found[weight] = pair
        faults += _fit_faults(adapter, pair, weight, shapes[weight], transposed)
    if adapter.settings.all_layers and not faults:
        reverse = {own: theirs for theirs, own in (renames or {}).items()}
        faults += _gaps(adapter, [name for name in shapes if name not in found], reverse)
    raise_if_any(faults, str(adapter.path))
    return found


def _fit_faults(
    adapter: LoraAdapter, pair: LoraPair, weight: str, shape: Shape, transposed: Collection[str] | None
) -> Iterator[str]:
    """Whether the product of a pair is of the weight's shape, and the right way round."""
    is_turned = adapter.settings.fan_in_fan_out
    if transposed is not None and (weight in transposed) != is_turned:
        yield f"fan_in_fan_out: must be {str(weight in transposed).lower()} for {shown(weight)}"
        return
    (_, inputs), (outputs, _) = (adapter.matrices[name].shape for name in pair)
    needed = (inputs, outputs) if is_turned else (outputs, inputs)
    if shape != needed:
        hint = "; is fan_in_fan_out right?" if shape == needed[::-1] else ""
        yield (
            f"tensors {shown(pair.a)} and {shown(pair.b)}: are for a weight of {[*needed]}; "
            f"{shown(weight)} has {[*shape]}{hint}"
        )


def _gaps(adapter: LoraAdapter, others: list[str], reverse: Mapping[str, str]) -> Iterator[str]:
    targets = {*adapter.settings.targets}
    for name in others:
        module = reverse.get(name, name).removesuffix(".weight")
        target = _target_of(module, targets)
        if target is not None and name.endswith(".weight"):
            yield f"{shown(name)} is meant by target_modules ({shown(target)}), and has no matrices"
