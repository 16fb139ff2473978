"""Plans an adapter on a model: its errors, the weights that it changes, and the edits of a merge."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from mindbatch.checkpoint.error_lines import MAX_LINES, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.merge import Addition, ArrayEdit, Edit
from mindbatch.checkpoint.lora.modules import AdaptedModule, ModuleKind, StoredArray
from mindbatch.checkpoint.lora.names import Role
from mindbatch.checkpoint.placement.regions import Segment, Shape, StoredShard, oriented

SCALINGS_KEY = "adapter_scalings"
"""In a marker's settings: the digest of the scaling of each module, where they are not all the same."""


@dataclass(frozen=True)
class LoraPlan:
    """Weights of a model that an adapter changes, live, merged or resharded.

    modules: modules by the name of the model's weight, also of a tied head.
    norms: weights whose norms DoRA needs for a merge.
    """

    adapter: LoraAdapter
    modules: Mapping[str, AdaptedModule]
    base: BaseTensors
    norms: Mapping[str, StoredArray] = field(default_factory=dict)

    @property
    def num_parameters(self) -> int:
        arrays = (array for module in self.modules.values() for array in module.arrays.values())
        return sum(math.prod(array.shape) for array in arrays)

    @cached_property
    def stored_modules(self) -> dict[str, AdaptedModule]:
        return {weight: module for weight, module in self.modules.items() if weight in self.base.shapes}

    @cached_property
    def inputs_first(self) -> frozenset[str]:
        """Changed weights that are stored [inputs, outputs]."""
        modules = self.stored_modules.items()
        return frozenset(
            weight for weight, module in modules if self.base.is_transposed(self.adapter, module, weight)
        )

    @cached_property
    def digest(self) -> str:
        """Identifies the adapter, whatever its path and scaling."""
        modules = self.stored_modules.items()
        arrays = (array for _, module in modules for array in module.arrays.values())
        digests = sorted((shard.name, shard.digest) for array in arrays for shard in array.shards)
        is_transposed = any(weight in self.inputs_first for weight, module in modules if not module.of_tokens)
        return hashlib.sha256(json.dumps([is_transposed, digests]).encode()).hexdigest()

    @property
    def scaling(self) -> float:
        """The scaling of modules without a rank or alpha of their own."""
        return self.adapter.settings.scaling

    @property
    def scalings(self) -> dict[str, str]:
        """Marker entries besides `scaling`: a digest, if modules have a rank or alpha of their own."""
        settings = self.adapter.settings
        if not (settings.ranks or settings.alphas):
            return {}
        scalings = sorted((weight, module.scaling) for weight, module in self.stored_modules.items())
        return {SCALINGS_KEY: hashlib.sha256(json.dumps(scalings).encode()).hexdigest()}

    def edits(self, stored: StoredShard) -> tuple[Edit, ...]:
        return tuple(edit for tensor, segment in stored.segments for edit in self._edits_of(tensor, segment))

    def _edits_of(self, tensor: str, segment: Segment) -> Iterator[Edit]:
        if tensor in self.stored_modules:
            module = self.stored_modules[tensor]
            if module.saved is not None:
                yield ArrayEdit(module.saved, segment.local, segment.whole, segment.transposed)
            if Role.A in module.arrays:
                yield self._addition(tensor, module, segment)
        elif tensor in self._of_bias:
            module = self._of_bias[tensor]
            scaling = None if module.kind is ModuleKind.WHOLE else module.scaling
            yield ArrayEdit(module.arrays[Role.BIAS], segment.local, segment.whole, scaling=scaling)

    def _addition(self, tensor: str, module: AdaptedModule, segment: Segment) -> Addition:
        is_transposed = tensor in self.inputs_first
        return Addition(
            module.arrays[Role.A],
            module.arrays[Role.B],
            module.scaling,
            segment.local,
            product=oriented(segment.whole, is_transposed),
            inputs_first=is_transposed != segment.transposed,
            magnitude=module.arrays.get(Role.MAGNITUDE),
            base=self.norms.get(tensor),
        )

    @cached_property
    def _of_bias(self) -> dict[str, AdaptedModule]:
        """Finds modules that change a bias, by its name in the model."""
        return {bias_of(weight): module for weight, module in self.stored_modules.items() if module.has_bias}


