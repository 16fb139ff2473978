"""PyTorch's files of tensors, .bin, .pt and .pth: read as data, without PyTorch; nothing in them is executed.

torch.save writes a zip file with a pickle, data.pkl, and a member of bytes for each storage; before PyTorch
1.6 it wrote pickles one after another, and the storages behind them. In both the pickle is to be a mapping of
names to tensors (a state_dict), which are views of the storages.
"""

import struct
import zipfile
from collections.abc import Mapping
from io import BytesIO, FileIO
from pathlib import Path
from threading import Lock

from mindbatch.checkpoint.error_lines import located, raise_if_any, shown
from mindbatch.checkpoint.formats.pickled_tensors import TensorUnpickler, TensorView, TorchStorage
from mindbatch.checkpoint.formats.stored import (
    DTYPES,
    ByteExtent,
    ReadableFile,
    StoredFile,
    StoredTensor,
    name_errors,
)
from mindbatch.io.closing import closed_on_error
from mindbatch.io.errors import CheckpointError
from mindbatch.io.file_signatures import foreign_format

MAX_DIRECTORY_BYTES = 8 << 20
MAX_MEMBERS = 100_000

_LOCAL = struct.Struct("<4s5H3I2H")
_SIZE_LATER, _UTF_8 = 1 << 3, 1 << 11
_IN_64_BITS = 0xFFFFFFFF


class _BoundedFile(FileIO):
    """A file as zipfile reads it. CheckpointError for more bytes at once than a directory may have."""

    def read(self, count: int | None = -1, /) -> bytes:
        if count is not None and count > MAX_DIRECTORY_BYTES:
            raise CheckpointError(
                f"a zip file with a directory of {count} bytes; at most {MAX_DIRECTORY_BYTES} are allowed"
            )
        return super().read(-1 if count is None else count)


def stored_members(file: ReadableFile) -> Mapping[str, ByteExtent]:
    """The members by name, all of it bounded. CheckpointError, without the path, for what is not right."""
    try:
        archive = zipfile.ZipFile(_BoundedFile(file.fileno(), closefd=False))
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"truncated, or no zip file of torch.save ({error})") from None
    entries = archive.infolist()
    if archive.comment or len(entries) > MAX_MEMBERS:
        raise CheckpointError(
            f"a zip file of {len(entries)} members; at most {MAX_MEMBERS} are allowed, and no comment"
        )
    members: dict[str, ByteExtent] = {}
    position, previous = 0, "the beginning"
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        name = _plain_name(entry)
        if entry.header_offset < position:
            raise CheckpointError(f"zip member {shown(name)} overlaps {previous}")
        if name in members:
            raise CheckpointError(f"zip member {shown(name)} is there twice")
        extent = members[name] = _content(file, entry)
        position, previous = extent.offset + extent.nbytes, shown(name)
        if position > archive.start_dir:
            raise CheckpointError(f"zip member {previous} ends at byte {position}, within the directory")
    return members


def _plain_name(entry: zipfile.ZipInfo) -> str:
    """A member's name, when every part of the path is a plain one and it is only bytes."""
    name = entry.orig_filename
    if any(name_errors(part) or part == "." for part in name.split("/")):
        raise CheckpointError(f"zip member {shown(name)}: a name must be a plain path inside the file")
    is_special = entry.flag_bits & ~(_SIZE_LATER | _UTF_8) or entry.comment or entry.volume
    if is_special or entry.compress_type != zipfile.ZIP_STORED:
        raise CheckpointError(f"zip member {shown(name)} is compressed, encrypted or otherwise special")
    if entry.compress_size != entry.file_size:
        raise CheckpointError(
            f"zip member {shown(name)}: {entry.compress_size} bytes stored, {entry.file_size} said"
        )
    return name


