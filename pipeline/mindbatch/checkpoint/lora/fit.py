"""The guard before a run or a merge: whether an adapter is for this model, and which weights it acts on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from mindbatch.checkpoint.faults import MAX_LINES, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.modules import AdaptedModule
from mindbatch.checkpoint.lora.names import Role, weight_of
from mindbatch.checkpoint.lora.targets import target_of
from mindbatch.checkpoint.placement.regions import Shape


def adapted_weights(
    adapter: LoraAdapter,
    shapes: Mapping[str, Shape],
    renames: Mapping[str, str] | None = None,
    transposed: Collection[str] | None = None,
) -> dict[str, AdaptedModule]:
    """The modules of an adapter by the name of the model's weight that each acts on.

    shapes: of the whole model's tensors. renames: from names of the adapter's kind, with .weight, to the
    model's own, where they are others (MindFormers' and Hugging Face's). transposed: the weights that are
    stored [inputs, outputs], None where that is not known: square ones do not tell.

    Raises:
        CheckpointError: lists modules that the model has not got, shapes or orders that do not fit, targets
            that have matrices in some layers only.
    """
    faults: list[str] = []
    found: dict[str, AdaptedModule] = {}
    for name, module in adapter.modules.items():
        weight = weight_of(name, renames or {})
        if weight not in shapes:
            near = did_you_mean(weight, shapes) if len(faults) < MAX_LINES else ""
            tensor = next(iter(module.arrays.values())).name
            faults.append(f"tensor {shown(tensor)}: the model has no {shown(weight)}{near}")
            continue
        found[weight] = module
        faults += _fit_faults(adapter, module, weight, shapes[weight], transposed)
    if adapter.settings.all_layers and not faults:
        reverse = {own: theirs for theirs, own in (renames or {}).items()}
        faults += _gaps(adapter, [name for name in shapes if name not in found], reverse)
    raise_if_any(faults, str(adapter.path))
    return found


def _fit_faults(
    adapter: LoraAdapter,
    module: AdaptedModule,
    weight: str,
    shape: Shape,
    transposed: Collection[str] | None,
) -> Iterator[str]:
    """Whether the product of the matrices is of the weight's shape, and the right way round."""
    is_turned = adapter.settings.fan_in_fan_out
    if transposed is not None and (weight in transposed) != is_turned:
        yield f"fan_in_fan_out: must be {str(weight in transposed).lower()} for {shown(weight)}"
        return
    a, b = (module.arrays[role].name for role in (Role.A, Role.B))
    needed = (module.inputs, module.outputs) if is_turned else (module.outputs, module.inputs)
    if shape != needed:
        hint = "; is fan_in_fan_out right?" if shape == needed[::-1] else ""
        yield (
            f"tensors {shown(a)} and {shown(b)}: are for a weight of {[*needed]}; "
            f"{shown(weight)} has {[*shape]}{hint}"
        )


def _gaps(adapter: LoraAdapter, others: list[str], reverse: Mapping[str, str]) -> Iterator[str]:
    targets = {*adapter.settings.targets}
    for name in others:
        module = reverse.get(name, name).removesuffix(".weight")
        target = target_of(module, targets)
        if target is not None and name.endswith(".weight"):
            yield f"{shown(name)} is meant by target_modules ({shown(target)}), and has no matrices"
