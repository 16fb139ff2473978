"""Checks the adapter of `mindbatch reshard lora.merge=` against the source."""

from mindbatch.backends.merged_adapter import base_tensors
from mindbatch.checkpoint.folders.resharded import refuse_merged_before
from mindbatch.checkpoint.lora.adapter import open_adapter
from mindbatch.checkpoint.lora.modules import base_finder
from mindbatch.checkpoint.lora.plan import BaseTensors, LoraPlan, plan_merge
from mindbatch.tasks.reshard.schema import ReshardConfig
from mindbatch.tasks.reshard.source import ReshardSource


def plan_adapter(path: str, config: ReshardConfig, opened: ReshardSource) -> LoraPlan:
    """Opens an adapter, and checks it against the source.

    Raises:
        ConfigError: the adapter was merged into the source before.
        CheckpointError: lists the errors of the adapter, and tensors that do not fit the model.
    """
    base = str(opened.folder.resolve()) if opened.folder else None  # the name that the adapter may record
    adapter = open_adapter(path, config.lora.scaling, base)
    find_base = base_finder(opened.files, opened.source.ranks)
    dtypes = {name: {*map(opened.source.dtype, stored)} for name, stored in opened.stored_names.items()}
    plan = plan_merge(adapter, _base_tensors(opened), dtypes, find_base)
    opened.notes += adapter.warnings
    refuse_merged_before({f"lora.merge={adapter.path}": plan.digest}, opened.source.path)
    opened.notes.append(
        f"{adapter.path}: added to {len(plan.stored_modules)} weights, scaling {plan.scaling:g}"
    )
    return plan


def _base_tensors(opened: ReshardSource) -> BaseTensors:
    """Describes the tensors of the source by its model, or, if that is unknown, by its files."""
    model = opened.model
    if model is None:
        return BaseTensors(opened.files.shapes)
    return base_tensors(model.architecture, lambda name: opened.stored_as.get(name, name))