def _content(file: ReadableFile, entry: zipfile.ZipInfo) -> ByteExtent:
    """Locates the member's bytes, behind a header of its own that must match the directory."""
    name = entry.orig_filename.encode("utf-8" if entry.flag_bits & _UTF_8 else "cp437")
    head = file.fetch(entry.header_offset, _LOCAL.size + len(name))
    where = f"zip member {shown(entry.orig_filename)}"
    if len(head) < _LOCAL.size or not head.startswith(b"PK\3\4"):
        raise CheckpointError(f"{where}: no header at byte {entry.header_offset}")
    _, _, flags, method, _, _, _, packed, nbytes, name_bytes, extra_bytes = _LOCAL.unpack(head[: _LOCAL.size])
    if (flags, method, name_bytes, head[_LOCAL.size :]) != (entry.flag_bits, 0, len(name), name):
        raise CheckpointError(f"{where}: its own header and the directory differ")
    own_sizes = {packed, nbytes} - {_IN_64_BITS} - ({0} if flags & _SIZE_LATER else set())
    if own_sizes - {entry.file_size}:
        raise CheckpointError(
            f"{where}: its own header says other sizes than the directory, {entry.file_size}"
        )
    return ByteExtent(entry.header_offset + len(head) + extra_bytes, entry.file_size)


MAX_PICKLE_BYTES = 32_000_000

_MAGIC = 0x1950A86A20F9469CFC6C
_OLD_VERSION = 1001
_COUNT_BYTES = 8
_NEEDED = "must be a mapping of names to tensors, as torch.save(model.state_dict(), FILE) writes it"


def open_pytorch(path: Path) -> StoredFile:
    """Opens and checks a file that torch.save has written, without reading its tensors.

    CheckpointError for a file that is not exactly right, and for every opcode, name or value in it that a
    state_dict has no need of; nothing of it is executed.
    """
    file = StridedFile(path)
    with closed_on_error(file):
        head = file.fetch(0, 64)
        with located(path):
            views, extents = _views_and_storages(file, head)
            errors = [(name, error) for name, view in views.items() for error in view.errors(name)]
            raise_if_any([f"tensor {shown(name)}: {error}" for name, error in errors])
        file.set_tensors(views, extents)
    return file


def _views_and_storages(
    file: ReadableFile, head: bytes
) -> tuple[dict[str, TensorView], dict[str, ByteExtent]]:
    """The tensors, and where the storages are, by key."""
    if head.startswith(b"PK\3\4"):
        return _zipped(file)
    if head.startswith(b"\x80\2\x8a\x0a"):
        return _old(file)
    raise CheckpointError(f"{foreign_format(head) or 'not a file of torch.save'}; {_NEEDED}")


def _zipped(file: ReadableFile) -> tuple[dict[str, TensorView], dict[str, ByteExtent]]:
    members = stored_members(file)
    home = next(iter(members), "").partition("/")[0]
    if f"{home}/constants.pkl" in members:
        raise CheckpointError(f"a TorchScript archive, which is a program and never executed; {_NEEDED}")
    if f"{home}/data.pkl" not in members:
        raise CheckpointError("a zip archive without data.pkl, so not one of torch.save")
    order = members.get(f"{home}/byteorder")
    if order and (byteorder := file.fetch(order.offset, min(order.nbytes, 16))) != b"little":
        raise CheckpointError(f"byteorder {shown(byteorder)}; must be 'little'")
    offset, nbytes = members[f"{home}/data.pkl"]
    if nbytes > MAX_PICKLE_BYTES:
        raise CheckpointError(f"data.pkl has {nbytes} bytes; at most {MAX_PICKLE_BYTES} are allowed")
    data = BytesIO(file.fetch(offset, nbytes))
    pickled = TensorUnpickler(data)
    content = pickled.value("data.pkl")
    if rest := nbytes - data.tell():
        raise CheckpointError(f"data.pkl: {rest} bytes after its end")
    extents = {}
    for key, storage in pickled.storages.items():
        extent = members.get(f"{home}/data/{key}")
        if extent is None:
            raise CheckpointError(f"storage {key} is missing: there is no data/{key}")
        extents[key] = extent
        _check_size(storage, extent.nbytes)
    return _views(content), extents


