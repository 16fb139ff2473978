"""Placements from strategies, and strategies from placements."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from mindbatch.checkpoint.error_lines import collecting, first_lines, raise_if_any, shown
from mindbatch.checkpoint.placement.regions import (
    Placement,
    Placements,
    Shape,
    Shard,
    full_region,
    single_segment,
)
from mindbatch.checkpoint.strategy.strategy import UNCUT, OperatorStrategy, Strategy, TensorLayout
from mindbatch.io.errors import CheckpointError


def strategy_placements(strategy: Strategy, shapes: Mapping[str, Shape]) -> dict[str, Placement]:
    """Placement of tensors of these full shapes over the ranks of all stages.

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
    errors: list[str] = []
    by_name: dict[str, Placement] = {}
    for name, shape in shapes.items():
        with collecting(errors):
            shards = [
                _shard(layouts.get(name), name in named, rank, shape)
                for layouts in stages
                for rank in range(strategy.num_devices)
            ]
            by_name[name] = Placement(name, shape, tuple(shards))
    raise_if_any(errors)
    return by_name


def full_shapes(strategy: Strategy, ranks: Sequence[Mapping[str, Shape]]) -> dict[str, Shape]:
    """The full shape of every tensor, from the shapes in each rank's file.

    Raises:
        CheckpointError: another number of ranks than the strategy has, a tensor that a rank lacks or has
            though another stage holds it, shapes of which not all can be parts of one tensor.
    """
    if len(ranks) != strategy.num_ranks:
        if len(ranks) == 1:
            raise CheckpointError(
                f"1 rank; the strategy is for {strategy.num_ranks}; if this one is the whole, give no "
                "strategy for the source"
            )
        raise CheckpointError(f"{len(ranks)} ranks; the strategy is for {strategy.num_ranks}")
    errors: list[str] = []
    full: dict[str, Shape] = {}
    named = {layout.name for layout in strategy.layouts}
    for rank, shapes in enumerate(ranks):
        layouts = strategy.of_rank(rank)
        for name, local in shapes.items():
            if name in named and name not in layouts:
                errors.append(
                    f"tensor {shown(name)}: the strategy has it in another stage, not in that of rank {rank}"
                )
                continue
            with collecting(errors):
                layout = layouts.get(name)
                counts = parts_of(layout, len(local)) if layout else (1,) * len(local)
                shape = tuple(size * count for size, count in zip(local, counts, strict=True))
                if full.setdefault(name, shape) != shape:
                    errors.append(
                        f"tensor {shown(name)}: on rank {rank} {[*local]}, part of {[*shape]}; on the ranks "
                        f"before part of {[*full[name]]}"
                    )
    raise_if_any([*errors, *_missing(strategy, ranks, full, named)])
    return full


