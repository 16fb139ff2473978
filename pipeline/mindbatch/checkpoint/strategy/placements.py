"""The place of every tensor over the ranks of a MindSpore strategy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mindbatch.checkpoint.faults import collecting, raise_if_any, shown
from mindbatch.checkpoint.placement.placement import Placement, Shard, single_segment
from mindbatch.checkpoint.placement.regions import Shape
from mindbatch.checkpoint.strategy.strategy import Strategy
from mindbatch.checkpoint.strategy.tensor_layout import TensorLayout
from mindbatch.errors import CheckpointError


def strategy_placements(strategy: Strategy, shapes: Mapping[str, Shape]) -> dict[str, Placement]:
    """Where the tensors of these full shapes are, for every rank of every stage.

    A tensor that the strategy does not name is whole on every rank, as in MindSpore; layouts of other
    parameters are left aside.

    Raises:
        CheckpointError: layouts that do not fit the shapes, or none that is of these tensors.
    """
    stages = [strategy.of_stage(stage) for stage in range(strategy.num_ranks // strategy.num_devices)]
    named = set().union(*stages)
    if shapes and not named & shapes.keys():
        raise CheckpointError(
            f"the strategy names none of the tensors: it has {shown(min(named, default=''))}, "
            f"they are such as {shown(min(shapes))}"
        )
    faults: list[str] = []
    found: dict[str, Placement] = {}
    for name, shape in shapes.items():
        with collecting(faults):
            shards = [
                _shard(layouts.get(name), name in named, rank, shape)
                for layouts in stages
                for rank in range(strategy.num_devices)
            ]
            found[name] = Placement(name, shape, tuple(shards))
    raise_if_any(faults)
    return found


def full_shapes(strategy: Strategy, ranks: Sequence[Mapping[str, Shape]]) -> dict[str, Shape]:
    """The full shape of every tensor, from the shapes in each rank's file.

    Raises:
        CheckpointError: another number of ranks than the strategy has, a tensor that a rank lacks or has
            though another stage holds it, shapes of which not all can be parts of one tensor.
    """
    if len(ranks) != strategy.num_ranks:
        held = "1 rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
        raise CheckpointError(f"{held}; the strategy is for {strategy.num_ranks}")
    faults: list[str] = []
    found: dict[str, Shape] = {}
    named = {layout.name for layout in strategy.layouts}
    for rank, shapes in enumerate(ranks):
        layouts = strategy.of_rank(rank)
        for name, local in shapes.items():
            if name in named and name not in layouts:
                faults.append(
                    f"tensor {shown(name)}: the strategy has it in another stage, not in that of rank {rank}"
                )
                continue
            with collecting(faults):
                shape = _full_shape(layouts.get(name), local)
                if found.setdefault(name, shape) != shape:
                    faults.append(
                        f"tensor {shown(name)}: on rank {rank} {[*local]}, part of {[*shape]}; on the ranks "
                        f"before part of {[*found[name]]}"
                    )
    raise_if_any([*faults, *_missing(strategy, ranks, found, named)])
    return found


def parts_of(layout: TensorLayout, num_dimensions: int) -> Shape:
    """Into how many parts each dimension is cut. CheckpointError when the layout is for other dimensions."""
    # Cut into as many elements as there are devices, each dimension tells its number of parts.
    even = (layout.num_devices,) * num_dimensions
    return tuple(size // part for size, part in zip(even, layout.local_shape(even), strict=True))


def _shard(layout: TensorLayout | None, is_named: bool, rank: int, shape: Shape) -> Shard | None:
    if layout is None:
        return None if is_named else single_segment(shape, tuple((0, size) for size in shape))
    whole = tuple((part.start, part.stop) for part in layout.slice_of(rank, shape))
    return single_segment(layout.local_shape(shape), whole)


def _full_shape(layout: TensorLayout | None, local: Shape) -> Shape:
    if layout is None:
        return local
    return tuple(size * count for size, count in zip(local, parts_of(layout, len(local)), strict=True))


def _missing(
    strategy: Strategy,
    ranks: Sequence[Mapping[str, Shape]],
    found: Iterable[str],
    named: Collection[str],
) -> Iterator[str]:
    """A tensor that some rank has must be on all ranks of the stages that hold it."""
    for rank, shapes in enumerate(ranks):
        layouts = strategy.of_rank(rank)
        for name in found:
            if name not in shapes and (name in layouts or name not in named):
                yield f"tensor {shown(name)}: rank {rank} lacks it"
