"""safetensors files: opened strictly, their headers checked before any number is used; and laid out.

Format (https://huggingface.co/docs/safetensors, "Format"): 8 bytes, the header length N as unsigned
little-endian; N bytes of UTF-8 JSON beginning with `{`, which may be padded with spaces at the end; then the
data, which the tensors' byte ranges cover without overlap and without gaps, little-endian and in C order.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.formats.stored import (
    DTYPES,
    ByteExtent,
    FileLayout,
    StoredFile,
    StoredTensor,
    are_sizes,
    dtype_errors,
    entry_errors,
    name_errors,
    shape_errors,
)
from mindbatch.checkpoint.json_object import parse_json_object
from mindbatch.io.closing import closed_on_error
from mindbatch.io.errors import CheckpointError
from mindbatch.io.file_signatures import foreign_format
from mindbatch.io.strict_json import parts_error

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 32_000_000
"""safetensors itself allows 100 MB; 125,000 tensors, which is what MAX_PARTS allows, take 20."""

METADATA: Mapping[str, str] = {"format": "pt"}
"""transformers refuses files without it; others do not look."""

_ALIGNMENT = 8


def open_safetensors(path: Path) -> StoredFile:
    """Opens and checks a safetensors file without reading its tensors. CheckpointError lists the errors."""
    file = StoredFile(path, "safetensors")
    with closed_on_error(file):
        length = header_length(file.fetch(0, 64), file.size, str(path))
        file.tensors = parse_header(file.fetch(LENGTH_BYTES, length), file.size, str(path))
    return file


def header_length(prefix: bytes, file_bytes: int, where: str) -> int:
    """The header length N from the first bytes of a file. CheckpointError when it cannot be true."""
    length = int.from_bytes(prefix[:LENGTH_BYTES], "little")
    if len(prefix) < LENGTH_BYTES:
        error = f"truncated: {file_bytes} bytes, too short for a safetensors header"
    elif length > MAX_HEADER_BYTES:
        error = f"header length {length}; at most {MAX_HEADER_BYTES} bytes are allowed"
    elif length > file_bytes - LENGTH_BYTES:
        error = f"truncated: the header needs {LENGTH_BYTES + length} bytes, the file has {file_bytes}"
    else:
        return length
    raise CheckpointError(f"{where}: {foreign_format(prefix) or error}; must be a complete safetensors file")


def parse_header(header: bytes, file_bytes: int, where: str) -> dict[str, StoredTensor]:
    """The tensors of a file, in the order of their data. CheckpointError lists what is wrong."""
    if not header.startswith(b"{"):
        raise CheckpointError(
            f"{where}: the safetensors header must begin with '{{', found {shown(header[:8])}"
        )
    entries = parse_json_object(header, f"{where}: header")
    errors = _metadata_errors(entries.pop("__metadata__", {}))
    data_start = LENGTH_BYTES + len(header)
    tensors: list[StoredTensor] = []
    for name, entry in entries.items():
        if entry_errors := name_errors(name) or _entry_errors(entry):
            errors += [f"tensor {shown(name)}: {error}" for error in entry_errors]
        else:
            begin, end = entry["data_offsets"]
            extent = ByteExtent(data_start + begin, end - begin)
            tensors.append(StoredTensor(name, entry["dtype"], tuple(entry["shape"]), (extent,)))
    tensors.sort(key=lambda tensor: tensor.extents)
    # Gaps around an entry that could not be read would only be noise.
    errors = errors or _layout_errors(tensors, data_start, file_bytes)
    raise_if_any(errors, where)
    return {tensor.name: tensor for tensor in tensors}


def _metadata_errors(metadata: object) -> list[str]:
    if isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values()):
        return []
    return ["__metadata__ must be an object of strings"]


def _entry_errors(entry: Any) -> list[str]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        return ["must have exactly the keys dtype, shape, data_offsets"]
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    errors = dtype_errors(dtype)
    errors += shape_errors(shape, 1 if errors else DTYPES[dtype])
    if not are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        errors.append(f"data_offsets {shown(offsets)} must be two integers [begin, end] with begin <= end")
    if errors:
        return errors
    needed, nbytes = math.prod(shape) * DTYPES[dtype], offsets[1] - offsets[0]
    if needed == nbytes:
        return []
    return [f"shape {shown(shape)} of {dtype} needs {needed} bytes, its data_offsets {offsets} hold {nbytes}"]


def _layout_errors(tensors: Iterable[StoredTensor], data_start: int, file_bytes: int) -> list[str]:
    """Checks that the sorted byte ranges follow each other from `data_start` to the end of the file."""
    errors, position, previous = [], data_start, "the header"
    cut_off: list[str] = []
    for tensor in tensors:
        ((start, nbytes),) = tensor.extents
        end = start + nbytes
        if start != position:
            relation = "overlaps" if start < position else f"leaves a gap of {start - position} bytes after"
            errors.append(f"tensor {shown(tensor.name)} {relation} {previous}")
        if end > file_bytes:
            cut_off.append(f"truncated: tensor {shown(tensor.name)} ends at byte {end} of {file_bytes}")
        position, previous = max(position, end), f"tensor {shown(tensor.name)}"
    if position < file_bytes:
        errors.append(f"{file_bytes - position} bytes after the last tensor belong to no tensor")
    if cut_off:
        more = len(cut_off) - 1
        errors.append(cut_off[0] + (f", and {more} more tensor{'s' * (more > 1)} behind it" if more else ""))
    return errors


def safetensors_layout(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] = METADATA
) -> FileLayout:
    """Lays out (name, dtype, shape) in the given order, but larger items first, so that all are aligned.

    CheckpointError for names, dtypes or shapes that cannot be stored.
    """
    entries = [StoredTensor(*tensor) for tensor in tensors]
    raise_if_any(entry_errors(entries))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offsets: dict[str, ByteExtent] = {}
    position = 0
    for entry in sorted(entries, key=lambda entry: -DTYPES[entry.dtype]):
        span = [position, position + entry.nbytes]
        header[entry.name] = {"dtype": entry.dtype, "shape": [*entry.shape], "data_offsets": span}
        offsets[entry.name] = ByteExtent(position, entry.nbytes)
        position += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"a safetensors header of {len(text)} bytes; at most {MAX_HEADER_BYTES} are allowed"
        )
    if error := parts_error(text):
        raise CheckpointError(f"a safetensors header of {error}")
    head = len(text).to_bytes(LENGTH_BYTES, "little") + text
    extents = {name: (ByteExtent(len(head) + start, nbytes),) for name, (start, nbytes) in offsets.items()}
    return FileLayout(len(head) + position, ((0, head),), extents)
