"""A model folder whose weights are in llama.cpp's files; they are read as floats."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import local

import numpy as np

from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import read_configs
from mindbatch.checkpoint.folders.model_folder import CodedWeights, ComputedFolder, code_notes
from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.floats import Array, FloatArray, bounded, read_values
from mindbatch.checkpoint.formats.ggml_types import BlockType
from mindbatch.checkpoint.formats.gguf_file import open_gguf
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.gguf.architectures import FileModel, model_of
from mindbatch.checkpoint.gguf.tensors import AssembledSource, TensorSource
from mindbatch.io.closing import Closing, closed_on_error
from mindbatch.io.errors import CheckpointError
from mindbatch.kernels.codes import Codes, CodeType
from mindbatch.parallel.topology import WHOLE

_NUMBERS_AT_ONCE = 1 << 18  # bounds what is computed on the way to a few MiB
_HALF = "F16"
"""The dtype that tensors of blocks are said to have: that of their scales."""


class GgufFiles(Closing):
    """The opened files of a model; several have their numbers in them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises:
        CheckpointError: a file is missing or damaged, or they are not all of one model.
        """
        with ExitStack() as opened:
            self.files = [opened.enter_context(open_gguf(path)) for path in paths]
            self.file_of = {name: file for file in self.files for name in file.tensors}
            self.shapes = {name: shape for file in self.files for name, shape in file.shapes.items()}
            raise_if_any(self._split_errors(), str(paths[0]))
            opened.pop_all()

    def _split_errors(self) -> list[str]:
        first = self.files[0].metadata
        errors: list[str] = []
        count = first.get("split.count", 1)
        if count != len(self.files) and not (count == 0 and len(self.files) == 1):
            errors.append(f"split.count={shown(count)}: {len(self.files)} files are there")
        for number, file in enumerate(self.files):
            if file.metadata.get("split.no", 0) != number:
                errors.append(f"{file.path.name}: split.no must be {number}")
        if len(self.file_of) < sum(len(file.tensors) for file in self.files):
            errors.append("tensors are in several of the files")
        if first.get("split.tensors.count", len(self.file_of)) != len(self.file_of):
            errors.append(f"split.tensors.count: {len(self.file_of)} tensors are there")
        return errors

    def model(self) -> FileModel:
        """The model that the first file describes. Raises CheckpointError."""
        return model_of(self.files[0], self.shapes, lambda name: read_values(self.file_of[name], name))

    def matrix(self, source: AssembledSource, number: int) -> FloatArray:
        """One matrix of a stack, or the only one."""
        parts = [
            self._stored(name, slice(number * rows, (number + 1) * rows), slice(0, inputs))
            for name, rows, inputs in source.parts
        ]
        return np.ascontiguousarray(source.joined(*parts))

    def floats(self, source: TensorSource, rows: slice, columns: slice | None = None) -> FloatArray:
        """Some rows, and of a matrix some columns."""
        wanted = source.stored_rows(rows)
        width = () if columns is None else (columns.stop - columns.start,)
        floats = np.empty((len(wanted), *width), np.float32)
        low, high = (int(wanted.min()), int(wanted.max()) + 1) if len(wanted) else (0, 0)
        step = max(1, _NUMBERS_AT_ONCE // source.shape[-1])
        for first in range(low, high, step):
            part = slice(first, min(first + step, high))
            stored = self._stored(source.name, part, columns)
            if source.heads:
                is_here = (wanted >= part.start) & (wanted < part.stop)
                floats[is_here] = stored[wanted[is_here] - first]
            else:
                floats[first - low : part.stop - low] = stored
        return floats - np.float32(1) if source.is_less_one else floats

    def _stored(self, name: str, rows: slice, columns: slice | None) -> FloatArray:
        """Rows as they are stored; of a stack of matrices they are counted on from one to the next."""
        file = self.file_of[name]
        if name not in file.blocks or columns is None:
            values: FloatArray = read_values(file, name, rows, columns)
            return values
        block, some, before = self._blocks(name, rows, columns)
        with np.errstate(all="ignore"):  # scales that are none are refused
            floats = block.decoded(some).reshape(rows.stop - rows.start, -1)
        self._refuse_outside(name, floats)
        return floats[:, before : before + columns.stop - columns.start]

    def codes(self, source: TensorSource, rows: slice, columns: slice, kind: CodeType) -> Codes:
        """Some rows and columns of blocks as numbers of a type that has them."""
        wanted = source.stored_rows(rows)
        part = slice(int(wanted.min()), int(wanted.max()) + 1)
        block, some, before = self._blocks(source.name, part, columns)
        with np.errstate(all="ignore"):
            codes = block.codes(some)
        assert kind.group is not None
        assert block.kind.group is not None
        starts = np.arange(before, before + columns.stop - columns.start, kind.group) // block.kind.group
        numbers = codes.numbers.reshape(part.stop - part.start, -1)
        chosen = wanted - part.start
        floats = []
        for values in (codes.scales, codes.offsets):
            if values is not None:
                self._refuse_outside(source.name, values)
                floats.append(values.reshape(len(numbers), -1)[chosen[:, None], starts])
        if kind.has_offsets and codes.offsets is None:
            floats.append(np.zeros_like(floats[0]))
        return Codes(numbers[chosen, before : before + columns.stop - columns.start], *floats)

    def _blocks(self, name: str, rows: slice, columns: slice) -> tuple[BlockType, Array, int]:
        """Blocks [n, bytes] of rows that have these columns, and how many numbers precede these in a row."""
        file = self.file_of[name]
        block, width = file.blocks[name], file.tensors[name].shape[-1]
        stored = np.empty((rows.stop - rows.start, width), np.uint8)
        file.read_into(name, rows.start * width, stored.data.cast("B"))
        first, last = columns.start // block.size, -(-columns.stop // block.size)
        some = stored[:, first * block.nbytes : last * block.nbytes].reshape(-1, block.nbytes)
        return block, some, columns.start - first * block.size

    def _refuse_outside(self, name: str, floats: FloatArray) -> None:
        if not np.isfinite(floats).all():
            path = self.file_of[name].path
            raise CheckpointError(f"{path}: tensor {shown(name)}: holds scales that are not finite")

    @property
    def title(self) -> str:
        """The types of the tensors."""
        kinds: dict[str, None] = {}
        for file in self.files:
            kinds |= dict.fromkeys(block.name for block in file.blocks.values())
            kinds |= dict.fromkeys(tensor.dtype for tensor in file.tensors.values() if tensor.dtype != "U8")
        return f"GGUF ({', '.join(kinds)})"

    @property
    def stored_bits(self) -> float:
        return 8 * self.nbytes / sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return sum(tensor.nbytes for file in self.files for tensor in file.tensors.values())

    def close(self) -> None:
        for file in self.files:
            file.close()


class GgufFolder(CodedWeights, ComputedFolder):
    """A folder that `unpacked` has made of files, which are elsewhere."""

    def __init__(self, home: Path, paths: Sequence[Path]) -> None:
        """Raises:
        CheckpointError: a file is damaged or not what config.json was made of.
        """
        self._files = GgufFiles(paths)
        with closed_on_error(self._files):
            files = {str(file.path): file for file in self._files.files}
            TensorSet.__init__(self, home, files)
            self.shard, self.stages = WHOLE, 1
            self.config, self.generation_config = read_configs(home)
            self.notes = code_notes(home, self.config)
            self._sources = self._files.model().sources
            self.quantised, self.stored_bits = self._files.title, self._files.stored_bits
            self.tensors = {name: self._described(name, source) for name, source in self._sources.items()}
            self.file_of = {
                name: str(self._files.file_of[_first(source)].path) for name, source in self._sources.items()
            }
            self._of_thread = _LastAssembled()

    def _described(self, name: str, source: TensorSource | AssembledSource) -> StoredTensor:
        part = _first(source)
        stored = self._files.file_of[part]
        dtype = _HALF if part in stored.blocks else stored.tensors[part].dtype
        return StoredTensor(name, dtype, source.shape)

    @property
    def nbytes(self) -> int:
        return self._files.nbytes

    def file_name(self, name: str) -> str:
        return str(self.file(name).path)

    def floats(
        self, name: str, *, rows: slice | None = None, columns: slice | None = None, is_widened: bool = True
    ) -> Array:
        info, source = self.info(name), self._sources[name]
        if isinstance(source, AssembledSource):
            return self._assembled(name, source, rows, columns)
        if len(info.shape) > 2:
            raise CheckpointError(f"{self.file_name(name)}: tensor {shown(name)} is not part of a model")
        return self._files.floats(source, *bounded(info.shape, *(rows, columns)[: len(info.shape)]))

    def code_type(self, name: str) -> CodeType | None:
        source = self._sources[name]
        if isinstance(source, AssembledSource) or source.is_less_one:
            return None
        block = self._files.file_of[source.name].blocks.get(source.name)
        return None if block is None else block.kind

    def codes(
        self, name: str, outputs: slice, inputs: slice, kind: CodeType, number: int | None = None
    ) -> Codes:
        source = self._sources[name]
        assert isinstance(source, TensorSource)
        rows, columns = bounded(source.shape, outputs, inputs)
        return self._files.codes(source, rows, columns, kind)

    def _assembled(
        self, name: str, source: AssembledSource, rows: slice | None, columns: slice | None
    ) -> Array:
        """Some rows and columns; of a stack rows are counted on, and must be of one matrix, or all."""
        height = source.shape[-2]
        if rows is None and len(source.shape) > 2:
            return np.stack([self._matrix(name, source, number) for number in range(source.shape[0])])
        first = 0 if rows is None else rows.start or 0
        last = height if rows is None else rows.stop
        number = first // height
        within = slice(first - number * height, last - number * height)
        return self._matrix(name, source, number)[within, columns or slice(None)].copy()

    def _matrix(self, name: str, source: AssembledSource, number: int) -> FloatArray:
        """The matrix stays in memory until the thread reads another one."""
        last = self._of_thread.matrix
        if last is None or last[:2] != (name, number):
            self._of_thread.matrix = None
            last = self._of_thread.matrix = name, number, self._files.matrix(source, number)
        return last[2]


class _LastAssembled(local):
    """The matrix that a thread has assembled last."""

    matrix: tuple[str, int, FloatArray] | None = None


def _first(source: TensorSource | AssembledSource) -> str:
    """The name in the file of the tensor, or of the first of its parts."""
    return source.parts[0].name if isinstance(source, AssembledSource) else source.name
