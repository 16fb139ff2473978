"""The guard before a run or a merge: whether an adapter is for this model, and which weights it acts on."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mindbatch.checkpoint.faults import MAX_LINES, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.modules import AdaptedModule, ModuleKind
from mindbatch.checkpoint.lora.names import Role, weight_of
from mindbatch.checkpoint.placement.regions import Shape


@dataclass(frozen=True)
class LoraPlan:
    """The weights of a model that an adapter acts on, beside it, merged or resharded.

    modules: by the model's weight, that of a tied head among them.
    """

    adapter: LoraAdapter
    modules: Mapping[str, AdaptedModule]
    base: BaseTensors

    @property
    def num_parameters(self) -> int:
        arrays = (array for module in self.modules.values() for array in module.arrays.values())
        return sum(math.prod(array.shape) for array in arrays)

    @cached_property
    def stored_modules(self) -> dict[str, AdaptedModule]:
        """Modules that have a tensor of their own."""
        return {weight: module for weight, module in self.modules.items() if weight in self.base.shapes}

    @cached_property
    def inputs_first(self) -> frozenset[str]:
        """The weights of these that are stored [inputs, outputs]."""
        transposed = self.base.transposed
        modules = self.stored_modules.items()
        return frozenset(
            weight for weight, module in modules if is_turned(self.adapter, module, weight, transposed)
        )

    @cached_property
    def digest(self) -> str:
        """Tells the adapter from others, wherever it is and whatever its scaling."""
        modules = self.stored_modules.items()
        arrays = (array for _, module in modules for array in module.arrays.values())
        digests = sorted((shard.name, shard.digest) for array in arrays for shard in array.shards)
        is_turned = any(weight in self.inputs_first for weight, module in modules if not module.of_tokens)
        return hashlib.sha256(json.dumps([is_turned, digests]).encode()).hexdigest()


def plan_lora(adapter: LoraAdapter, base: BaseTensors) -> LoraPlan:
    """Plans what an adapter acts on. CheckpointError: what `adapted_weights` refuses."""
    return LoraPlan(adapter, adapted_weights(adapter, base), base)


@dataclass(frozen=True)
class BaseTensors:
    """The tensors of a whole model as adapters meet them.

    renames: from names of the adapter's kind, with .weight, to the model's own, where they are others
        (MindFormers' and Hugging Face's).
    transposed: the weights that are stored [inputs, outputs], None where that is not known: square ones do
        not tell.
    tied: the embedding by the head's weight, where that is no tensor of its own; an adapter acts on either
        alone.
    """

    shapes: Mapping[str, Shape]
    renames: Mapping[str, str] = field(default_factory=dict)
    transposed: Collection[str] | None = None
    tied: Mapping[str, str] = field(default_factory=dict)


def adapted_weights(adapter: LoraAdapter, base: BaseTensors) -> dict[str, AdaptedModule]:
    """The modules of an adapter by the name of the model's weight that each acts on.

    Raises:
        CheckpointError: lists modules that the model has not got, shapes or orders that do not fit, targets
            that have matrices in some layers only.
    """
    faults: list[str] = []
    by_weight: dict[str, AdaptedModule] = {}
    shapes, renames, tied = base.shapes, base.renames, base.tied
    all_shapes = {**shapes, **{head: shapes[own] for head, own in tied.items() if own in shapes}}
    for name, module in adapter.modules.items():
        weight = weight_of(name, renames)
        if weight not in all_shapes:
            near = did_you_mean(weight, all_shapes) if len(faults) < MAX_LINES else ""
            tensor = next(iter(module.arrays.values())).name
            faults.append(f"tensor {shown(tensor)}: the model has no {shown(weight)}{near}")
            continue
        if weight in by_weight:
            faults.append(f"module {shown(name)}: {shown(weight)} is adapted twice")
        by_weight[weight] = module
        faults += _fit_faults(adapter, module, weight, all_shapes[weight], base.transposed)
    if not faults:
        is_own = any(weight_of(name, {}) in all_shapes for name in adapter.modules)
        reverse = {} if is_own else {own: theirs for theirs, own in renames.items()}
        faults += _gaps(adapter, [name for name in all_shapes if name not in by_weight], reverse, all_shapes)
    raise_if_any(faults, str(adapter.path))
    return by_weight | _heads_of_saved_embeddings(adapter, by_weight, tied)


def _heads_of_saved_embeddings(
    adapter: LoraAdapter, by_weight: Mapping[str, AdaptedModule], tied: Mapping[str, str]
) -> dict[str, AdaptedModule]:
    """The heads that get a saved embedding as well, because both are one tensor of the model.

    Of modules_to_save there is a copy for the embedding alone.
    """
    heads: dict[str, AdaptedModule] = {}
    for head, own in tied.items():
        module = by_weight.get(own)
        if module is None or head in by_weight or module.kind is not ModuleKind.WHOLE:
            continue
        if Role.WEIGHT in module.arrays and adapter.settings.targets.saved.match(module.module):
            continue
        base = module.arrays[Role.WEIGHT if Role.WEIGHT in module.arrays else Role.BASE]
        heads[head] = replace(module, arrays={Role.WEIGHT: base}, scaling=0.0, of_tokens=False)
    return heads


def is_turned(
    adapter: LoraAdapter, module: AdaptedModule, weight: str, transposed: Collection[str] | None
) -> bool:
    """True if the model's weight is [inputs, outputs].

    Where the model says it, that counts: PEFT corrects fan_in_fan_out by the class of each module, and saves
    what was right for the last one.
    """
    if module.of_tokens:
        return True
    return adapter.settings.fan_in_fan_out if transposed is None else weight in transposed


def _fit_faults(
    adapter: LoraAdapter,
    module: AdaptedModule,
    weight: str,
    shape: Shape,
    transposed: Collection[str] | None,
) -> Iterator[str]:
    """Checks that whatever is added, or replaces the weight, has the weight's shape and orientation."""
    for role in (Role.WEIGHT, Role.BASE):
        if role in module.arrays and module.arrays[role].shape != shape:
            array = module.arrays[role]
            yield (
                f"tensor {shown(array.name)}: has shape {[*array.shape]}, {shown(weight)} has {[*shape]} "
                "(was the vocabulary of the base model resized?)"
            )
    if Role.A not in module.arrays:
        return
    turned = is_turned(adapter, module, weight, transposed)
    a, b = (module.arrays[role] for role in (Role.A, Role.B))
    needed = (a.shape[1], b.shape[0]) if turned else (b.shape[0], a.shape[1])
    if shape != needed:
        is_unsure = transposed is None and not module.of_tokens and shape == needed[::-1]
        hint = "; is fan_in_fan_out right?" if is_unsure else ""
        yield (
            f"tensors {shown(a.name)} and {shown(b.name)}: are for a weight of {[*needed]}; "
            f"{shown(weight)} has {[*shape]}{hint}"
        )


def _gaps(
    adapter: LoraAdapter, others: Sequence[str], reverse: Mapping[str, str], shapes: Mapping[str, Shape]
) -> Iterator[str]:
    """Weights that the settings mean, and that have no matrices."""
    targets = adapter.settings.targets
    try:
        for name in others:
            if not name.endswith(".weight") or len(shapes[name]) != 2:
                continue
            target = targets.meant_by(reverse.get(name, name).removesuffix(".weight"))
            if target is not None:
                yield f"{shown(name)} is meant by target_modules ({shown(target)}), and has no matrices"
    except ValueError as error:
        yield f"target_modules={shown(targets.text)}: {error}"
