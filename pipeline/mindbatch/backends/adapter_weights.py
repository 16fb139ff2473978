"""Adapters beside a model: checked against all of it, and the slices of them that a rank computes with."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mindbatch.architecture.stage_cut import is_tied, stage_specs
from mindbatch.architecture.tensor_spec import TensorSpec
from mindbatch.checkpoint.error_lines import collecting, located, raise_if_any, shown
from mindbatch.checkpoint.folders.model_folder import StoredWeights
from mindbatch.checkpoint.formats.open_file import OpenFiles, in_threads
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.modules import AdaptedModule, LowRank, ModuleKind, row_factors
from mindbatch.checkpoint.lora.plan import BaseTensors, LoraPlan, plan_lora
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.adapters import (
    WHOLE_WEIGHT,
    AdaptedShape,
    AdapterParts,
    LowRankPart,
    Ranks,
    WholePart,
)
from mindbatch.kernels.arrays import FloatArray
from mindbatch.parallel.topology import WHOLE, Stage, TensorSlice


class RowScale(NamedTuple):
    """magnitude / norm of each row, and what keeps the module's own bias as it is: bias * (1 - factor)."""

    factor: FloatArray
    offset: FloatArray | None


def row_scale(whole: LowRank, folder: StoredWeights, name: str, *, is_transposed: bool) -> RowScale:
    """The factors of a module with a magnitude. name: of its weight in the folder.

    is_transposed: the weight is stored [inputs, outputs].

    Raises:
        CheckpointError: the folder was cut for a rank, so that the rows are not whole.
    """
    refuse_cut_rows(folder, name)
    stored = folder.floats(name)
    weight = stored.T if is_transposed else stored
    factor = row_factors(whole, lambda start, stop: weight[start:stop])
    assert factor is not None
    bias = f"{name.removesuffix('weight')}bias"
    return RowScale(factor, folder.floats(bias) * (1 - factor) if bias in folder.names else None)


def refuse_cut_rows(folder: StoredWeights, name: str) -> None:
    """CheckpointError where the folder was cut for a rank: norms are of whole rows."""
    if folder.shard != WHOLE:
        raise CheckpointError(
            f"{folder.path}: was cut for one rank, and DoRA needs whole rows of {name}; give the folder of "
            "the whole model"
        )


EMBEDDING = "embedding.weight"
TIED_HEAD = "lm_head.weight"
"""The head in adapters for models whose head is the token embedding."""


Renaming = Callable[[str], str]
RowScales = Mapping[str, RowScale]


@dataclass(frozen=True)
class FittedAdapters:
    """The adapters that the rows of a run may ask for, by name.

    max_loaded: in memory at a time. slot_numbers: of each of those on a rank of each pipeline stage, which
    the largest fills.
    """

    adapters: Mapping[str, LoraPlan]
    max_loaded: int
    slot_numbers: tuple[int, ...] = ()


def fit_beside(
    specs: Sequence[TensorSpec],
    adapters: Mapping[str, LoraAdapter],
    base: BaseTensors,
    max_loaded: int | None = None,
    mergeable: Collection[str] = (),
) -> FittedAdapters:
    """Plans adapters that act beside a model; others than these specs' tensors of the base are refused.

    max_loaded: None for all of them.
    mergeable: tensors whose adapters can be merged and do not act beside the model.

    Raises:
        CheckpointError: what does not fit, of all adapters, each after its name.
    """
    acting = {part.source for spec in with_head(specs) if spec.is_linear for part in spec.parts}
    acting = acting.difference(mergeable)
    errors: list[str] = []
    fitted: dict[str, LoraPlan] = {}
    for name, adapter in adapters.items():
        with collecting(errors), located(f"lora.adapters.{name}"):
            plan = plan_lora(adapter, base)
            raise_if_any([*_beside_errors(plan.modules, acting)], str(adapter.path))
            fitted[name] = plan
    raise_if_any(errors)
    return FittedAdapters(fitted, min(max_loaded or len(fitted), len(fitted)))


