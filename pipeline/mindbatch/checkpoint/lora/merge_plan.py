"""Plans the merge of an adapter on the way of a reshard: what is added to each stored tensor."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.base_weight import BaseWeight
from mindbatch.checkpoint.lora.fit import BaseTensors, LoraPlan, plan_lora
from mindbatch.checkpoint.lora.merge import Addition, BiasAddition, Edit, Replacement
from mindbatch.checkpoint.lora.modules import AdaptedModule, ModuleKind
from mindbatch.checkpoint.lora.names import Role
from mindbatch.checkpoint.placement.regions import Segment, Shape, StoredShard, oriented
from mindbatch.io.errors import CheckpointError

SCALINGS_KEY = "adapter_scalings"
"""In a marker's settings: the digest of the scaling of each module, where they are not all the same."""


FindBase = Callable[[str, bool], BaseWeight]
"""Lookup of a weight of the model, given its name and whether its full tensor is [inputs, outputs]."""


@dataclass(frozen=True)
class MergePlan:
    """An adapter that can be merged. bases: of the weights that DoRA takes norms of."""

    plan: LoraPlan
    bases: Mapping[str, BaseWeight]

    @property
    def path(self) -> Path:
        return self.plan.adapter.path

    @property
    def modules(self) -> Mapping[str, AdaptedModule]:
        """By the tensor of the model that each changes."""
        return self.plan.stored_modules

    @property
    def digest(self) -> str:
        return self.plan.digest

    @property
    def scaling(self) -> float:
        """The scaling of modules without a rank or alpha of their own."""
        return self.plan.adapter.settings.scaling

    @property
    def scalings(self) -> dict[str, str]:
        """Marker entries besides `scaling`: a digest, where modules have a rank or alpha of their own."""
        settings = self.plan.adapter.settings
        if not (settings.ranks or settings.alphas):
            return {}
        scalings = sorted((weight, module.scaling) for weight, module in self.modules.items())
        return {SCALINGS_KEY: hashlib.sha256(json.dumps(scalings).encode()).hexdigest()}

    def edits(self, stored: StoredShard) -> tuple[Edit, ...]:
        return tuple(edit for tensor, segment in stored.segments for edit in self._edits_of(tensor, segment))

    def _edits_of(self, tensor: str, segment: Segment) -> Iterator[Edit]:
        if tensor in self.modules:
            module = self.modules[tensor]
            saved = module.arrays.get(Role.WEIGHT, module.arrays.get(Role.BASE))
            if saved is not None:
                yield Replacement(saved, segment.local, segment.whole, segment.transposed)
            if Role.A in module.arrays:
                yield self._addition(tensor, module, segment)
        elif tensor in self._of_bias:
            module = self._of_bias[tensor]
            array = module.arrays[Role.BIAS]
            if module.kind is ModuleKind.WHOLE:
                yield Replacement(array, segment.local, segment.whole)
            else:
                yield BiasAddition(array, module.scaling, segment.local, segment.whole[0])

    def _addition(self, tensor: str, module: AdaptedModule, segment: Segment) -> Addition:
        is_turned = tensor in self.plan.inputs_first
        return Addition(
            module.arrays[Role.A],
            module.arrays[Role.B],
            module.scaling,
            segment.local,
            product=oriented(segment.whole, is_turned),
            inputs_first=is_turned != segment.transposed,
            magnitude=module.arrays.get(Role.MAGNITUDE),
            base=self.bases.get(tensor),
        )

    @cached_property
    def _of_bias(self) -> dict[str, AdaptedModule]:
        """The modules whose bias changes, by its name in the model."""
        return {bias_of(weight): module for weight, module in self.modules.items() if module.has_bias}


def plan_merge(
    adapter: LoraAdapter,
    base: BaseTensors,
    dtypes: Mapping[str, Collection[str]],
    find_base: FindBase | None = None,
) -> MergePlan:
    """Plans the merge of an adapter.

    dtypes: in which each of the model's tensors is stored. find_base: for DoRA.

    Raises:
        CheckpointError: what `plan_lora` refuses, weights that are not floating-point numbers, and what
            cannot be merged: biases of modules without one, one of two tied weights.
    """
    plan = plan_lora(adapter, base)
    faults = [*_dtype_faults(plan.modules, base.shapes, dtypes), *_bias_faults(plan.modules, base.shapes)]
    faults += _tied_faults(plan.modules, base.tied)
    raise_if_any(faults, str(adapter.path))
    normed = [weight for weight, module in plan.stored_modules.items() if module.has_magnitude]
    if normed and find_base is None:
        raise CheckpointError(f"{adapter.path}: use_dora: norms need the model's own tensors")
    bases = {weight: find_base(weight, weight in plan.inputs_first) for weight in normed} if find_base else {}
    return MergePlan(plan, bases)


def bias_of(weight: str) -> str:
    return weight.removesuffix("weight") + "bias"


def _dtype_faults(
    modules: Mapping[str, AdaptedModule], shapes: Mapping[str, Shape], dtypes: Mapping[str, Collection[str]]
) -> Iterator[str]:
    biases = (bias_of(weight) for weight, module in modules.items() if module.has_bias)
    for name in (*modules, *biases):
        if name in shapes and (others := {*dtypes[name]}.difference(FLOAT_DTYPES)):
            allowed = ", ".join(FLOAT_DTYPES)
            yield f"{shown(name)} is {min(others)}, to which nothing can be added; allowed: {allowed}"


def _bias_faults(modules: Mapping[str, AdaptedModule], shapes: Mapping[str, Shape]) -> Iterator[str]:
    for weight, module in modules.items():
        if module.has_bias and bias_of(weight) not in shapes:
            name = module.arrays[Role.BIAS].name
            yield (
                f"tensor {shown(name)}: the model has no {shown(bias_of(weight))} to add it to; such "
                "an adapter can act beside the model, and not be merged"
            )


def _tied_faults(modules: Mapping[str, AdaptedModule], tied: Mapping[str, str]) -> Iterator[str]:
    """Adapters of the head or the embedding alone where both are one tensor."""
    for head, own in tied.items():
        both = [modules.get(name) for name in (head, own)]
        saved = {
            module.arrays[Role.WEIGHT].shards[0].digest for module in both if module and _is_saved(module)
        }
        is_same = all(module is not None and _is_saved(module) for module in both) and len(saved) == 1
        if any(both) and not is_same:
            only = shown(next(module.module for module in both if module))
            yield (
                f"module {only}: the head and the token embedding are one tensor of this model, "
                f"{shown(own)}, and the adapter changes one of them; merged, it would change both (untie "
                "them first, or let the adapter act beside the model)"
            )


def _is_saved(module: AdaptedModule) -> bool:
    """True if it is a full weight and nothing else."""
    return {*module.arrays} == {Role.WEIGHT}
