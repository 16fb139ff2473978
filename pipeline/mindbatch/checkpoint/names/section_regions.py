"""Shapes, views and regions of a layer's sections within the tensors of a form."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.names.dialect import EXPERT, Form, Rule
from mindbatch.checkpoint.placement.regions import Region, Segment, Shape, StoredShard
from mindbatch.io.errors import CheckpointError


class Span(NamedTuple):
    """Outputs start..stop of a section, and the region of the named tensor (in its view) that holds them."""

    start: int
    stop: int
    name: str
    region: Region


@dataclass(frozen=True)
class Sizes:
    """Outputs of each section; inputs of them all, None for vectors; groups: of a grouped form."""

    outputs: tuple[int, ...]
    inputs: int | None
    groups: int = 1

    @property
    def units(self) -> tuple[int, ...]:
        """Outputs of each section in a group."""
        return tuple(size // self.groups for size in self.outputs)


def read_sizes(
    form: Form, shapes: Mapping[str, Shape], weights: tuple[int, ...], group_unit: int | None
) -> Sizes:
    """The sizes, from the shapes of the form's tensors on a rank.

    weights: relative sizes, by which a single tensor is divided. group_unit: outputs of the last section in
    a group, None where there are no groups.

    Raises:
        CheckpointError: tensors that do not fit each other, or that cannot be divided so.
    """
    matrices = [_flat(form, shapes[name]) for name in form.names]
    inputs = matrices[0][1]
    if any(other != inputs for _, other in matrices):
        raise CheckpointError(f"{_shown(form, shapes)}: must have the same number of inputs")
    outputs = tuple(size for size, _ in matrices)
    if len(outputs) < len(weights):
        weights = tuple(weight // math.gcd(*weights) for weight in weights)
        share, rest = divmod(outputs[0], sum(weights))
        if rest:
            raise CheckpointError(
                f"{_shown(form, shapes)}: {outputs[0]} outputs cannot be divided as {[*weights]}"
            )
        outputs = tuple(share * weight for weight in weights)
    if group_unit is None:
        return Sizes(outputs, inputs)
    groups, rest = divmod(outputs[-1], group_unit)
    if rest or not groups or any(size % groups for size in outputs):
        raise CheckpointError(
            f"{_shown(form, shapes)}: {[*outputs]} outputs are not whole groups of {group_unit}"
        )
    return Sizes(outputs, inputs, groups)


def shapes_of(form: Form, sizes: Sizes) -> dict[str, Shape]:
    outputs = sizes.outputs if len(form.names) > 1 else (sum(sizes.outputs),)
    return {name: _shape(form, size, sizes.inputs) for name, size in zip(form.names, outputs, strict=True)}


def view_of(form: Form, sizes: Sizes) -> Shape | None:
    """The shape in which the regions of a single grouped tensor are few, where it is another than its own.

    Rows that alternate are halves of longer rows.
    """
    if _alternates(form, sizes):
        return sizes.groups, len(sizes.outputs) * (sizes.inputs or 1)
    return None


def spans(form: Form, sizes: Sizes, section: int) -> Iterator[Span]:
    """Yields the outputs of a section, in order."""
    size = sizes.outputs[section]
    if len(form.names) > 1:
        yield _span(form, form.names[section], (0, size), 0, sizes.inputs)
    elif not form.grouped:
        yield _span(form, form.names[0], (0, size), sum(sizes.outputs[:section]), sizes.inputs)
    elif _alternates(form, sizes):
        width = sizes.inputs or 1
        yield Span(0, size, form.names[0], ((0, size), (section * width, (section + 1) * width)))
    else:
        unit, whole, before = sizes.units[section], sum(sizes.units), sum(sizes.units[:section])
        for group in range(sizes.groups):
            first = group * unit
            yield _span(form, form.names[0], (first, first + unit), group * whole + before, sizes.inputs)


def _alternates(form: Form, sizes: Sizes) -> bool:
    is_grouped = len(form.names) == 1 and form.grouped
    return is_grouped and len(sizes.outputs) > 1 and set(sizes.units) == {1} and sizes.inputs is not None


def _span(form: Form, name: str, outputs: tuple[int, int], place: int, inputs: int | None) -> Span:
    rows = (place, place + outputs[1] - outputs[0])
    if inputs is None:
        return Span(*outputs, name, (rows,))
    return Span(*outputs, name, ((0, inputs), rows) if form.transposed else (rows, (0, inputs)))


def _flat(form: Form, shape: Shape) -> tuple[int, int | None]:
    """Outputs and inputs."""
    if len(shape) == 1:
        return shape[0], None
    if len(shape) != 2:
        raise CheckpointError(f"{form.names[0]}: shape {[*shape]} must have 1 or 2 dimensions")
    return (shape[1], shape[0]) if form.transposed else (shape[0], shape[1])


def _shape(form: Form, outputs: int, inputs: int | None) -> Shape:
    if inputs is None:
        return (outputs,)
    return (inputs, outputs) if form.transposed else (outputs, inputs)


def _shown(form: Form, shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {[*shapes[name]]}" for name in form.names)


def stacked(
    rule: Rule, shapes: Mapping[str, Shape], experts: int, *, is_stored: bool
) -> tuple[dict[str, Shape], dict[str, StoredShard]]:
    """The shapes of the experts' tensors, and what the matrix of all holds of them.

    shapes: of the matrix where `is_stored`, else of the experts' tensors.

    Raises:
        CheckpointError: tensors that are missing, not alike, or cannot be divided among the experts.
    """
    [name] = rule.stored.names
    names = [
        [original.replace(EXPERT, str(expert)) for original in rule.original.names]
        for expert in range(experts)
    ]
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
