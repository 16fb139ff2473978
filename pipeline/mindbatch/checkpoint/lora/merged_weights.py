"""A model's tensors with an adapter merged into them as they are read: `lora.mode=merge`."""

from collections.abc import Mapping
from pathlib import Path

from mindbatch.checkpoint.folders.model_folder import StoredShape, StoredWeights
from mindbatch.checkpoint.formats.floats import Array, FloatArray
from mindbatch.checkpoint.formats.open_file import OpenFiles
from mindbatch.checkpoint.lora.merge import Merger
from mindbatch.checkpoint.lora.plan import LoraPlan
from mindbatch.checkpoint.placement.rank_files import StoredShard
from mindbatch.checkpoint.placement.regions import Region
from mindbatch.io.closing import Closing
from mindbatch.parallel.topology import TensorSlice


class MergedWeights(Closing):
    """Stands for a folder (`StoredWeights`): the sums are those of `reshard lora.merge=`, bit for bit.

    What is not asked for is not merged. Within `with` files stay open.
    """

    def __init__(self, folder: StoredWeights, plan: LoraPlan, stored: Mapping[str, StoredShard]) -> None:
        """plan: of the whole model. stored: what the folder's tensors hold of it, by their names."""
        self._folder = folder
        self._plan = plan
        self._stored = stored
        self._files = OpenFiles()
        self._merger = Merger(self._files)
        self._last = ""

    @property
    def path(self) -> Path:
        return self._folder.path

    @property
    def shard(self) -> TensorSlice:
        return self._folder.shard

    @property
    def stages(self) -> int:
        return self._folder.stages

    @property
    def names(self) -> tuple[str, ...]:
        return self._folder.names

    def file_name(self, name: str) -> str:
        return self._folder.file_name(name)

    def info(self, name: str) -> StoredShape:
        return self._folder.info(name)

    def floats(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> FloatArray:
        """The values that were asked for, merged.

        CheckpointError, besides those of the folder, when the adapter has changed since it was opened, or a
        sum is too large for float32.
        """
        values = self._folder.floats(name, rows=rows, columns=columns)  # checked before norms are taken of it
        if name not in self._stored or len(self.info(name).shape) > 2:  # adapters have no stacks
            return values
        region = _region(self.info(name).shape, rows, columns)
        edits = self._plan.edits(self._stored[name].within(region))
        if edits and name != self._last:
            self._merger.forget()
            self._last = name
        self._merger.apply(name, edits, 0, values)
        return values

    def packable(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> Array:
        give = self.floats if name in self._stored else self._folder.packable
        return give(name, rows=rows, columns=columns)

    def close(self) -> None:
        """Closes the adapter's files and gives memory back; the folder is its owner's."""
        self._merger.forget()
        self._files.close()


def _region(shape: tuple[int, ...], *parts: slice | None) -> Region:
    """Converts slices of a stored tensor to a region. parts: rows, and columns of a matrix; None for all."""
    return tuple(
        (0, size) if part is None else part.indices(size)[:2]
        for part, size in zip(parts, shape, strict=False)
    )
