"""Plans the merge of LoRA matrices that lie beside the base weights, as MindFormers trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mindbatch.checkpoint.faults import raise_if_any
from mindbatch.checkpoint.folders.folder_files import file_in, has_file
from mindbatch.checkpoint.formats.stored import Extent, StoredTensor
from mindbatch.checkpoint.lora.adapter import effect_faults, shape_faults
from mindbatch.checkpoint.lora.config import ADAPTER_CONFIG, LoraSettings, read_lora_config
from mindbatch.checkpoint.lora.merge import Matrix, MatrixReader, MatrixShard, StoredMatrix
from mindbatch.checkpoint.lora.names import LoraPair, find_pairs, is_lora_name, unused_faults
from mindbatch.checkpoint.lora.plan import LoraPlan, plan_lora
from mindbatch.checkpoint.placement.placement import whole_placements
from mindbatch.checkpoint.placement.plan import TensorPlan, plan_copies
from mindbatch.checkpoint.placement.proof import prove
from mindbatch.checkpoint.placement.rank_files import as_placed
from mindbatch.checkpoint.transform import Transform
from mindbatch.errors import ConfigError

_OPTIMIZER = ("adam_m.", "adam_v.", "accu_grads.")


@dataclass(frozen=True)
class TrainedMatrices:
    """The low-rank matrices of a checkpoint, put together from what the ranks hold: a LoraSource."""

    path: Path
    settings: LoraSettings
    pairs: Mapping[str, LoraPair]
    dtypes: Mapping[str, str]
    matrices: Mapping[str, StoredMatrix]

    def info(self, name: str) -> StoredTensor:
        """Full shape and dtype of a matrix."""
        return StoredTensor(name, self.dtypes[name], self.matrices[name].shape, (Extent(0, 0),))

    def matrix(self, name: str) -> Matrix:
        """A whole matrix."""
        reader = MatrixReader()
        try:
            return reader.read(self.matrices[name])
        finally:
            reader.close()

    def stored(self, names: Iterable[str]) -> dict[str, StoredMatrix]:
        """Where matrices are stored, with their digests."""
        return {name: self.matrices[name] for name in names}


def plan_merge(transform: Transform, scaling: float | None) -> LoraPlan:
    """Plans the merge of the matrices that a checkpoint holds.

    scaling: lora_alpha / r; None: as adapter_config.json beside the checkpoint says.

    Raises:
        ConfigError: the scaling is missing, or given twice with different values.
        CheckpointError: lists matrices that do not fit, lack their other half, or have no effect.
    """
    path = transform.source.path
    lora_names = [name for name in transform.placements if is_lora_name(name)]
    names = [name for name in lora_names if not name.startswith(_OPTIMIZER)]
    found = find_pairs(names)
    if not found.pairs and not found.faults:
        raise_if_any(["holds no lora_a and lora_b matrices"], str(path))
    raise_if_any([*found.faults, *unused_faults(found.others)], str(path))
    if dropped := len(lora_names) - len(names):
        transform.notes.append(f"{dropped} tensors of the optimizer for the matrices are left out")
    dtypes = {name: transform.dtype(name) for name in transform.placements}
    settings = _settings(transform, found.pairs, scaling)
    source = TrainedMatrices(path, settings, found.pairs, dtypes, _matrices(transform, names))
    raise_if_any([*shape_faults(source)] or [*effect_faults(source)], str(path))
    shapes = {
        name: placement.shape for name, placement in transform.placements.items() if not is_lora_name(name)
    }
    return plan_lora(source, shapes, {name: [dtype] for name, dtype in dtypes.items()})


def _matrices(transform: Transform, names: Iterable[str]) -> dict[str, StoredMatrix]:
    """The whole matrices, from the regions that the ranks hold. CheckpointError when one is damaged."""
    source = transform.files(names)
    whole = as_placed(whole_placements(source.shapes), 1)
    plans = plan_copies(source, whole)
    prove(plans, source, whole)
    return {plan.name: StoredMatrix(plan.name, plan.shape, _shards(transform, plan)) for plan in plans}


def _shards(transform: Transform, plan: TensorPlan) -> tuple[MatrixShard, ...]:
    shards: list[MatrixShard] = []
    for copy in plan.copies:
        rank = transform.source.ranks[copy.source_rank]
        rank.check(copy.source_name)
        digest = rank.computed_digests([copy.source_name])[copy.source_name]
        path = str(rank.file(copy.source_name).path.resolve())
        shards.append(MatrixShard(path, copy.source_name, digest, copy.source, copy.target))
    return tuple(shards)


def _settings(transform: Transform, pairs: Mapping[str, LoraPair], scaling: float | None) -> LoraSettings:
    """Of adapter_config.json beside the checkpoint, or of what was given and the matrices themselves."""
    path = transform.source.path
    folder = path if path.is_dir() else path.parent
    first = transform.placements[next(iter(pairs.values())).a].shape
    rank = first[0] if first else 1
    if not has_file(folder, ADAPTER_CONFIG):
        if scaling is None:
            raise ConfigError(
                f"{folder}: no {ADAPTER_CONFIG}, which says lora_alpha; give --lora_scaling: lora_alpha / "
                f"{rank}, for the matrices are of rank {rank}"
            )
        return LoraSettings(rank, 0.0, given=scaling)
    settings = read_lora_config(file_in(folder, ADAPTER_CONFIG))
    if scaling is not None and not np.isclose(scaling, settings.scaling, rtol=1e-6):
        raise ConfigError(
            f"--lora_scaling {scaling:g}: {folder / ADAPTER_CONFIG} says {settings.scaling:g}; remove one"
        )
    return settings