def parts_of(layout: TensorLayout, num_dimensions: int) -> Shape:
    """Number of parts of each dimension. CheckpointError when the layout is for other dimensions."""
    # Cut into as many elements as there are devices, each dimension tells its number of parts.
    even = (layout.num_devices,) * num_dimensions
    return tuple(size // part for size, part in zip(even, layout.local_shape(even), strict=True))


def _shard(layout: TensorLayout | None, is_named: bool, rank: int, shape: Shape) -> Shard | None:
    if layout is None:
        return None if is_named else single_segment(shape, full_region(shape))
    return _shard_of(layout, rank, shape)


def _shard_of(layout: TensorLayout, rank: int, shape: Shape) -> Shard:
    whole = tuple((part.start, part.stop) for part in layout.slice_of(rank, shape))
    return single_segment(layout.local_shape(shape), whole)


def _missing(
    strategy: Strategy,
    ranks: Sequence[Mapping[str, Shape]],
    tensors: Iterable[str],
    named: Collection[str],
) -> Iterator[str]:
    for rank, shapes in enumerate(ranks):
        layouts = strategy.of_rank(rank)
        for name in tensors:
            if name not in shapes and (name in layouts or name not in named):
                yield f"tensor {shown(name)}: rank {rank} lacks it"


_OPERATOR = "Layout-op0"  # MindSpore reads a file's stage from its first operator, so there must be one
_MAX_SHOWN = 3


def stage_strategies(by_name: Placements, model_parallel: int, stages: int) -> list[Strategy]:
    """The strategy of each stage, with the tensors that it holds, in order of the placements.

    A layout is used only if every rank's slice by it equals the placement's region of that rank.

    Raises:
        CheckpointError: the tensors that a strategy cannot describe, those of one reason in one line.
    """
    errors: dict[str, dict[str, None]] = {}
    strategies: list[Strategy] = []
    for stage in range(stages):
        layouts = []
        for name, placement in by_name.items():
            shards = _of_stage(placement, stage, stages)
            if not shards:
                continue
            error = _inexpressible(placement.shape, shards)
            layout = None if error else _layout(name, placement.shape, shards, model_parallel)
            if layout is not None and _matches(layout, placement.shape, shards):
                layouts.append(layout)
            else:
                reason = error or "the ranks hold their parts in an order that no device matrix tells"
                errors.setdefault(reason, {})[name] = None
        strategies.append(Strategy(tuple(layouts), (OperatorStrategy(_OPERATOR, stage),)))
    if errors:
        raise CheckpointError(_lines(errors))
    return strategies


def _of_stage(placement: Placement, stage: int, stages: int) -> list[Shard]:
    devices = len(placement.shards) // stages
    shards = placement.shards[stage * devices : (stage + 1) * devices]
    of_stage = [shard for shard in shards if shard is not None]
    assert not of_stage or len(of_stage) == devices, placement.name
    return of_stage


def _inexpressible(shape: Shape, shards: Sequence[Shard]) -> str | None:
    """Explains why a strategy cannot express the shards; None if it can."""
    regions = max(len(shard.segments) for shard in shards)
    if any(shard.padding for shard in shards):
        return f"shape {[*shape]} is padded with zeros to be cut evenly; a strategy knows no padding"
    if regions > 1:
        return f"{regions} regions on each rank; a strategy gives a rank one region"
    if len({shard.shape for shard in shards}) > 1:
        return f"shape {[*shape]} is cut unevenly; a strategy cuts evenly"
    if sum(whole != part for whole, part in zip(shape, shards[0].shape, strict=True)) > 1:
        return f"shape {[*shape]} is cut in several dimensions, which is not written here"
    return None


def _layout(name: str, shape: Shape, shards: Sequence[Shard], model_parallel: int) -> TensorLayout | None:
    """The device matrix begins with replicas and ends with neighbours that share a shard."""
    devices, local = len(shards), shards[0].shape
    uncut = (UNCUT,) * max(1, len(shape))
    cut = next((index for index, size in enumerate(shape) if local[index] != size), None)
    if cut is None:
        return TensorLayout(name, (devices // model_parallel, model_parallel), uncut)
    parts = shape[cut] // local[cut] if local[cut] else 0
    alike = next((rank for rank, shard in enumerate(shards) if shard != shards[0]), devices)
    if not parts or devices % (parts * alike):
        return None
    matrix = (devices // (parts * alike), parts, *([alike] if alike > 1 else []))
    axis = len(matrix) - 2
    return TensorLayout(name, matrix, (*uncut[:cut], axis, *uncut[cut + 1 :]))


def _matches(layout: TensorLayout, shape: Shape, shards: Sequence[Shard]) -> bool:
    try:
        return all(_shard_of(layout, rank, shape) == shard for rank, shard in enumerate(shards))
    except CheckpointError:  # it does not divide
        return False


def _lines(errors: Mapping[str, Mapping[str, None]]) -> list[str]:
    lines = []
    for reason, names in errors.items():
        listed = ", ".join(first_lines([*names], shown, limit=_MAX_SHOWN, noun="tensors"))
        lines.append(f"{'tensors' if len(names) > 1 else 'tensor'} {listed}: {reason}")
    return lines
