"""Sources of which everything is read, against digests and checksums, before a test goes on with them."""

from pathlib import Path

from mindbatch.checkpoint.error_lines import collecting, raise_if_any
from mindbatch.checkpoint.folders.tensor_set import Source, open_source


def open_verified(path: Path) -> Source:
    """The opened source. CheckpointError names every damaged tensor and file."""
    source = open_source(path)
    faults: list[str] = []
    for tensors in source.ranks:
        with collecting(faults):
            damaged = tensors.damages(tensors.computed_digests(tensors.names))
            faults += [*damaged, *tensors.checksum_errors()]
    if faults:
        source.close()
    raise_if_any(faults)
    return source
