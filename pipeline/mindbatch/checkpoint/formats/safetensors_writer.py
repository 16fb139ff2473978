"""The layout of a safetensors file for given tensors (see safetensors_header for the format)."""

import json
from collections.abc import Iterable, Mapping

from mindbatch.checkpoint.faults import raise_if_any
from mindbatch.checkpoint.formats.file_layout import FileLayout, entry_faults
from mindbatch.checkpoint.formats.safetensors_header import LENGTH_BYTES, MAX_HEADER_BYTES
from mindbatch.checkpoint.formats.stored import DTYPES, Extent, TensorEntry
from mindbatch.errors import CheckpointError
from mindbatch.strict_json import parts_fault

METADATA: Mapping[str, str] = {"format": "pt"}
"""transformers refuses files without it; others do not look."""

_ALIGNMENT = 8


def safetensors_layout(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] = METADATA
) -> FileLayout:
    """Where (name, dtype, shape) go: the given order, but larger items first, so that all are aligned.

    CheckpointError for names, dtypes or shapes that cannot be stored.
    """
    entries = [TensorEntry(*tensor) for tensor in tensors]
    raise_if_any(entry_faults(entries))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offsets: dict[str, Extent] = {}
    position = 0
    for entry in sorted(entries, key=lambda entry: -DTYPES[entry.dtype]):
        span = [position, position + entry.nbytes]
        header[entry.name] = {"dtype": entry.dtype, "shape": [*entry.shape], "data_offsets": span}
        offsets[entry.name] = Extent(position, entry.nbytes)
        position += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"a safetensors header of {len(text)} bytes; at most {MAX_HEADER_BYTES} are allowed"
        )
    if fault := parts_fault(text):
        raise CheckpointError(f"a safetensors header of {fault}")
    head = len(text).to_bytes(LENGTH_BYTES, "little") + text
    extents = {name: (Extent(len(head) + start, nbytes),) for name, (start, nbytes) in offsets.items()}
    return FileLayout(len(head) + position, ((0, head),), extents)
