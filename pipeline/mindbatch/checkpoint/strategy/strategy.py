"""Parallel strategies of MindSpore: the layout of each parameter over the devices of a pipeline stage."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mindbatch.checkpoint.error_lines import MAX_LINES, raise_if_any, shown
from mindbatch.checkpoint.formats.stored import MAX_DIMENSIONS, name_errors
from mindbatch.io.errors import CheckpointError

UNCUT = -1
MAX_DEVICES = 1 << 20

Axes = int | tuple[int, ...]
"""Axes of the device matrix that shard a dimension: one, several (the first changes slowest), or -1: none."""


@dataclass(frozen=True)
class TensorLayout:
    """The layout of one parameter.

    device_matrix: the devices of the stage, rank by rank in row-major order.
    tensor_map: for each dimension of the parameter what cuts it; axes are counted from the last one.
    stage: the pipeline stage, where the file says it with the name.
    param_split_shape, indices_offset: an uneven cut, as embeddings may have it.
    field: size of the fields of such an embedding.
    opt_shard_step, opt_shard_size: the optimizer shard: the first dimension of what is left is cut once
        more, into `opt_shard_size` parts (-1: as many as possible), over axes that cut nothing.
    """

    name: str
    device_matrix: tuple[int, ...]
    tensor_map: tuple[Axes, ...]
    stage: int | None = None
    param_split_shape: tuple[int, ...] = ()
    indices_offset: tuple[int, ...] = ()
    field: int = 0
    opt_shard_step: int = 0
    opt_shard_size: int = 0

    @property
    def num_devices(self) -> int:
        return math.prod(self.device_matrix)

    @property
    def parts(self) -> tuple[int, ...]:
        """Into how many parts each entry of the tensor map cuts."""
        first = (0,) * len(self.device_matrix)
        return tuple(self._cut(_cutting(entry), first)[1] for entry in self.tensor_map)

    def slice_of(self, rank: int, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """The slice of a parameter of `shape` on a rank, counted within its stage or over all.

        CheckpointError when the layout does not fit the shape: dimensions, divisibility, an uneven cut.
        """
        coordinates = _coordinates(rank % self.num_devices, self.device_matrix)
        cuts = [self._cut(axes, coordinates) for axes in self._axes_of(shape)]
        if cuts:
            cuts[0] = _joined([cuts[0], self._opt_cut(coordinates)])
        return tuple(
            self._bounds(size, *cut, shape) for size, cut in zip(shape, cuts, strict=True)
        )  # fmt: skip

    def local_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(part.stop - part.start for part in self.slice_of(0, shape))

    def _axes_of(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        if any(self.param_split_shape):
            raise self._unfit(shape, f"is cut unevenly, {[*self.param_split_shape]}; must be cut evenly")
        axes = [_cutting(entry) for entry in self.tensor_map]
        if len(axes) != len(shape):
            if len(shape) == 1:  # a file cannot tell several axes of one dimension from several dimensions
                return [tuple(axis for axis_group in axes for axis in axis_group)]
            if shape or any(axes):
                raise self._unfit(shape, f"has a tensor map of {len(axes)} dimensions")
            return []
        return axes

    def _cut(self, axes: Iterable[int], coordinates: tuple[int, ...]) -> tuple[int, int]:
        """Index and number of parts."""
        return _joined([(coordinates[-1 - axis], self.device_matrix[-1 - axis]) for axis in axes])

    def _opt_cut(self, coordinates: tuple[int, ...]) -> tuple[int, int]:
        if not self.opt_shard_step or not self.opt_shard_size:
            return 0, 1
        used = {len(self.device_matrix) - 1 - axis for entry in self.tensor_map for axis in _cutting(entry)}
        free = [axis for axis in range(len(self.device_matrix)) if axis not in used]
        left = (
            self.opt_shard_size if self.opt_shard_size > 0 else math.prod(self.device_matrix[a] for a in free)
        )
        cuts: list[tuple[int, int]] = []
        for axis in reversed(free):
            taken = min(left, self.device_matrix[axis])
            if left % taken or self.device_matrix[axis] % taken:
                break
            cuts.insert(0, (coordinates[axis] % taken, taken))
            left //= taken
        if left != 1:
            raise CheckpointError(
                f"layout of {shown(self.name)}: {self.opt_shard_size} parts of an optimizer shard do not fit "
                f"the devices {[*self.device_matrix]} that cut nothing"
            )
        return _joined(cuts)

    def _bounds(self, size: int, index: int, parts: int, shape: tuple[int, ...]) -> slice:
        if size % parts:
            raise self._unfit(shape, f"is cut into {parts} parts, which do not divide {size}")
        return slice(index * (size // parts), (index + 1) * (size // parts))

    def _unfit(self, shape: tuple[int, ...], error: str) -> CheckpointError:
        return CheckpointError(f"layout of {shown(self.name)}: shape {[*shape]} {error}")


def layout_errors(layout: TensorLayout) -> list[str]:
    matrix, errors = layout.device_matrix, []
    if not matrix or len(matrix) > MAX_DIMENSIONS or min(matrix) < 1 or math.prod(matrix) > MAX_DEVICES:
        errors.append(f"device matrix {shown([*matrix])} must be 1 to {MAX_DIMENSIONS} sizes above 0")
    axes = [axis for entry in layout.tensor_map for axis in _cutting(entry)]
    if any(not 0 <= axis < len(matrix) for axis in axes) or len(set(axes)) < len(axes):
        errors.append(
            f"tensor map {shown([*layout.tensor_map])} must hold axes below {len(matrix)}, each once, or -1"
        )
    if len(axes) > MAX_DIMENSIONS or len(layout.tensor_map) > MAX_DIMENSIONS:
        errors.append(
            f"tensor map {shown([*layout.tensor_map])} must have at most {MAX_DIMENSIONS} dimensions"
        )
    if layout.opt_shard_size < UNCUT or layout.opt_shard_step < UNCUT:
        errors.append(f"optimizer shard {layout.opt_shard_size} must be -1 or more")
    return errors


def _cutting(entry: Axes) -> tuple[int, ...]:
    axes = entry if isinstance(entry, tuple) else (entry,)
    return tuple(axis for axis in axes if axis != UNCUT)


def _coordinates(rank: int, matrix: tuple[int, ...]) -> tuple[int, ...]:
    coordinates: list[int] = []
    for size in reversed(matrix):
        rank, position = divmod(rank, size)
        coordinates.insert(0, position)
    return tuple(coordinates)


def _joined(cuts: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Nested cuts as one: index and number of parts."""
    index, parts = 0, 1
    for position, size in cuts:
        index, parts = index * size + position, parts * size
    return index, parts


