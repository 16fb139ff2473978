"""A model folder whose weights are a Checkpoint 2.0: each tensor is put together when it is asked for."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from mindbatch.checkpoint.faults import did_you_mean, shown
from mindbatch.checkpoint.folders.folder_files import existing_folder, read_configs
from mindbatch.checkpoint.folders.model_folder import ModelFolder, code_notes
from mindbatch.checkpoint.folders.tensor_set import shard_sets
from mindbatch.checkpoint.folders.weight_files import iteration_in
from mindbatch.checkpoint.formats.floats import Array, FloatArray, array_type, read_region, widened
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.iterations.metadata import placements
from mindbatch.checkpoint.placement.rank_files import Location, RankFiles
from mindbatch.checkpoint.placement.regions import Placement, slices_of
from mindbatch.io.errors import CheckpointError
from mindbatch.parallel.topology import WHOLE

Renamed = Callable[[Mapping[str, Placement], int], RankFiles]
"""What so many files hold under Hugging Face's names, by the placements of what they hold under their own."""


class IterationFolder(ModelFolder):
    """The tensors under Hugging Face's names, as those of a whole model's folder."""

    def __init__(self, path: str | os.PathLike[str], renamed: Renamed) -> None:
        """Raises:
        ConfigError: `path` is not a folder.
        CheckpointError: lists what is missing, damaged, or contradicts itself.
        """
        self.path = existing_folder(path)
        self.shard, self.stages = WHOLE, 1
        self.config, self.generation_config = read_configs(self.path)
        self.notes = code_notes(self.path, self.config)
        iteration = iteration_in(self.path)
        assert iteration is not None
        self._files = shard_sets(iteration)
        try:
            files = renamed(placements(iteration, self._files), len(self._files))
        except BaseException:
            self.close()
            raise
        self._shapes = dict(files.shapes)
        self._locations: dict[str, list[Location]] = {}
        for name, location in files.locations():
            self._locations.setdefault(name, []).append(location)
        self._views = [{name: stored.shard.view for name, stored in rank.items()} for rank in files.ranks]
        self._last: tuple[str, Array] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._shapes)

    @property
    def weight_paths(self) -> tuple[Path, ...]:
        return tuple(file.path for tensors in self._files for file in tensors.files.values())

    @property
    def nbytes(self) -> int:
        return sum(self.info(name).nbytes for name in self._shapes)

    def has(self, name: str) -> bool:
        return name in self._shapes

    def file_name(self, name: str) -> str:
        """The first of the files that hold parts of the tensor, from the folder on."""
        location = self._located(name)[0]
        return str(self._files[location.rank].file(location.name).path.relative_to(self.path))

    def info(self, name: str) -> StoredTensor:
        location = self._located(name)[0]
        return StoredTensor(name, self._files[location.rank].info(location.name).dtype, self._shapes[name])

    def are_equal(self, one: str, other: str) -> bool:
        if not (self.has(one) and self.has(other)):
            return False
        return np.array_equal(self.floats(one), self.floats(other))

    def packable(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> Array:
        if self._last is None or self._last[0] != name:
            self._last = name, self._whole(name)
        whole = self._last[1]
        if columns is not None:  # a stack of matrices as one below another, as `read_floats` has it
            whole = whole.reshape(-1, whole.shape[-1])[:, columns]
        return np.array(whole[rows or slice(None)])

    def floats(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> FloatArray:
        values = self.packable(name, rows=rows, columns=columns)
        return widened(values.tobytes(), self.info(name).dtype, values.shape)

    def close(self) -> None:
        for tensors in self._files:
            tensors.close()

    def _located(self, name: str) -> list[Location]:
        try:
            return self._locations[name]
        except KeyError:
            near = did_you_mean(name, self._shapes)
            raise CheckpointError(f"{self.path}: no tensor {shown(name)}{near}") from None

    def _whole(self, name: str) -> Array:
        """Copies what files have of the tensor to its place; of what several have, the first one's."""
        out = np.empty(self._shapes[name], array_type(self.info(name).dtype))
        first = {location.segment.whole: location for location in self._located(name)[::-1]}
        for rank, stored, segment in first.values():
            file = self._files[rank].verified(stored)
            part = read_region(file, stored, segment.local, self._views[rank][stored], is_widened=False)
            out[slices_of(segment.whole)] = part.T if segment.transposed else part
        return out
