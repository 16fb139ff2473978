"""A model folder whose files have parts of tensors or other names; a tensor is assembled when it is read."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from mindbatch.checkpoint.folders.folder_files import read_configs
from mindbatch.checkpoint.folders.model_folder import ComputedFolder, code_notes
from mindbatch.checkpoint.folders.tensor_set import StoredSegment, TensorSet, stored_segments
from mindbatch.checkpoint.formats.floats import Array, array_type, converted, read_region
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.placement.regions import RankFiles, slices_of
from mindbatch.io.closing import closed_on_error
from mindbatch.parallel.topology import WHOLE


class RenamedFolder(ComputedFolder):
    """Gives the tensors Hugging Face's names, as in a whole model's folder."""

    def __init__(
        self, folder: Path, sets: Sequence[TensorSet], located: Callable[[], RankFiles], *notes: str
    ) -> None:
        """Takes the opened files, and closes them with itself.

        located: function that finds Hugging Face's tensors in them.
        notes: further lines for the user.

        Raises:
            CheckpointError: config.json is damaged, or the files contradict themselves.
        """
        self._hold(folder, sets)
        with closed_on_error(self):
            self.config, self.generation_config = read_configs(folder)
            self.notes = (*code_notes(folder, self.config), *notes)
            self._locate(located())

    def _hold(self, path: Path, sets: Sequence[TensorSet]) -> None:
        """Takes the files that hold parts of the tensors."""
        self.shard, self.stages, self._sets = WHOLE, 1, sets
        files = {str(file.path): file for tensors in sets for file in tensors.files.values()}
        TensorSet.__init__(self, path, files)

    def _locate(self, files: RankFiles) -> None:
        """Finds the segments of each tensor in the opened files."""
        self._segments = {name: parts for name, parts in stored_segments(files, self._sets).items() if parts}
        self._last: tuple[str, Array] | None = None
        # Messages name the first of several files that hold parts of a tensor.
        self.file_of = {
            name: str(parts[0][0].file(parts[0][1]).path) for name, parts in self._segments.items()
        }
        self.tensors = {
            name: StoredTensor(name, _common_dtype(parts), files.shapes[name])
            for name, parts in self._segments.items()
        }

    def floats(
        self, name: str, *, rows: slice | None = None, columns: slice | None = None, is_widened: bool = True
    ) -> Array:
        if self._last is None or self._last[0] != name:
            self._last = name, self._whole(name)
        whole = self._last[1]
        if columns is not None:  # a stack of matrices as one below another, as `read_values` has it
            whole = whole.reshape(-1, whole.shape[-1])[:, columns]
        values = np.array(whole[rows or slice(None)])
        return converted(values, self.info(name).dtype, "F32")[0] if is_widened else values

    def stored_segments(self, name: str) -> Iterable[StoredSegment]:
        return self._segments[name]

    def _whole(self, name: str) -> Array:
        """Puts the whole tensor together from the segments that files hold."""
        info = self.info(name)
        out = np.empty(info.shape, array_type(info.dtype))
        for tensors, stored, view, segment in self._segments[name]:
            file, is_widened = tensors.verified(stored), info.dtype == "F32"
            part = read_region(file, stored, segment.local, view, is_widened=is_widened)
            out[slices_of(segment.whole)] = part.T if segment.transposed else part
        return out


def _common_dtype(parts: Iterable[StoredSegment]) -> str:
    """Returns the dtype of all parts of a tensor; float32 if they differ."""
    dtypes = {tensors.info(stored).dtype for tensors, stored, *_ in parts}
    return dtypes.pop() if len(dtypes) == 1 else "F32"