@dataclass(frozen=True)
class OperatorStrategy:
    """Sharding of one operator; its stage is that of the file."""

    name: str
    stage: int
    cuts: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Strategy:
    """Content of a strategy file; `layouts` in file order."""

    layouts: tuple[TensorLayout, ...]
    operators: tuple[OperatorStrategy, ...] = ()
    current_stage: int = 0

    @property
    def stage(self) -> int:
        """Stage of parameters without one of their own: that of the first operator, as in MindSpore."""
        return self.operators[0].stage if self.operators else 0

    @property
    def stages(self) -> tuple[int, ...]:
        """Stages that have parameters."""
        return tuple(sorted({self.stage_of(layout) for layout in self.layouts}))

    @property
    def num_devices(self) -> int:
        return self.layouts[0].num_devices if self.layouts else 1

    @property
    def num_ranks(self) -> int:
        return self.num_devices * (max(self.stages, default=0) + 1)

    def stage_of(self, layout: TensorLayout) -> int:
        return self.stage if layout.stage is None else layout.stage

    def of_stage(self, stage: int) -> dict[str, TensorLayout]:
        return {layout.name: layout for layout in self.layouts if self.stage_of(layout) == stage}

    def of_rank(self, rank: int) -> dict[str, TensorLayout]:
        return self.of_stage(rank // self.num_devices)


_STAGE_NAME = re.compile(r"(\d{1,6})-(.+)", re.DOTALL)


def checked(strategy: Strategy, where: str) -> Strategy:
    """The strategy with stages and names apart, all of them right. CheckpointError lists the errors."""
    layouts = tuple(_named(layout) for layout in strategy.layouts)
    errors: list[str] = []
    seen: set[tuple[int | None, str]] = set()
    for layout in layouts:
        layout_lines = [*name_errors(layout.name), *layout_errors(layout)]
        layout_lines += ["is there twice"] if (layout.stage, layout.name) in seen else []
        if not layout_lines and layout.num_devices != layouts[0].num_devices:
            layout_lines = [f"{layout.num_devices} devices; the first parameter has {layouts[0].num_devices}"]
        errors += [f"parameter {shown(layout.name)}: {error}" for error in layout_lines]
        seen.add((layout.stage, layout.name))
        if len(errors) > MAX_LINES:
            break
    raise_if_any(errors, where)
    return replace(strategy, layouts=layouts)


def _named(layout: TensorLayout) -> TensorLayout:
    match = _STAGE_NAME.fullmatch(layout.name)
    return replace(layout, stage=int(match[1]), name=match[2]) if match else layout
