"""The layout of a MindSpore .ckpt for given tensors (see ckpt_format for the format)."""

from collections.abc import Iterable, Iterator

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.formats.ckpt_format import (
    DIMS,
    SLICE_BYTES,
    TAG,
    TENSOR,
    TENSOR_CONTENT,
    TENSOR_TYPE,
    VALUE,
    WRITTEN_TYPES,
)
from mindbatch.checkpoint.formats.file_layout import FileLayout, entry_faults
from mindbatch.checkpoint.formats.stored import Extent, TensorEntry
from mindbatch.checkpoint.formats.wire_format import bytes_field, bytes_header, number_field


def ckpt_layout(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], slice_bytes: int = SLICE_BYTES
) -> FileLayout:
    """Where (name, dtype, shape) go, in that order; a tensor above `slice_bytes` is cut into several parts.

    CheckpointError for what cannot be stored, or what MindSpore could not load again: some dtypes, and
    tensors without any element.
    """
    entries = [TensorEntry(*tensor) for tensor in tensors]
    raise_if_any(entry_faults(entries) or _unloadable(entries))
    head: list[tuple[int, bytes]] = []
    extents: dict[str, tuple[Extent, ...]] = {}
    position = 0
    for entry in entries:
        parts = []
        for nbytes in _parts(entry.nbytes, slice_bytes):
            before = _before_content(entry, nbytes)
            head.append((position, before))
            parts.append(Extent(position + len(before), nbytes))
            position += len(before) + nbytes
        extents[entry.name] = tuple(parts)
    return FileLayout(position, head, extents)


def _unloadable(entries: Iterable[TensorEntry]) -> list[str]:
    faults = []
    for entry in entries:
        where = f"tensor {shown(entry.name)}"
        if entry.dtype not in WRITTEN_TYPES:
            faults.append(f"{where}: MindSpore loads no {entry.dtype} from .ckpt; must be safetensors")
        elif not entry.nbytes:
            faults.append(f"{where}: shape {[*entry.shape]}; a .ckpt holds no tensor without elements")
    return faults


def _parts(nbytes: int, limit: int) -> Iterator[int]:
    for start in range(0, nbytes, limit):
        yield min(limit, nbytes - start)


def _before_content(entry: TensorEntry, nbytes: int) -> bytes:
    """Everything of a Value up to its `nbytes` of contents."""
    described = b"".join(number_field(DIMS, size) for size in entry.shape)
    described += bytes_field(TENSOR_TYPE, WRITTEN_TYPES[entry.dtype].encode())
    described += bytes_header(TENSOR_CONTENT, nbytes)
    tensor = bytes_header(TENSOR, len(described) + nbytes) + described
    value = bytes_field(TAG, entry.name.encode()) + tensor
    return bytes_header(VALUE, len(value) + nbytes) + value
