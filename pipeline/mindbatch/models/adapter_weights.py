"""Adapters beside a model: checked against all of it, and the slices of them that a rank computes with."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mindbatch.checkpoint.faults import collecting, raise_if_any, shown
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.fit import adapted_weights
from mindbatch.checkpoint.lora.low_rank import LowRank
from mindbatch.checkpoint.lora.modules import AdaptedModule, Kind
from mindbatch.kernels.low_rank import AdaptedShape, AdapterParts, LowRankPart, Ranks
from mindbatch.models.stage_cut import is_tied
from mindbatch.models.tensor_spec import Layout, TensorSpec, source_shapes
from mindbatch.parallel.topology import TensorSlice

TIED_HEAD = "lm_head.weight"
"""The head in adapters for models whose head is the token embedding."""


@dataclass(frozen=True)
class FittedAdapter:
    """An adapter that fits a model. weights: what it does, by the name of the model's tensor."""

    adapter: LoraAdapter
    weights: Mapping[str, AdaptedModule]

    @property
    def num_parameters(self) -> int:
        """Numbers of all its arrays."""
        arrays = (array for module in self.weights.values() for array in module.arrays.values())
        return sum(math.prod(array.shape) for array in arrays)


@dataclass(frozen=True)
class FittedAdapters:
    """The adapters that the rows of a run may ask for, by name. max_loaded: in memory at a time."""

    adapters: Mapping[str, FittedAdapter]
    max_loaded: int


def fit_adapters(
    specs: Sequence[TensorSpec], adapters: Mapping[str, LoraAdapter], max_loaded: int | None = None
) -> FittedAdapters:
    """Checks adapters against a whole model. max_loaded: None for all of them.

    Raises:
        CheckpointError: what does not fit, of all adapters.
    """
    specs = with_head(specs)
    shapes = source_shapes(specs)
    transposed = {part.source for spec in specs for part in spec.parts if part.transposed}
    faults: list[str] = []
    fitted: dict[str, FittedAdapter] = {}
    for name, adapter in adapters.items():
        with collecting(faults):
            weights = adapted_weights(adapter, shapes, transposed=transposed)
            raise_if_any([*_beside_faults(weights)], str(adapter.path))
            fitted[name] = FittedAdapter(adapter, weights)
    raise_if_any(faults)
    return FittedAdapters(fitted, min(max_loaded or len(fitted), len(fitted)))


def _beside_faults(weights: Mapping[str, AdaptedModule]) -> Iterator[str]:
    """Modules whose adapter can be merged, and cannot act beside the model."""
    for module in weights.values():
        if module.kind is Kind.WHOLE:
            what = "a whole weight"
        elif module.kind is Kind.EMBEDDING:
            what = "an adapted embedding"
        elif module.has_magnitude:
            what = "DoRA"
        elif module.has_bias:
            what = "lora_bias"
        else:
            continue
        yield (
            f"module {shown(module.module)}: {what} is not supported beside the model; merge it with "
            "`mindbatch reshard lora.merge=`"
        )


class Place(NamedTuple):
    """Where a rank computes with what an adapter adds to a tensor of the model.

    parameter, part: as in `AdaptedShape`. outputs: slices of the tensor's, in the rank's order.
    """

    parameter: str
    part: int
    outputs: tuple[slice, ...]
    inputs: slice

    def cut(self, whole: LowRank) -> LowRankPart:
        """The rank's slice of an addition to the whole tensor."""
        b = np.concatenate([whole.b[rows] for rows in self.outputs])
        return LowRankPart(self.part, whole.a[:, self.inputs], b * np.float32(whole.scaling))


class AdapterPlaces:
    """The parameters of a rank that some adapter adds to, and where each tensor's addition belongs."""

    def __init__(self, specs: Sequence[TensorSpec], shard: TensorSlice, adapted: Iterable[str]) -> None:
        """specs: of the rank's stage, with the head. adapted: the tensors that adapters add to."""
        self.places: dict[str, Place] = {}
        self.shapes: dict[str, AdaptedShape] = {}
        wanted = {*adapted}
        for spec in specs:
            sources = list(dict.fromkeys(part.source for part in spec.parts))
            if spec.layout is Layout.PACKED and wanted.intersection(sources):
                self.shapes[spec.name] = _shape(spec, sources, shard)
                for number, source in enumerate(sources):
                    self.places[source] = _place(spec, number, source, shard)

    def ranks(self, adapter: FittedAdapter) -> Ranks:
        """The ranks of an adapter's parts."""
        found = {name: [0] * len(shape.widths) for name, shape in self.shapes.items()}
        for weight, place in self.places.items():
            if weight in adapter.weights:
                found[place.parameter][place.part] = adapter.weights[weight].rank
        return found

    def parts(self, adapter: FittedAdapter) -> AdapterParts:
        """Reads an adapter: what it adds on this rank.

        Raises:
            CheckpointError: it is not what it was when it was opened.
        """
        found: dict[str, list[LowRankPart]] = {}
        with OpenFiles() as files:
            for weight, place in self.places.items():
                if weight in adapter.weights:
                    part = place.cut(adapter.weights[weight].low_rank(files))
                    found.setdefault(place.parameter, []).append(part)
        return found


def with_head(specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The specs, and the head as an own one where it is the token embedding: adapters tell them apart."""
    if not is_tied(specs):
        return [*specs]
    [embedding] = [spec for spec in specs if spec.name == "embedding.weight"]
    [part] = embedding.parts
    return [*specs, replace(embedding, name="head.weight", parts=(replace(part, source=TIED_HEAD),))]


def _shape(spec: TensorSpec, sources: Sequence[str], shard: TensorSlice) -> AdaptedShape:
    widths = [
        sum(part.local_outputs(spec.sharding, shard) for part in spec.parts if part.source == source)
        for source in sources
    ]
    return AdaptedShape(spec.local_inputs(shard) or 0, tuple(widths))


def _place(spec: TensorSpec, number: int, source: str, shard: TensorSlice) -> Place:
    parts = [part for part in spec.parts if part.source == source]
    bounds = [(part.first, part.output_bounds(spec.sharding, shard)) for part in parts]
    outputs = tuple(slice(first + low, first + high) for first, (low, high) in bounds)
    return Place(spec.name, number, outputs, slice(*parts[0].input_bounds(spec.sharding, shard)))