def _beside_errors(weights: Mapping[str, AdaptedModule], acting: Collection[str]) -> Iterator[str]:
    """Modules whose adapter can be merged, and cannot act beside the model. acting: tensors that can be."""
    for weight, module in weights.items():
        if weight not in acting:
            unsupported = "an adapter of it"
        elif module.kind is ModuleKind.WHOLE and module.has_bias:
            unsupported = "a whole weight with a bias"
        else:
            continue
        yield (
            f"module {shown(module.module)}: {unsupported} is not supported beside the model; merge it: "
            "lora.mode=merge, or `mindbatch reshard lora.merge=`"
        )


class AdapterTarget(NamedTuple):
    """The slice that one rank has of a tensor, and the parameter that an adapter of it adds to."""

    base: str
    """Name of the tensor that the model computes with."""
    is_transposed: bool
    """True if it is stored as [inputs, outputs]."""
    parameter: str
    part: int
    """Name of the parameter, and which of its parts the tensor is; see `AdaptedShape`."""
    outputs: tuple[slice, ...]
    """Slices of the tensor's outputs, in the rank's order."""
    inputs: slice

    def cut(self, whole: LowRank, rows: RowScale | None = None) -> LowRankPart:
        scaling = np.float32(whole.scaling)
        b, offset = whole.b * scaling, None if whole.bias is None else whole.bias * scaling
        if rows is not None:
            b = rows.factor[:, None] * b
            offset = _sum(rows.offset, None if offset is None else rows.factor * offset)
        if self.parameter == EMBEDDING and self.inputs.start:  # the first rank adds it to the sum of rows
            offset = None
        scale = None if rows is None else self._rows(rows.factor)
        a, offset = whole.a[:, self.inputs], None if offset is None else self._rows(offset)
        return LowRankPart(self.part, a, self._rows(b), scale, offset)

    def _rows(self, array: FloatArray) -> FloatArray:
        if len(self.outputs) == 1:
            return array[self.outputs[0]]
        return np.concatenate([array[rows] for rows in self.outputs])


class AdapterTargets:
    """The parameters of a rank that adapters add to, by adapted tensor."""

    def __init__(
        self,
        specs: Sequence[TensorSpec],
        shard: TensorSlice,
        adapters: Iterable[LoraPlan],
        embedding: str = "",
    ) -> None:
        """specs: of the rank's stage, with the head. embedding: the tensor of the token embedding."""
        self.targets: dict[str, AdapterTarget] = {}
        self.shapes: dict[str, AdaptedShape] = {}
        ranks: dict[str, int] = {}
        replaced: set[str] = set()
        for name, module in ((name, it) for adapter in adapters for name, it in adapter.modules.items()):
            is_whole = module.kind is ModuleKind.WHOLE
            ranks[name] = max(ranks.get(name, 0), 0 if is_whole else module.rank)
            if is_whole:
                replaced.add(name)
        for spec in specs:
            sources = list(dict.fromkeys(part.source for part in spec.parts))
            if spec.is_linear and not ranks.keys().isdisjoint(sources):
                has_whole = not replaced.isdisjoint(sources)
                its_ranks = tuple(ranks.get(source, 0) for source in sources)
                self.shapes[spec.name] = _shape(spec, sources, shard, its_ranks, has_whole=has_whole)
                for number, source in enumerate(sources):
                    base = embedding if source == TIED_HEAD else source
                    self.targets[source] = _target(spec, number, source, shard, base)

    def ranks(self, adapter: LoraPlan) -> Ranks:
        ranks = {name: [0] * len(shape.widths) for name, shape in self.shapes.items()}
        for weight, target in self.targets.items():
            if weight in adapter.modules:
                module = adapter.modules[weight]
                rank = WHOLE_WEIGHT if module.kind is ModuleKind.WHOLE else module.rank
                ranks[target.parameter][target.part] = rank
        return ranks

    def numbers(self, adapter: LoraPlan) -> int:
        return sum(
            shape.inputs * width if rank == WHOLE_WEIGHT else rank * (shape.inputs + width)
            for name, ranks in self.ranks(adapter).items()
            for shape in (self.shapes[name],)
            for rank, width in zip(ranks, shape.widths, strict=True)
        )

    def row_scales(self, adapter: LoraPlan, folder: StoredWeights, names: Renaming) -> RowScales:
        """The factors of an adapter's modules with a magnitude. names: from full names to the folder's."""
        return {
            weight: row_scale(
                adapter.modules[weight].low_rank(),
                folder,
                names(target.base),
                is_transposed=target.is_transposed,
            )
            for weight, target in self.targets.items()
            if weight in adapter.modules and adapter.modules[weight].has_magnitude
        }

    def parts(self, adapter: LoraPlan, rows: RowScales) -> AdapterParts:
        """Reads an adapter: what it does on this rank. rows: its own.

        Raises:
            CheckpointError: it is not what it was when it was opened.
        """
        with OpenFiles() as files:

            def part_of(weight: str) -> LowRankPart | WholePart:
                return _part(self.targets[weight], adapter.modules[weight], rows.get(weight), files)

            parts = in_threads(part_of, [weight for weight in self.targets if weight in adapter.modules])
        by_parameter: dict[str, list[LowRankPart | WholePart]] = {}
        for weight, part in parts.items():
            by_parameter.setdefault(self.targets[weight].parameter, []).append(part)
        return by_parameter


