"""Describes rank files with MindFormers' names by the regions of Hugging Face's tensors in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from mindbatch.checkpoint.error_lines import collecting, raise_if_any, shown
from mindbatch.checkpoint.names.dialect import (
    EXPERT,
    Dialect,
    Form,
    Heads,
    Rule,
    Sections,
    rule_for,
    unused_names,
)
from mindbatch.checkpoint.placement.regions import (
    Placement,
    Placements,
    RankFiles,
    Region,
    Segment,
    Shape,
    Shard,
    StoredShard,
    intersection,
    shown_region,
)
from mindbatch.io.errors import CheckpointError

Extent = TypeVar("Extent", int, tuple[int, int])
"""Of a dimension: its size, or a range of it."""


def as_mindformers(dialect: Dialect, heads: Heads, placements: Placements, num_ranks: int) -> RankFiles:
    """Describes files that hold these placements under MindFormers' names, fused from each rank's own shards.

    CheckpointError lists names that have no rule, and parts of a fused tensor that do not fit.
    """
    known: dict[object, RankFiles] = {}  # the ranks of a stage are alike
    ranks: list[dict[str, StoredShard]] = []
    for rank in range(num_ranks):
        shards = {
            name: shard
            for name, placement in placements.items()
            if (shard := placement.shards[rank]) is not None
        }
        shapes = {name: shard.shape for name, shard in shards.items()}
        key = tuple(shapes.items())
        if key not in known:
            known[key] = to_mindformers(dialect, shapes, heads)
        [tensors] = known[key].ranks
        ranks.append({name: _fused(stored, shards) for name, stored in tensors.items()})
    shapes = {name: placement.shape for name, placement in placements.items()}
    return RankFiles(shapes, tuple(ranks), is_renamed=True)


def by_strategy(dialect: Dialect, heads: Heads, stored: Placements, num_ranks: int) -> RankFiles:
    """Describes files of a MindSpore strategy. stored: the strategy's placements by MindFormers' names.

    CheckpointError lists names that have no rule, and cuts through fused rows that belong together.
    """
    unused = unused_names(dialect, stored)
    used = {name: placement for name, placement in stored.items() if name not in unused}
    whole = to_huggingface(dialect, {name: placement.shape for name, placement in used.items()}, heads)
    errors: list[str] = []
    ranks: list[dict[str, StoredShard]] = [{} for _ in range(num_ranks)]
    for rank, tensors in enumerate(ranks):
        for name, placement in used.items():
            if (shard := placement.shards[rank]) is not None:
                with collecting(errors):
                    tensors[name] = _unfused(placement, shard, rank, whole.ranks[0][name])
    raise_if_any(errors)
    return RankFiles(whole.shapes, tuple(ranks), is_renamed=True)


def _whole_files(
    dialect: Dialect, shapes: Mapping[str, Shape], heads: Heads, *, is_stored: bool
) -> RankFiles:
    """Describes one rank with MindFormers' tensors by the Hugging Face tensors that they are made of.

    shapes: shapes of MindFormers' tensors if `is_stored`, else of Hugging Face's; full, or of equal shards.

    Raises:
        CheckpointError: names that have no rule, parts of a fused tensor that are missing or do not fit.
    """
    unused = unused_names(dialect, shapes)
    used = {name: shape for name, shape in shapes.items() if name not in unused}
    errors: list[str] = []
    rules: dict[Rule, None] = {}
    for name in used:
        with collecting(errors):
            rules[rule_for(dialect, name, used, is_stored=is_stored)] = None
    originals: dict[str, Shape] = {}
    stored: dict[str, StoredShard] = {}
    for rule in rules:
        with collecting(errors):
            if rule.is_stacked:
                shapes_of_experts, matrices = _stacked(rule, used, heads.experts, is_stored=is_stored)
                originals |= shapes_of_experts
                stored |= matrices
            else:
                known = rule.stored if is_stored else rule.original
                sizes = _read_sizes(known, used, heads.weights(rule.sections), _group_unit(rule, heads))
                originals |= _shapes_of(rule.original, sizes)
                stored |= _stored_tensors(rule, sizes)
    raise_if_any(errors)
    return RankFiles(originals, (stored,), is_renamed=True)


to_mindformers = partial(_whole_files, is_stored=False)
to_huggingface = partial(_whole_files, is_stored=True)


def _stored_tensors(rule: Rule, sizes: Sizes) -> dict[str, StoredShard]:
    shapes, view = _shapes_of(rule.stored, sizes), _view_of(rule.stored, sizes)
    columns = None if sizes.inputs is None else (0, sizes.inputs)
    is_transposed = columns is not None and rule.original.transposed != rule.stored.transposed
    segments: dict[str, list[tuple[str, Segment]]] = {name: [] for name in shapes}
    for section, size in enumerate(sizes.outputs):
        [(original, first, *_)] = _runs(rule.original, sizes, section)  # which is never grouped
        for name, offset, start, stop in _runs(rule.stored, sizes, section):
            local = _in_form(rule.stored, (offset, offset + stop - start), columns)
            if view is not None:
                width = view[1] // len(sizes.outputs)
                local = (0, size), (section * width, (section + 1) * width)
            whole = _in_form(rule.original, (first + start, first + stop), columns)
            segments[name].append((original, Segment(local, whole, transposed=is_transposed)))
    return {name: StoredShard.of(segments[name], shape, other_view=view) for name, shape in shapes.items()}


def _group_unit(rule: Rule, heads: Heads) -> int | None:
    """Counts the outputs of the last section in a group of the stored tensor; None without groups."""
    if not rule.stored.grouped:
        return None
    return heads.head_dim if rule.sections is Sections.QKV else 1


def _fused(stored: StoredShard, shards: Mapping[str, Shard]) -> StoredShard:
    """Describes a tensor that is fused from a rank's shards."""
    segments = [
        (tensor, common)
        for tensor, segment in stored.segments
        for own in shards[tensor].segments
        if (common := segment.within(own)) is not None
    ]
    padding = tuple(
        segment.local_at(padded)
        for tensor, segment in stored.segments
        for region in shards[tensor].padding
        if (padded := intersection(segment.whole, region)) is not None
    )
    return StoredShard.of(segments, stored.shard.shape, padding, stored.shard.other_view)


