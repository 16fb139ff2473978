"""Whether a folder holds just the tensors of an architecture, told from names, shapes and dtypes alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mindbatch.checkpoint.faults import raise_if_any
from mindbatch.checkpoint.folders.model_folder import ModelWeights
from mindbatch.checkpoint.folders.tensor_match import match_tensors
from mindbatch.models.architecture import Architecture
from mindbatch.models.registry import declaration, unused_tensors
from mindbatch.models.tensor_spec import TensorSpec, source_shapes
from mindbatch.models.text_part import nested_names


def checkpoint_names(arch: Architecture, folder: ModelWeights) -> Callable[[str], str]:
    """Translates a full name to the folder's: a bare base model was saved without the prefix.

    A multimodal model has those of its text part behind another one.
    """
    prefix = declaration(arch.model_type).prefix
    if nested := nested_names(prefix, folder.names):
        return nested
    if any(name.startswith(prefix) for name in folder.names):
        return lambda name: name
    return lambda name: name.removeprefix(prefix)


def check_tensors(arch: Architecture, specs: Sequence[TensorSpec], folder: ModelWeights) -> None:
    """Raises CheckpointError unless the folder holds just the tensors that `specs` of the model need."""
    names = checkpoint_names(arch, folder)
    expected = {names(source): shape for source, shape in source_shapes(specs).items()}
    raise_if_any(match_tensors(expected, folder, unused_tensors(arch)))
