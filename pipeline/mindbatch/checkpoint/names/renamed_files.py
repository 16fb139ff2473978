"""Rank files with MindFormers' names: which region of which Hugging Face tensor is where in them."""

from collections.abc import Iterator, Mapping
from functools import partial

from mindbatch.checkpoint.faults import collecting, raise_if_any, shown
from mindbatch.checkpoint.names.dialect import (
    Dialect,
    Heads,
    Rule,
    Sections,
    rule_for,
    unused_names,
)
from mindbatch.checkpoint.names.section_regions import (
    Sizes,
    Span,
    read_sizes,
    shapes_of,
    spans,
    stacked,
    view_of,
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


def as_mindformers(dialect: Dialect, heads: Heads, placements: Placements, num_ranks: int) -> RankFiles:
    """Files that hold these placements under MindFormers' names, each fused from what its rank has itself.

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
    """Files that a MindSpore strategy has cut. stored: the placements it gives, by MindFormers' names.

    Raises:
        CheckpointError: names that have no rule, or a cut through rows of a fused tensor that belong
            together.
    """
    unused = unused_names(dialect, stored)
    used = {name: placement for name, placement in stored.items() if name not in unused}
    whole = to_huggingface(dialect, {name: placement.shape for name, placement in used.items()}, heads)
    faults: list[str] = []
    ranks: list[dict[str, StoredShard]] = [{} for _ in range(num_ranks)]
    for rank, tensors in enumerate(ranks):
        for name, placement in used.items():
            if (shard := placement.shards[rank]) is not None:
                with collecting(faults):
                    tensors[name] = _unfused(placement, shard, rank, whole.ranks[0][name])
    raise_if_any(faults)
    return RankFiles(whole.shapes, tuple(ranks), is_renamed=True)


def _whole_files(
    dialect: Dialect, shapes: Mapping[str, Shape], heads: Heads, *, is_stored: bool
) -> RankFiles:
    """One rank with MindFormers' tensors, and the Hugging Face tensors they are made of.

    shapes: of the first where `is_stored`, else of the second, full or cut alike.

    Raises:
        CheckpointError: names that have no rule, parts of a fused tensor that are missing or do not fit.
    """
    unused = unused_names(dialect, shapes)
    used = {name: shape for name, shape in shapes.items() if name not in unused}
    faults: list[str] = []
    rules: dict[Rule, None] = {}
    for name in used:
        with collecting(faults):
            rules[rule_for(dialect, name, used, is_stored=is_stored)] = None
    originals: dict[str, Shape] = {}
    stored: dict[str, StoredShard] = {}
    for rule in rules:
        with collecting(faults):
            if rule.is_stacked:
                shapes_of_experts, matrices = stacked(rule, used, heads.experts, is_stored=is_stored)
                originals |= shapes_of_experts
                stored |= matrices
                continue
            known = rule.stored if is_stored else rule.original
            sizes = read_sizes(known, used, heads.weights(rule.sections), _group_unit(rule, heads))
            originals |= shapes_of(rule.original, sizes)
            stored |= _stored_tensors(rule, sizes)
    raise_if_any(faults)
    return RankFiles(originals, (stored,), is_renamed=True)


to_mindformers = partial(_whole_files, is_stored=False)
to_huggingface = partial(_whole_files, is_stored=True)


def _stored_tensors(rule: Rule, sizes: Sizes) -> dict[str, StoredShard]:
    shapes = shapes_of(rule.stored, sizes)
    segments: dict[str, list[tuple[str, Segment]]] = {name: [] for name in shapes}
    for section in range(len(sizes.outputs)):
        [whole] = spans(rule.original, sizes, section)
        for part in spans(rule.stored, sizes, section):
            segments[part.name].append((whole.name, _segment(rule, whole, part, sizes.inputs is not None)))
    view = view_of(rule.stored, sizes)
    return {name: StoredShard.of(segments[name], shape, other_view=view) for name, shape in shapes.items()}


def _segment(rule: Rule, whole: Span, part: Span, is_matrix: bool) -> Segment:
    """The part's outputs within the Hugging Face tensor, which holds its sections in one region each."""
    along = 1 if is_matrix and rule.original.transposed else 0
    first = whole.region[along][0] + part.start
    rows = (first, first + part.stop - part.start)
    region = (*whole.region[:along], rows, *whole.region[along + 1 :])
    transposed = is_matrix and rule.original.transposed != rule.stored.transposed
    return Segment(part.region, region, transposed=transposed)


def _group_unit(rule: Rule, heads: Heads) -> int | None:
    """Outputs of the last section in a group of the stored tensor, None where it is not grouped."""
    if len(rule.stored.names) == len(rule.sections.value) or not rule.stored.grouped:
        return None
    return heads.head_dim if rule.sections is Sections.QKV else 1


def _fused(stored: StoredShard, shards: Mapping[str, Shard]) -> StoredShard:
    """A tensor that is made of a rank's tensors, by the shards of which these are."""

    def segments() -> Iterator[tuple[str, Segment]]:
        for tensor, segment in stored.segments:
            for own in shards[tensor].segments:
                if (common := segment.within(own)) is not None:
                    yield tensor, common

    padding = tuple(
        segment.local_at(common)
        for tensor, segment in stored.segments
        for region in shards[tensor].padding
        if (common := intersection(segment.whole, region)) is not None
    )
    return StoredShard.of(segments(), stored.shard.shape, padding, stored.shard.other_view)


def _unfused(placement: Placement, shard: Shard, rank: int, whole: StoredShard) -> StoredShard:
    """Builds a rank's shard of a tensor under MindFormers' names. whole: what the full tensor holds."""
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
    """A region of full rows as the view counts it, in which several rows are one."""
    together = placement.shape[0] // view[0]
    (start, stop), columns = region
    if start % together or stop % together or columns != (0, placement.shape[1]):
        raise CheckpointError(
            f"tensor {shown(placement.name)}: the strategy gives {shown_region(region)} to rank {rank}; "
            f"{together} full rows each belong together, so that cannot be told in Hugging Face names"
        )
    return (start // together, stop // together), (0, placement.shape[1] * together)