def _unfused(placement: Placement, shard: Shard, rank: int, whole: StoredShard) -> StoredShard:
    """Builds a rank's shard of a tensor under MindFormers' names. whole: contents of the full tensor."""
    own, own_view, view = [*shard.segments], None, whole.shard.other_view
    if view is not None:
        own = [
            Segment(_viewed(local, placement, view, rank), _viewed(whole_rows, placement, view, rank))
            for local, whole_rows, *_ in own
        ]
        own_view = tuple(stop for _, stop in own[0].local) if own else None
    segments = [
        (tensor, common)
        for segment in own
        for tensor, part in whole.segments
        if (common := segment.within(part)) is not None
    ]
    return StoredShard.of(segments, shard.shape, shard.padding, own_view)


def _viewed(region: Region, placement: Placement, view: Shape, rank: int) -> Region:
    """Converts a region of full rows to a view in which several rows are one."""
    together = placement.shape[0] // view[0]
    (start, stop), columns = region
    if start % together or stop % together or columns != (0, placement.shape[1]):
        raise CheckpointError(
            f"tensor {shown(placement.name)}: the strategy gives {shown_region(region)} to rank {rank}; "
            f"{together} full rows each belong together, so Hugging Face names cannot describe this layout"
        )
    return (start // together, stop // together), (0, placement.shape[1] * together)


@dataclass(frozen=True)
class Sizes:
    """Outputs of each section; inputs, None for vectors; number of groups of a grouped form."""

    outputs: tuple[int, ...]
    inputs: int | None
    groups: int = 1

    @property
    def units(self) -> tuple[int, ...]:
        return tuple(size // self.groups for size in self.outputs)


def _read_sizes(
    form: Form, shapes: Mapping[str, Shape], weights: tuple[int, ...], group_unit: int | None
) -> Sizes:
    """Reads the sizes from the shapes of a form's tensors on a rank. CheckpointError if they do not match.

    weights: relative sizes of the sections of a single tensor.
    group_unit: outputs of the last section in a group; None without groups.
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


def _shapes_of(form: Form, sizes: Sizes) -> dict[str, Shape]:
    outputs = sizes.outputs if len(form.names) > 1 else (sum(sizes.outputs),)
    return {name: _in_form(form, size, sizes.inputs) for name, size in zip(form.names, outputs, strict=True)}


def _view_of(form: Form, sizes: Sizes) -> Shape | None:
    """Returns a shape by which a grouped tensor has few regions; None for its own.

    Alternating rows are halves of longer rows.
    """
    if sizes.inputs is None or not form.grouped or set(sizes.units) != {1}:
        return None
    return sizes.groups, len(sizes.outputs) * sizes.inputs


def _runs(form: Form, sizes: Sizes, section: int) -> list[tuple[str, int, int, int]]:
    """Lists, for a section: name of the tensor, first output in it, and the section's outputs start..stop."""
    size = sizes.outputs[section]
    if len(form.names) > 1:
        return [(form.names[section], 0, 0, size)]
    [name] = form.names
    if not form.grouped or _view_of(form, sizes) is not None:
        return [(name, sum(sizes.outputs[:section]), 0, size)]
    unit, whole, before = sizes.units[section], sum(sizes.units), sum(sizes.units[:section])
    return [(name, group * whole + before, group * unit, (group + 1) * unit) for group in range(sizes.groups)]


def _in_form(form: Form, outputs: Extent, inputs: Extent | None) -> tuple[Extent, ...]:
    if inputs is None:
        return (outputs,)
    return (inputs, outputs) if form.transposed else (outputs, inputs)


def _flat(form: Form, shape: Shape) -> tuple[int, int | None]:
    if len(shape) == 1:
        return shape[0], None
    if len(shape) != 2:
        raise CheckpointError(f"{form.names[0]}: shape {[*shape]} must have 1 or 2 dimensions")
    return (shape[1], shape[0]) if form.transposed else (shape[0], shape[1])


def _shown(form: Form, shapes: Mapping[str, Shape]) -> str:
    return ", ".join(f"{name} {[*shapes[name]]}" for name in form.names)


def _stacked(
    rule: Rule, shapes: Mapping[str, Shape], experts: int, *, is_stored: bool
) -> tuple[dict[str, Shape], dict[str, StoredShard]]:
    """Returns the shapes of the experts' tensors, and the contents of the matrix of all.

    shapes: shape of the matrix if `is_stored`, else those of the experts' tensors.

    CheckpointError: tensors are missing, differ in shape, or cannot be divided among the experts.
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
                ((expert * inputs, (expert + 1) * inputs), (index * outputs, (index + 1) * outputs)),
                ((0, outputs), (0, inputs)),
                transposed=True,
            ),
        )
        for expert, tensors in enumerate(names)
        for index, tensor in enumerate(tensors)
    ]
    originals: dict[str, Shape] = {tensor: (outputs, inputs) for tensor, _ in segments}
    whole = experts * inputs, len(rule.original.names) * outputs
    return originals, {name: StoredShard.of(segments, whole)}


def _divided(name: str, shape: Shape, experts: int, tensors: int) -> tuple[int, int]:
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
