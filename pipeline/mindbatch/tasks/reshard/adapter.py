"""`lora.merge` of `mindbatch reshard`: the adapter checked against the source."""

from __future__ import annotations

from functools import partial

from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.base_weight import base_weight
from mindbatch.checkpoint.lora.merged_note import refuse_merged_before
from mindbatch.checkpoint.lora.plan import LoraPlan, plan_lora
from mindbatch.models.adapter_names import adapter_renames
from mindbatch.models.registry import tied_tensors
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import ReshardSource


def plan_adapter(path: str, config: ReshardConfig, opened: ReshardSource) -> LoraPlan:
    """The adapter at `path`, checked against the source.

    Raises:
        ConfigError: it was merged into the source already.
        CheckpointError: lists what is wrong with the adapter, or does not fit the model.
    """
    adapter = open_adapter(path, config.lora.scaling, _base(opened))
    plan = plan_lora(
        adapter,
        opened.files.shapes,
        {name: {*map(opened.stored_dtype, stored)} for name, stored in opened.stored_names.items()},
        _renames(opened),
        _transposed(opened),
        tied=_tied(opened),
        find_base=partial(base_weight, files=opened.files, sets=opened.source.ranks),
    )
    opened.notes += adapter.warnings
    refuse_merged_before({f"lora.merge={plan.path}": plan.digest}, opened.source.path)
    opened.notes.append(f"{plan.path}: added to {len(plan.modules)} weights, scaling {plan.scaling:g}")
    return plan


def _renames(opened: ReshardSource) -> dict[str, str]:
    """See `adapter_renames`; nothing where no model is known."""
    if opened.model is None:
        return {}
    return adapter_renames(opened.model.architecture, opened.files.shapes)


def _base(opened: ReshardSource) -> str | None:
    """The folder of the model, whose name the adapter may record."""
    return str(opened.folder.resolve()) if opened.folder else None


def _tied(opened: ReshardSource) -> dict[str, str]:
    """The embedding by the head's weight, where the model has them in one tensor."""
    if opened.model is None:
        return {}
    prefix = opened.model.prefix if opened.is_bare else ""
    tied = tied_tensors(opened.model.architecture)
    return {head: own.removeprefix(prefix) for head, own in tied.items()}


def _transposed(opened: ReshardSource) -> set[str] | None:
    """The weights that are stored [inputs, outputs]; None where no model says it."""
    if opened.model is None:
        return None
    found = {part.source for spec in opened.model.parameters for part in spec.parts if part.transposed}
    return found | {name.removeprefix(opened.model.prefix) for name in found}
