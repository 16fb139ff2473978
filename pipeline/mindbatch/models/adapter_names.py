"""The other names that adapters may have for the weights of a model."""

from __future__ import annotations

from collections.abc import Collection

from mindbatch.checkpoint.names.dialect import Options
from mindbatch.checkpoint.names.registry import NAMED_MODEL_TYPES, dialect, heads_of
from mindbatch.checkpoint.names.renamed_files import to_mindformers
from mindbatch.checkpoint.placement.regions import full_region
from mindbatch.io.errors import CheckpointError
from mindbatch.models.architecture import Architecture
from mindbatch.models.registry import declaration, tensor_specs
from mindbatch.models.tensor_spec import source_shapes
from mindbatch.models.text_part import TEXT_TYPES, other_names


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
    """The names without the prefix, of those that have it, and with it of the others."""
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
