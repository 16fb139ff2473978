"""A model's folder: described by its config.json alone, and found to hold the tensors of that model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import TensorSpec, source_shapes
from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, read_config
from mindbatch.checkpoint.placement.placements import check_sizes
from mindbatch.config_json.forms import UNUSED, Config, nested_names
from mindbatch.config_json.reader import NONE_IGNORED, IgnoredKeys
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.model_spec.registry import (
    HEAD,
    copies,
    declaration,
    describe,
    embedding_source,
    refuse_quantised,
    tensor_specs,
    unused_tensors,
)
from mindbatch.parallel.topology import DeviceMap

if TYPE_CHECKING:  # NumPy, which a look at config.json does not need
    from mindbatch.checkpoint.folders.model_folder import ModelFolder, StoredWeights
    from mindbatch.checkpoint.folders.tensor_set import TensorSet


class DescribedConfig(NamedTuple):
    """source: the path of config.json, for messages."""

    content: Config
    source: str
    architecture: Architecture


def described_config(
    folder: Path, model_type: str = "auto", ignore: IgnoredKeys = NONE_IGNORED, *, to_be_run: bool = True
) -> DescribedConfig:
    """The architecture that config.json asks for. Arguments and errors: see `registry.describe`."""
    content, source = read_config(folder), str(folder / CONFIG_NAME)
    return DescribedConfig(
        content, source, describe(content, model_type, source, to_be_run=to_be_run, ignore=ignore)
    )


def architecture_if_sound(folder: Path, model_type: str, ignore: IgnoredKeys) -> Architecture | None:
    """None for a config.json that is damaged or of no model that is run: who opens the folder says so."""
    try:
        return described_config(folder, model_type, ignore).architecture
    except (CheckpointError, ConfigError):
        return None


def check_division(
    arch: Architecture, model_parallel: int, pipeline_stage: int = 1, device_map: DeviceMap = None
) -> None:
    """Raises ConfigError with all that keeps the model from being divided by these numbers of `parallel`."""
    if arch.encoder is not None and pipeline_stage > 1:
        raise ConfigError(
            f"parallel.pipeline_stage={pipeline_stage}: a {arch.model_type} has an encoder besides; "
            "allowed: 1"
        )
    shared = [layer for layer in range(arch.num_layers) if arch.cache_layer(layer) != layer]
    if pipeline_stage > 1 and (shared or not arch.details.can_be_staged):
        raise ConfigError(
            f"parallel.pipeline_stage={pipeline_stage}: layers of this {arch.model_type} take in what others "
            "before them have made; allowed: 1"
        )
    check_sizes(tensor_specs(arch), model_parallel, pipeline_stage, device_map, keys="parallel.")


def division_errors(
    arch: Architecture, model_parallel: int, pipeline_stage: int = 1, device_map: DeviceMap = None
) -> Sequence[str]:
    try:
        check_division(arch, model_parallel, pipeline_stage, device_map)
    except ConfigError as error:
        return error.lines
    return ()


def checkpoint_names(arch: Architecture, stored: Sequence[str]) -> Callable[[str], str]:
    """Translates a full name to one of those that are stored: a bare base model was saved without the prefix.

    A multimodal model has those of its text part behind another one. Where of tensors that are one another is
    stored than the one that the model takes, as the head of a tied model, it is that.
    """
    present, names = {*stored}, _layout_names(arch, stored)
    only = {
        names(own): names(name)
        for name, own in copies(arch).items()
        if names(own) not in present and names(name) in present
    }
    return (lambda name: only.get(names(name), names(name))) if only else names


def _layout_names(arch: Architecture, stored: Sequence[str]) -> Callable[[str], str]:
    prefix = declaration(arch.model_type).prefix
    if nested := nested_names(prefix, stored):
        return nested
    if any(name.startswith(prefix) for name in stored):
        return lambda name: name
    return lambda name: name.removeprefix(prefix)


_FUSED_EXPERTS = ".experts.gate_up_proj"


def as_stored(arch: Architecture, folder: ModelFolder | TensorSet) -> Architecture:
    """The architecture with a head of its own where that is stored, if the model is multimodal or its type
    leaves it to the tensors, and with experts in one tensor where they are stored so.

    Raises:
        CheckpointError: a tensor that would be left out differs from the one that the model uses instead.
    """
    names = checkpoint_names(arch, folder.names)
    declared, has_head = declaration(arch.model_type), names(HEAD) in folder.names
    is_nested = nested_names(declared.prefix, folder.names) is not None
    if declared.head_as_stored or (is_nested and has_head):
        is_copy = has_head and folder.are_equal(names(HEAD), names(embedding_source(arch)))
        arch = replace(arch, tied=is_copy or not has_head)
    if arch.experts is not None and any(name.endswith(_FUSED_EXPERTS) for name in folder.names):
        arch = replace(arch, experts=replace(arch.experts, is_fused=True))
    copied = {names(name): names(own) for name, own in copies(arch).items()}
    raise_if_any([*left_out_errors(copied, folder)])
    return arch


def left_out_errors(copied: Mapping[str, str], folder: ModelFolder | TensorSet) -> Iterator[str]:
    """Yields a line for each stored tensor that differs from the one that is used instead.

    copied: the name of the tensor that is used, by the name of the other.
    """
    for name, own in copied.items():
        if {name, own} <= {*folder.names} and not folder.are_equal(name, own):
            or_else = ", or set tie_word_embeddings to false for a head of its own" if HEAD in name else ""
            yield (
                f"{folder.path}: tensor {shown(name)} differs from {shown(own)}, which is used "
                f"instead; remove it{or_else}"
            )


def check_tensors(arch: Architecture, specs: Sequence[TensorSpec], folder: StoredWeights) -> None:
    """Raises CheckpointError unless the folder holds just the tensors that `specs` of the model need."""
    from mindbatch.checkpoint.folders.model_folder import ModelFolder, match_tensors  # NumPy

    if isinstance(folder, ModelFolder) and folder.quantised is not None:
        refuse_quantised(specs, arch.model_type, folder.path)
    names = checkpoint_names(arch, folder.names)
    expected = {names(source): shape for source, shape in source_shapes(specs).items()}
    unused = unused_tensors(arch)
    if nested_names(declaration(arch.model_type).prefix, folder.names):
        unused += UNUSED
    raise_if_any(match_tensors(expected, folder, (*unused, *map(names, unused))))