def plan_lora(adapter: LoraAdapter, base: BaseTensors) -> LoraPlan:
    """Plans the weights that an adapter changes. CheckpointError as for `adapted_weights`."""
    return LoraPlan(adapter, adapted_weights(adapter, base), base)


@dataclass(frozen=True)
class BaseTensors:
    """The tensors of a whole model that an adapter may change.

    renames: the model's names by those of the adapter's kind, with .weight, if they differ (MindFormers' and
        Hugging Face's).
    transposed: weights that are stored [inputs, outputs]; None if that is unknown, for square matrices do not
        show it.
    tied: the embedding by the name of a head that is no tensor of its own; an adapter changes either alone.
    """

    shapes: Mapping[str, Shape]
    renames: Mapping[str, str] = field(default_factory=dict)
    transposed: Collection[str] | None = None
    tied: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def shapes_with_heads(self) -> dict[str, Shape]:
        """Shapes of the tensors, and of heads that are no tensors of their own."""
        heads = {head: self.shapes[own] for head, own in self.tied.items() if own in self.shapes}
        return {**self.shapes, **heads}

    def is_transposed(self, adapter: LoraAdapter, module: AdaptedModule, weight: str) -> bool:
        """True if the model's weight is [inputs, outputs].

        The model decides, if it is known: PEFT corrects fan_in_fan_out by the class of each module, and saves
        the value of the last one.
        """
        if module.of_tokens:
            return True
        if self.transposed is None:
            return adapter.settings.fan_in_fan_out
        return weight in self.transposed


def adapted_weights(adapter: LoraAdapter, base: BaseTensors) -> dict[str, AdaptedModule]:
    """Finds the weight of the model that each module of an adapter changes; modules by these names.

    Raises:
        CheckpointError: lists modules that the model has not got, wrong shapes or orientations, targets
            that have matrices in some layers only.
    """
    errors: list[str] = []
    by_weight: dict[str, AdaptedModule] = {}
    shapes = base.shapes_with_heads
    for name, module in adapter.modules.items():
        weight = base.renames.get(f"{name}.weight", f"{name}.weight")
        if weight not in shapes:
            near = did_you_mean(weight, shapes) if len(errors) < MAX_LINES else ""
            tensor = next(iter(module.arrays.values())).name
            errors.append(f"tensor {shown(tensor)}: the model has no {shown(weight)}{near}")
            continue
        if weight in by_weight:
            errors.append(f"module {shown(name)}: {shown(weight)} is adapted twice")
        by_weight[weight] = module
        errors += _fit_errors(adapter, module, weight, base)
    if not errors:
        errors += _gaps(adapter, by_weight, base)
    raise_if_any(errors, str(adapter.path))
    return by_weight | _heads_of_saved_embeddings(adapter, by_weight, base.tied)


def _heads_of_saved_embeddings(
    adapter: LoraAdapter, by_weight: Mapping[str, AdaptedModule], tied: Mapping[str, str]
) -> dict[str, AdaptedModule]:
    """Finds heads that get a saved embedding as well, because both are one tensor of the model.

    Of modules_to_save there is a copy for the embedding alone.
    """
    heads: dict[str, AdaptedModule] = {}
    for head, own in tied.items():
        module = by_weight.get(own)
        if module is None or head in by_weight or module.kind is not ModuleKind.WHOLE:
            continue
        if Role.WEIGHT in module.arrays and adapter.settings.targets.saved.match(module.module):
            continue
        assert module.saved is not None
        heads[head] = replace(module, arrays={Role.WEIGHT: module.saved}, scaling=0.0, of_tokens=False)
    return heads


def _fit_errors(adapter: LoraAdapter, module: AdaptedModule, weight: str, base: BaseTensors) -> Iterator[str]:
    """Checks that whatever is added, or replaces the weight, has the weight's shape and orientation."""
    shape = base.shapes_with_heads[weight]
    for role in (Role.WEIGHT, Role.BASE):
        if role in module.arrays and module.arrays[role].shape != shape:
            array = module.arrays[role]
            yield (
                f"tensor {shown(array.name)}: has shape {[*array.shape]}, {shown(weight)} has {[*shape]} "
                "(was the vocabulary of the base model resized?)"
            )
    if Role.A not in module.arrays:
        return
    a, b = module.arrays[Role.A], module.arrays[Role.B]
    needed = module.outputs, module.inputs
    if base.is_transposed(adapter, module, weight):
        needed = needed[::-1]
    if shape != needed:
        is_unsure = base.transposed is None and not module.of_tokens and shape == needed[::-1]
        hint = "; is fan_in_fan_out right?" if is_unsure else ""
        yield (
            f"tensors {shown(a.name)} and {shown(b.name)}: are for a weight of {[*needed]}; "
            f"{shown(weight)} has {[*shape]}{hint}"
        )


