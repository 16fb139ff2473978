"""Files of tensors written by their layout, for tests."""

from collections.abc import Callable, Iterable
from pathlib import Path

from mindbatch.checkpoint.formats.stored import FileLayout


def write_tensor_file(
    path: Path, layout: FileLayout, contents: Callable[[str], Iterable[bytes | memoryview]]
) -> None:
    """Writes a whole file; `contents` gives the bytes of a tensor in pieces."""
    with path.open("wb") as file:
        file.truncate(layout.total_bytes)
        for offset, piece in layout.head:
            file.seek(offset)
            file.write(piece)
        for name, extents in layout.extents.items():
            data = b"".join(contents(name))
            assert len(data) == sum(extent.nbytes for extent in extents), name
            for offset, nbytes in extents:
                file.seek(offset)
                file.write(data[:nbytes])
                data = data[nbytes:]
