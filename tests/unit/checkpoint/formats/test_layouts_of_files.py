"""Both writers: the layout covers the file exactly once, and is what the readers read."""

import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mindbatch.checkpoint.formats.ckpt_file import ckpt_layout
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.safetensors_file import safetensors_layout
from mindbatch.checkpoint.formats.stored import ByteExtent, FileLayout, StoredTensor, byte_ranges
from mindbatch.io.errors import CheckpointError

Entry = tuple[str, str, tuple[int, ...]]
Layout = Callable[[Iterable[Entry]], FileLayout]

entries = st.lists(
    st.tuples(
        st.text("abc.é", min_size=1, max_size=9).filter(lambda name: ".." not in name),
        st.sampled_from(["F32", "BF16", "F16", "I8", "BOOL", "I64", "F64", "U16"]),
        st.lists(st.integers(1, 9), max_size=3).map(tuple),
    ),
    unique_by=lambda entry: entry[0],
    min_size=1,
    max_size=6,
)


def content(entry: Entry) -> bytes:
    """Bytes of the tensor's own."""
    return random.Random(repr(entry)).randbytes(StoredTensor(*entry).nbytes)


def small_parts(tensors: Iterable[Entry]) -> FileLayout:
    return ckpt_layout(tensors, slice_bytes=24)


LAYOUTS = [
    pytest.param(safetensors_layout, "w.safetensors", id="safetensors"),
    pytest.param(small_parts, "w.ckpt", id="ckpt"),
]


def check_read(path: Path, tensors: Iterable[Entry], layout: FileLayout) -> None:
    with open_tensor_file(path) as file:
        read = {n: (i.dtype, i.shape, b"".join(map(bytes, file.chunks(n)))) for n, i in file.tensors.items()}
        assert read == {entry[0]: (*entry[1:], content(entry)) for entry in tensors}
        assert {name: info.extents for name, info in file.tensors.items()} == layout.extents
        assert file.head_digest() == layout.head_digest


@pytest.mark.parametrize(("layout_of", "name"), LAYOUTS)
@given(tensors=entries, data=st.data())
def test_pieces_written_in_any_order_are_the_file(
    tmp_path: Path, layout_of: Layout, name: str, tensors: list[Entry], data: st.DataObject
) -> None:
    layout = layout_of(tensors)
    pieces = list(layout.head)
    for entry in tensors:
        half = data.draw(st.integers(0, StoredTensor(*entry).nbytes))
        for start, count in ((0, half), (half, StoredTensor(*entry).nbytes - half)):
            done = start
            for offset, nbytes in byte_ranges(layout.extents[entry[0]], start, count):
                pieces.append((offset, content(entry)[done : done + nbytes]))
                done += nbytes
    covered = sorted((offset, offset + len(piece)) for offset, piece in pieces if piece)
    assert [begin for begin, _ in covered] == [0, *(end for _, end in covered[:-1])]
    assert covered[-1][1] == layout.total_bytes
    handle = os.open(tmp_path / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for offset, piece in data.draw(st.permutations(pieces)):
        os.pwrite(handle, piece, offset)
    os.close(handle)
    check_read(tmp_path / name, tensors, layout)


@pytest.mark.parametrize("layout_of", [safetensors_layout, ckpt_layout])
def test_what_no_reader_takes_is_not_written(layout_of: Layout) -> None:
    tensors: list[Entry] = [
        ("../x", "F32", (1,)), ("a", "F99", (1,)), ("b", "F32", (-1,)), ("c", "I8", ()), ("c", "I8", ()),
        ("", "I8", ()), ("d", "F32", (1 << 62, 4)),
    ]  # fmt: skip
    with pytest.raises(CheckpointError) as caught:
        layout_of(tensors)
    assert [fault.split(":")[0] for fault in caught.value.lines] == [
        "tensor '../x'", "tensor 'a'", "tensor 'b'", "tensor 'c'", "tensor ''", "tensor 'd'",
    ]  # fmt: skip


def test_what_mindspore_does_not_load_is_not_written_as_ckpt() -> None:
    with pytest.raises(CheckpointError) as caught:
        ckpt_layout([("a", "C64", (1,)), ("b", "F32", (0, 3))])
    assert len(caught.value.lines) == 2
    assert safetensors_layout([("a", "C64", (1,)), ("b", "F32", (0, 3))]).total_bytes > 8


def test_all_tensors_of_safetensors_are_aligned() -> None:
    layout = safetensors_layout(
        [("a", "I8", (3,)), ("b", "F64", (2,)), ("c", "BF16", (3,)), ("d", "F32", (1,))]
    )
    sizes = {"a": 1, "b": 8, "c": 2, "d": 4}
    assert all(layout.extents[name][0].offset % size == 0 for name, size in sizes.items())


def test_the_parts_of_a_ckpt_are_no_larger_than_asked() -> None:
    layout = ckpt_layout([("x", "I8", (100,))], slice_bytes=40)
    assert [extent.nbytes for extent in layout.extents["x"]] == [40, 40, 20]


def test_byte_ranges() -> None:
    extents = (ByteExtent(10, 4), ByteExtent(20, 0), ByteExtent(30, 6))
    assert list(byte_ranges(extents, 0, 10)) == [(10, 4), (30, 6)]
    assert list(byte_ranges(extents, 3, 2)) == [(13, 1), (30, 1)]
    assert list(byte_ranges(extents, 4, 3)) == [(30, 3)]
    assert list(byte_ranges(extents, 10, 0)) == []
    for start, count in ((0, 11), (10, 1), (11, 1), (-1, 1), (0, -1)):
        with pytest.raises(ValueError, match="tensor"):
            list(byte_ranges(extents, start, count))


def test_no_safetensors_header_is_written_that_would_be_refused() -> None:
    with pytest.raises(CheckpointError, match="a safetensors header of .* at most 1000000 are allowed"):
        safetensors_layout((str(number), "F32", (1,) * 32) for number in range(26_400))