def _old(file: ReadableFile) -> tuple[dict[str, TensorView], dict[str, ByteExtent]]:
    """Opens a file from before PyTorch 1.6: five pickles, and each storage behind its count."""
    data = BytesIO(file.fetch(0, MAX_PICKLE_BYTES))
    magic = TensorUnpickler(data).value("the magic number")
    version = TensorUnpickler(data).value("the version")
    if magic != _MAGIC or version != _OLD_VERSION:
        raise CheckpointError(f"a Python pickle that torch.save has not written; {_NEEDED}")
    system = TensorUnpickler(data).value("the system's description")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise CheckpointError("little_endian of the system's description must be True")
    pickled = TensorUnpickler(data)
    content = pickled.value("the tensors' pickle")
    keys = TensorUnpickler(data).value("the storages' list")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise CheckpointError("the storages' list must be of their keys")
    if len({*keys}) != len(keys) or {*keys} != {*pickled.storages}:
        raise CheckpointError("the storages' list must name each storage of the tensors once, and no other")
    extents, position = {}, data.tell()
    for key in keys:
        storage = pickled.storages[key]
        count = int.from_bytes(file.fetch(position, _COUNT_BYTES), "little")
        nbytes = storage.count * DTYPES[storage.dtype]
        extents[key] = ByteExtent(position + _COUNT_BYTES, nbytes)
        _check_size(storage, count * DTYPES[storage.dtype])
        position += _COUNT_BYTES + nbytes
        if position > file.size:
            raise CheckpointError(f"truncated: storage {key} ends at byte {position} of {file.size}")
    if position != file.size:
        raise CheckpointError(f"{file.size - position} bytes after the last storage")
    return _views(content), extents


def _check_size(storage: TorchStorage, nbytes: int) -> None:
    needed = storage.count * DTYPES[storage.dtype]
    if nbytes != needed:
        raise CheckpointError(
            f"storage {storage.key} of {storage.count} {storage.dtype} needs {needed} bytes, the file holds "
            f"{nbytes}"
        )


def _views(content: object) -> dict[str, TensorView]:
    """The tensors, when the pickle holds nothing else."""
    if not isinstance(content, dict) or not content:
        kind = "an empty mapping" if content == {} else f"a value of type {type(content).__name__.lower()}"
        raise CheckpointError(f"holds {kind}; {_NEEDED}")
    others = [name for name, value in content.items() if not isinstance(value, TensorView)]
    if others:
        kind = type(content[others[0]]).__name__.lower()
        more = f" and {len(others) - 1} more that are no tensors" if len(others) > 1 else ""
        raise CheckpointError(f"{shown(others[0])} is of type {kind}{more}; {_NEEDED}")
    return content


class StridedFile(StoredFile):
    """A file whose tensors may be transposed or parts of others; such a one is gathered when it is read.

    The last one gathered is kept: tensors are read in pieces.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, "pytorch")
        self._strides: dict[str, tuple[int, ...]] = {}
        self._gathered: tuple[str, memoryview] | None = None
        self._lock = Lock()

    def set_tensors(self, views: Mapping[str, TensorView], extents: Mapping[str, ByteExtent]) -> None:
        """Sets the tensors as views of storages, whose extents are found by key."""
        self.tensors = {name: _stored(name, view, extents[view.storage.key]) for name, view in views.items()}
        self._strides = {name: view.strides for name, view in views.items() if not view.is_row_major}

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        if name not in self._strides:
            super().read_into(name, start, buffer)
            return
        flat = buffer.cast("B")
        with self._lock:
            if self._gathered is None or self._gathered[0] != name:
                self._gathered = name, self._gather(self.info(name), self._strides[name])
            data = self._gathered[1]
        if not 0 <= start <= start + len(flat) <= len(data):
            raise ValueError(f"bytes {start}, {len(flat)} of a tensor of {len(data)}")
        flat[:] = data[start : start + len(flat)]

    def _gather(self, tensor: StoredTensor, strides: tuple[int, ...]) -> memoryview:
        import numpy as np  # nothing else here needs it

        from mindbatch.checkpoint.formats.floats import array_type

        [extent] = tensor.extents
        stored = np.empty(extent.nbytes // tensor.itemsize, array_type(tensor.dtype))
        self.fill(extent.offset, stored.data.cast("B"))
        steps = [stride * tensor.itemsize for stride in strides]
        view = np.lib.stride_tricks.as_strided(stored, tensor.shape, steps)
        return np.ascontiguousarray(view).reshape(-1).data.cast("B")


def _stored(name: str, view: TensorView, storage: ByteExtent) -> StoredTensor:
    itemsize = DTYPES[view.storage.dtype]
    extent = ByteExtent(storage.offset + view.first * itemsize, view.span * itemsize)
    return StoredTensor(name, view.storage.dtype, view.shape, (extent,))
