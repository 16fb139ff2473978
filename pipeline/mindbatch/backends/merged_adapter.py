"""The one adapter that is merged into a model's tensors while they are read (`lora.mode=merge`)."""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from mindbatch.architecture.architecture import Architecture
from mindbatch.architecture.tensor_spec import source_shapes
from mindbatch.backends.adapter_weights import refuse_cut_rows
from mindbatch.checkpoint.folders.model_folder import ModelFolder
from mindbatch.checkpoint.folders.resharded import refuse_merged_before
from mindbatch.checkpoint.lora.adapter import LoraAdapter
from mindbatch.checkpoint.lora.merge import MergedWeights
from mindbatch.checkpoint.lora.modules import StoredArray, stored_array
from mindbatch.checkpoint.lora.plan import BaseTensors, plan_merge
from mindbatch.checkpoint.names.dialect import Options
from mindbatch.checkpoint.names.registry import NAMED_MODEL_TYPES, dialect, heads_of
from mindbatch.checkpoint.names.renamed_files import to_mindformers
from mindbatch.checkpoint.placement.placements import placements
from mindbatch.checkpoint.placement.regions import (
    Shape,
    StoredShard,
    as_rank_files,
    full_region,
)
from mindbatch.config_json.forms import TEXT_TYPES, other_names
from mindbatch.io.errors import CheckpointError
from mindbatch.model_spec.described_folder import checkpoint_names
from mindbatch.model_spec.registry import declaration, tensor_specs, tied_tensors


def adapter_renames(arch: Architecture, names: Collection[str]) -> dict[str, str]:
    """The weights `names` of a model by the names that adapters may have for them.

    Adapters of base models are without the prefix that the weights have, or the other way round; those of
    MindFormers have its names.
    """
    prefix = declaration(arch.model_type).prefix
    renames = prefix_renames(prefix, names)
    if arch.model_type in TEXT_TYPES.values():
        renames |= other_names(prefix, names)
    theirs = {other: name for other, name in _mindformers(arch).items() if name in names}
    return renames | {other: name for other, name in theirs.items() if other not in names}


def prefix_renames(prefix: str, names: Collection[str]) -> dict[str, str]:
    short = {name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
    long = {prefix + name: name for name in names if not name.startswith(prefix)}
    return {other: name for other, name in (short | long).items() if other not in names}


def _mindformers(arch: Architecture) -> dict[str, str]:
    """Hugging Face names by MindFormers', of the weights that are the same, neither joined nor transposed."""
    if arch.model_type not in NAMED_MODEL_TYPES:
        return {}
    shapes = source_shapes(tensor_specs(arch))
    try:
        rules = dialect(arch.model_type, Options(num_layers=arch.num_layers))
        [stored] = to_mindformers(rules, shapes, heads_of(arch)).ranks
    except CheckpointError:  # MindFormers has no such model, as a GPT-2 whose head is not the embedding
        return {}
    return {
        name: tensor
        for name, stored_shard in stored.items()
        for tensor, segment in stored_shard.segments
        if not segment.transposed
        and segment.whole == full_region(shapes[tensor])
        and segment.local == full_region(stored_shard.shard.view)
    }


def merge_native(arch: Architecture, folder: ModelFolder, adapter: LoraAdapter) -> MergedWeights:
    """Plans the merge into a model of ours, whole or one rank of it.

    Raises:
        CheckpointError: what `plan_merge` refuses.
        ConfigError: the folder has the adapter merged already.
    """
    if folder.quantised is not None:
        raise CheckpointError(
            f"{folder.path}: weights stored as {folder.quantised} are not merged with; use lora.mode=live"
        )
    specs, names = tensor_specs(arch), checkpoint_names(arch, folder.names)
    named_placements = {
        names(name): placement for name, placement in placements(specs, folder.shard.size).items()
    }
    stored = as_rank_files(named_placements, folder.shard.size).ranks[folder.shard.rank]
    return planned_merge(folder, adapter, base_tensors(arch, names), stored)


def base_tensors(arch: Architecture, names: Callable[[str], str] = str) -> BaseTensors:
    """Describes the tensors that an adapter may change. names: converts full names to those of the folder."""
    specs = tensor_specs(arch)
    full = source_shapes(specs)
    shapes = {names(name): shape for name, shape in full.items()}
    renames = {**adapter_renames(arch, full), **{name: name for name in full}}
    transposed = {names(part.source) for spec in specs for part in spec.parts if part.transposed}
    by_other_names = {other: names(name) for other, name in renames.items() if other not in shapes}
    tied = {}
    for head, own in tied_tensors(arch).items():
        # Where the embedding is stored under the head's name, an adapter of the head is not one of it.
        apart = f"{head} (tied)" if names(own) == head else head
        tied[apart] = names(own)
        by_other_names |= {head: apart} if apart != head else {}
    return BaseTensors(shapes, by_other_names, transposed, tied)


def planned_merge(
    folder: ModelFolder, adapter: LoraAdapter, base: BaseTensors, stored: Mapping[str, StoredShard]
) -> MergedWeights:
    """Plans the merge into a folder's tensors. stored: see `MergedWeights`. Errors: as `merge_native`."""
    here = {*folder.names}  # a folder that was cut has some of the tensors
    dtypes = {name: {folder.info(name).dtype} if name in here else () for name in base.shapes}
    plan = plan_merge(adapter, base, dtypes, partial(_base_weight, folder, base.shapes))
    refuse_merged_before({f"lora.adapters={adapter.path}": plan.digest}, folder.path)
    return MergedWeights(folder, plan.edits, stored)


def _base_weight(
    folder: ModelFolder, shapes: Mapping[str, Shape], name: str, inputs_first: bool
) -> StoredArray:
    """Source of the whole rows that DoRA reads; nothing of what another stage of the pipeline has."""
    refuse_cut_rows(folder, name)
    segments = folder.stored_segments(name) if name in folder.names else ()
    return stored_array(name, shapes[name], segments, inputs_first=inputs_first)
