"""Experts of a layer in one matrix each: below one another, transposed, gate beside up."""

from collections.abc import Mapping

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.names.dialect import EXPERT, Rule
from mindbatch.checkpoint.placement.rank_files import StoredShard
from mindbatch.checkpoint.placement.regions import Segment, Shape
from mindbatch.io.errors import CheckpointError


def originals_of(rule: Rule, experts: int) -> list[list[str]]:
    return [[name.replace(EXPERT, str(expert)) for name in rule.original.names] for expert in range(experts)]


def stacked(
    rule: Rule, shapes: Mapping[str, Shape], experts: int, *, is_stored: bool
) -> tuple[dict[str, Shape], dict[str, StoredShard]]:
    """The shapes of the experts' tensors, and what the matrix of all holds of them.

    shapes: of the matrix where `is_stored`, else of the experts' tensors.

    Raises:
        CheckpointError: tensors that are missing, not alike, or cannot be divided among the experts.
    """
    [name] = rule.stored.names
    names = originals_of(rule, experts)
    if is_stored:
        outputs, inputs = _divided(name, shapes[name], experts, len(rule.original.names))
    else:
        outputs, inputs = _alike([tensor for expert in names for tensor in expert], shapes)
    segments = [
        (
            tensor,
            Segment(
                ((expert * inputs, (expert + 1) * inputs), (place * outputs, (place + 1) * outputs)),
                ((0, outputs), (0, inputs)),
                transposed=True,
            ),
        )
        for expert, tensors in enumerate(names)
        for place, tensor in enumerate(tensors)
    ]
    originals: dict[str, Shape] = {tensor: (outputs, inputs) for tensor, _ in segments}
    whole = experts * inputs, len(rule.original.names) * outputs
    return originals, {name: StoredShard.of(segments, whole)}


def _divided(name: str, shape: Shape, experts: int, tensors: int) -> tuple[int, int]:
    """Outputs and inputs of each expert's tensors."""
    if len(shape) != 2 or not experts or shape[0] % experts or shape[1] % tensors:
        raise CheckpointError(
            f"tensor {shown(name)} {[*shape]}: cannot be divided among {experts} experts of {tensors} tensors"
        )
    return shape[1] // tensors, shape[0] // experts


def _alike(names: list[str], shapes: Mapping[str, Shape]) -> tuple[int, int]:
    if missing := [name for name in names if name not in shapes]:
        raise CheckpointError(f"tensor {shown(names[0])}: goes with {missing[0]}, which is missing")
    first = shapes[names[0]]
    if len(first) != 2 or any(shapes[name] != first for name in names):
        raise CheckpointError(f"tensor {shown(names[0])}: all experts' must be matrices of one shape")
    return first[0], first[1]