def _gaps(adapter: LoraAdapter, adapted: Collection[str], base: BaseTensors) -> Iterator[str]:
    """Lists weights that the settings target, and that have no matrices."""
    targets, shapes = adapter.settings.targets, base.shapes_with_heads
    of_layers = [name for name in adapter.modules if "layers." in name]  # a head may have one name for all
    is_own = any(f"{name}.weight" in shapes for name in of_layers or adapter.modules)
    # Of a weight's several names, that which begins as the adapter's do.
    begins = {name.partition("layers.")[0] for name in adapter.modules}
    renames = dict(sorted(base.renames.items(), key=lambda item: item[0].partition("layers.")[0] in begins))
    reverse = {own: theirs for theirs, own in renames.items() if not is_own or renames.get(own, own) != own}
    try:
        for name, shape in shapes.items():
            if name in adapted or not name.endswith(".weight") or len(shape) != 2:
                continue
            target = targets.meant_by(reverse.get(name, name).removesuffix(".weight"))
            if target is not None:
                yield f"{shown(name)} is meant by target_modules ({shown(target)}), and has no matrices"
    except ValueError as error:
        yield f"target_modules={shown(targets.text)}: {error}"


FindBase = Callable[[str, bool], StoredArray]
"""Lookup of a weight of the model, given its name and whether its full tensor is [inputs, outputs]."""


def plan_merge(
    adapter: LoraAdapter,
    base: BaseTensors,
    dtypes: Mapping[str, Collection[str]],
    find_base: FindBase,
) -> LoraPlan:
    """Plans the merge of an adapter.

    dtypes: stored dtypes of the model's tensors. find_base: finds a weight of the model, for DoRA.

    Raises:
        CheckpointError: what `plan_lora` refuses, weights that are not floating-point numbers, and what
            cannot be merged: biases of modules without one, one of two tied weights.
    """
    plan = plan_lora(adapter, base)
    errors = [*_dtype_errors(plan.modules, base.shapes, dtypes), *_bias_errors(plan.modules, base.shapes)]
    errors += _tied_errors(plan.modules, base.tied)
    raise_if_any(errors, str(adapter.path))
    normed = [weight for weight, module in plan.stored_modules.items() if module.has_magnitude]
    norms = {weight: find_base(weight, weight in plan.inputs_first) for weight in normed}
    return replace(plan, norms=norms)


def bias_of(weight: str) -> str:
    return weight.removesuffix("weight") + "bias"


def _dtype_errors(
    modules: Mapping[str, AdaptedModule], shapes: Mapping[str, Shape], dtypes: Mapping[str, Collection[str]]
) -> Iterator[str]:
    biases = (bias_of(weight) for weight, module in modules.items() if module.has_bias)
    for name in (*modules, *biases):
        if name in shapes and (others := {*dtypes[name]}.difference(FLOAT_DTYPES)):
            allowed = ", ".join(FLOAT_DTYPES)
            yield f"{shown(name)} is {min(others)}, to which nothing can be added; allowed: {allowed}"


def _bias_errors(modules: Mapping[str, AdaptedModule], shapes: Mapping[str, Shape]) -> Iterator[str]:
    for weight, module in modules.items():
        if module.has_bias and bias_of(weight) not in shapes:
            name = module.arrays[Role.BIAS].name
            yield (
                f"tensor {shown(name)}: the model has no {shown(bias_of(weight))} to add it to; such "
                "an adapter can act beside the model, and not be merged"
            )


def _tied_errors(modules: Mapping[str, AdaptedModule], tied: Mapping[str, str]) -> Iterator[str]:
    """Lists adapters of the head or the embedding alone, if both are one tensor."""
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
    return {*module.arrays} == {Role.WEIGHT}