def rank_targets(
    specs: Sequence[TensorSpec], fitted: FittedAdapters, shard: TensorSlice, stage: Stage
) -> AdapterTargets:
    """Maps adapted tensors to the targets of a rank. specs: those of the whole model."""
    own_specs = stage_specs(with_head(specs), stage)
    return AdapterTargets(own_specs, shard, fitted.adapters.values(), embedding_of(specs))


def embedding_of(specs: Sequence[TensorSpec]) -> str:
    return next(spec.parts[0].source for spec in specs if spec.name == EMBEDDING)


def with_head(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The specs, and the head as an own one where it is the token embedding: adapters tell them apart."""
    if not is_tied(specs):
        return [*specs]
    [embedding] = [spec for spec in specs if spec.name == EMBEDDING]
    [part] = embedding.parts
    return [*specs, replace(embedding, name="head.weight", parts=(replace(part, source=TIED_HEAD),))]


def _part(
    target: AdapterTarget, module: AdaptedModule, rows: RowScale | None, files: OpenFiles
) -> LowRankPart | WholePart:
    if module.kind is ModuleKind.WHOLE:
        weight = module.whole_weight(files)
        kept = target.inputs if target.parameter == EMBEDDING else target.outputs[0]
        return WholePart(target.part, weight[kept])
    return target.cut(module.low_rank(files), rows)


def _shape(
    spec: TensorSpec, sources: Sequence[str], shard: TensorSlice, ranks: tuple[int, ...], *, has_whole: bool
) -> AdaptedShape:
    if spec.name == EMBEDDING:
        tokens, width = spec.local_outputs(shard), spec.local_inputs(shard) or 0
        return AdaptedShape(tokens, (width,), ranks, is_embedding=True, has_whole=has_whole)
    widths = [
        sum(part.local_outputs(spec.sharding, shard) for part in spec.parts if part.source == source)
        for source in sources
    ]
    return AdaptedShape(spec.local_inputs(shard) or 0, tuple(widths), ranks, has_whole=has_whole)


def _target(spec: TensorSpec, number: int, source: str, shard: TensorSlice, base: str) -> AdapterTarget:
    parts = [part for part in spec.parts if part.source == source]
    if spec.name == EMBEDDING:  # its tokens are what the low-rank arrays take in
        tokens = slice(*parts[0].output_bounds(spec.sharding, shard))
        return AdapterTarget(base, True, spec.name, number, (slice(None),), tokens)
    outputs = tuple(
        slice(low, high)
        for part in parts
        for low, high in part.source_ranges(*part.output_bounds(spec.sharding, shard))
    )
    inputs = slice(*parts[0].input_bounds(spec.sharding, shard))
    return AdapterTarget(base, parts[0].transposed, spec.name, number, outputs, inputs)


def _sum(first: FloatArray | None, second: FloatArray | None) -> FloatArray | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
