"""Checkpoints with base weights and LoRA matrices side by side, as MindFormers trains: merged and cut."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import file_in, has_file
from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.file_layout import FileLayout, write_tensor_file
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, array_type, widen
from mindbatch.checkpoint.formats.stored import DTYPES, Extent, StoredTensor
from mindbatch.checkpoint.lora.adapter import Matrix, effect_faults, shape_faults
from mindbatch.checkpoint.lora.config import ADAPTER_CONFIG, LoraSettings, read_lora_config
from mindbatch.checkpoint.lora.merge import LoraMerge
from mindbatch.checkpoint.lora.names import LoraPair, find_pairs, is_lora_name, unused_faults
from mindbatch.checkpoint.placement.placement import Placement, whole_placements
from mindbatch.checkpoint.placement.plan import ReshardPlan, TensorPlan, plan_reshard
from mindbatch.checkpoint.transform import Transform, layout_of_rank
from mindbatch.errors import ConfigError

Array = npt.NDArray[Any]

_OPTIMIZER = ("adam_m.", "adam_v.", "accu_grads.")


@dataclass(frozen=True)
class TrainedMatrices:
    """The low-rank matrices of a checkpoint, put together from what the ranks hold: a LoraSource."""

    transform: Transform
    settings: LoraSettings
    pairs: Mapping[str, LoraPair]
    plans: Mapping[str, TensorPlan]

    @property
    def path(self) -> Path:
        """Of the checkpoint."""
        return self.transform.source.path

    def info(self, name: str) -> StoredTensor:
        """Full shape and dtype of a matrix."""
        placement, dtype = self.transform.placements[name], self.transform.dtype(name)
        return StoredTensor(name, dtype, placement.shape, (Extent(0, 0),))

    def matrix(self, name: str) -> Matrix:
        """A whole matrix."""
        dtype = self.transform.dtype(name)
        stored = assembled(self.plans[name], self.transform.source.ranks, dtype)
        wide = np.empty(stored.shape, np.float32)
        widen(stored, dtype, wide)
        return wide


@dataclass(frozen=True)
class MergedCheckpoint:
    """A plan for all tensors but the matrices, and the merge that goes on top of it."""

    transform: Transform
    plan: ReshardPlan
    merge: LoraMerge

    def layout(self, rank: int, kind: str) -> FileLayout:
        """The file of a target rank."""
        return layout_of_rank(self.plan, rank, self._dtypes, kind)

    def write(self, rank: int, kind: str, path: Path) -> None:
        """Writes the file of a target rank, a tensor at a time.

        Raises:
            CheckpointError: merged values that do not fit their dtype.
            StorageError: the file cannot be written.
        """
        tensors = {tensor.name: tensor for tensor in self.plan.of_rank(rank)}

        def contents(name: str) -> Iterator[bytes | memoryview]:
            yield np.ascontiguousarray(self.tensor(tensors[name])).reshape(-1).view(np.uint8).data

        write_tensor_file(path, self.layout(rank, kind), contents)

    def tensor(self, tensor: TensorPlan) -> Array:
        """A tensor of a target rank, with the adapter in it."""
        dtype = self.transform.dtype(tensor.name)
        found = assembled(tensor, self.transform.source.ranks, dtype)
        if tensor.name in self.merge.names:
            shard = self.plan.target[tensor.name].shards[tensor.rank]
            for local, whole in shard.segments if shard else ():
                place = tuple(slice(*bounds) for bounds in local)
                found[place] = self.merge.merged(tensor.name, whole, found[place], dtype, dtype)
        return found

    @property
    def _dtypes(self) -> dict[str, str]:
        return {name: self.transform.dtype(name) for name in self.plan.target}


def plan_merge(transform: Transform, scaling: float | None) -> MergedCheckpoint:
    """Plans the merge of the matrices that a checkpoint holds.

    scaling: lora_alpha / r; None: as adapter_config.json beside the checkpoint says.

    Raises:
        ConfigError: nobody says the scaling, or two say two.
        CheckpointError: lists matrices that do not fit, lack their other half, or have no effect.
    """
    names = {name: is_lora_name(name) for name in transform.placements}
    base = [name for name, is_lora in names.items() if not is_lora]
    matrices = [n for n, is_lora in names.items() if is_lora and not n.startswith(_OPTIMIZER)]
    found = find_pairs(matrices)
    if not found.pairs and not found.faults:
        raise_if_any(["holds no lora_a and lora_b matrices"], str(transform.source.path))
    raise_if_any([*found.faults, *unused_faults(found.others)], str(transform.source.path))
    dropped = len(transform.placements) - len(base) - len(matrices)
    if dropped:
        transform.notes.append(f"{dropped} tensors of the optimizer for the matrices are left out")
    settings = _settings(transform, found.pairs, scaling)
    whole = whole_placements({name: transform.placements[name].shape for name in matrices})
    plans = plan_reshard(_these(transform, whole), whole)
    source = TrainedMatrices(transform, settings, found.pairs, {each.name: each for each in plans.tensors})
    raise_if_any([*shape_faults(source)] or [*effect_faults(source)], str(source.path))
    shapes = {name: transform.placements[name].shape for name in base}
    merge = LoraMerge(source, shapes)
    raise_if_any(
        [f"tensor {shown(name)}: dtype {transform.dtype(name)} must be one of {', '.join(FLOAT_DTYPES)}"
         for name in merge.names if transform.dtype(name) not in FLOAT_DTYPES],
        str(source.path),
    )  # fmt: skip
    return MergedCheckpoint(transform, transform.proved(base), merge)


def _these(transform: Transform, names: Mapping[str, Any]) -> dict[str, Placement]:
    return {name: transform.placements[name] for name in names}


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


def assembled(tensor: TensorPlan, sources: list[TensorSet], dtype: str) -> Array:
    """A tensor of a target rank, as its dtype is stored, from the boxes that the plan names."""
    found = np.zeros(tensor.shape, array_type(dtype))
    for copy in tensor.copies:
        place = tuple(slice(*bounds) for bounds in copy.target)
        found[place] = _read_box(sources[copy.source_rank], tensor.name, dtype, copy.source)
    return found


def _read_box(source: TensorSet, name: str, dtype: str, box: tuple[tuple[int, int], ...]) -> Array:
    """The rows of the box are read in full."""
    shape = source.info(name).shape
    (start, stop), *columns = box or ((0, 1),)
    row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * DTYPES[dtype]
    data = bytearray((stop - start) * row_bytes)
    source.read_into(name, start * row_bytes, memoryview(data))
    rows: Array = np.frombuffer(data, array_type(dtype)).reshape((stop - start, *shape[1:]) if shape else ())
    if not shape:
        return rows
    places = [slice(None), *(slice(*bounds) for bounds in columns)]
    return rows[tuple(places)]
