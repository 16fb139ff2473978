"""Checks that a folder holds just the tensors of an architecture, and reads what only they tell of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.model_folder import StoredWeights, match_tensors
from mindbatch.models.architecture import Architecture
from mindbatch.models.config_forms import nested_names
from mindbatch.models.registry import HEAD, copies, declaration, embedding_source, unused_tensors
from mindbatch.models.tensor_spec import TensorSpec, source_shapes


def checkpoint_names(arch: Architecture, stored: Sequence[str]) -> Callable[[str], str]:
    """Translates a full name to one of those that are stored: a bare base model was saved without the prefix.

    A multimodal model has those of its text part behind another one.
    """
    prefix = declaration(arch.model_type).prefix
    if nested := nested_names(prefix, stored):
        return nested
    if any(name.startswith(prefix) for name in stored):
        return lambda name: name
    return lambda name: name.removeprefix(prefix)


class ComparableTensors(Protocol):
    """Stored tensors that can be compared; see `TensorSet`."""

    @property
    def path(self) -> Path: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def are_equal(self, one: str, other: str) -> bool: ...


_FUSED_EXPERTS = ".experts.gate_up_proj"


def as_stored(arch: Architecture, folder: ComparableTensors) -> Architecture:
    """The architecture with a head of its own where that is stored, if its type leaves it to the tensors, and
    with experts in one tensor where they are stored so.

    Raises:
        CheckpointError: a tensor that would be left out is not what the model takes in its place.
    """
    names = checkpoint_names(arch, folder.names)
    if declaration(arch.model_type).head_as_stored:
        head, embedding = names(HEAD), names(embedding_source(arch))
        arch = replace(arch, tied=head not in folder.names or folder.are_equal(head, embedding))
    if arch.experts is not None and any(name.endswith(_FUSED_EXPERTS) for name in folder.names):
        arch = replace(arch, experts=replace(arch.experts, is_fused=True))
    copied = {names(name): names(own) for name, own in copies(arch).items()}
    raise_if_any([*left_out_faults(copied, folder)])
    return arch


def left_out_faults(copied: Mapping[str, str], folder: ComparableTensors) -> Iterator[str]:
    """A line for each tensor that is there and differs from the one that is taken in its place.

    copied: by the tensor's name, that of the other one.
    """
    for name, own in copied.items():
        if {name, own} <= {*folder.names} and not folder.are_equal(name, own):
            or_else = ", or set tie_word_embeddings to false for a head of its own" if HEAD in name else ""
            yield (
                f"{folder.path}: tensor {shown(name)} differs from {shown(own)}, which is taken in its "
                f"place; remove it{or_else}"
            )


def check_tensors(arch: Architecture, specs: Sequence[TensorSpec], folder: StoredWeights) -> None:
    """Raises CheckpointError unless the folder holds just the tensors that `specs` of the model need."""
    names = checkpoint_names(arch, folder.names)
    expected = {names(source): shape for source, shape in source_shapes(specs).items()}
    raise_if_any(match_tensors(expected, folder, unused_tensors(arch)))
