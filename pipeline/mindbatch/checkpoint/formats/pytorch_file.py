"""PyTorch's files of tensors, .bin, .pt and .pth: read as data, without PyTorch; nothing in them is executed.

torch.save writes a zip file with a pickle, data.pkl, and a member of bytes for each storage; before PyTorch
1.6 it wrote pickles one after another, and the storages behind them. In both the pickle is to be a mapping of
names to tensors (a state_dict), which are views of the storages.
"""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.faults import located, raise_if_any, shown
from mindbatch.checkpoint.formats.pickle_machine import PickleFault
from mindbatch.checkpoint.formats.pickled_tensors import (
    StridedFile,
    TensorUnpickler,
    TensorView,
    TorchStorage,
    stored_view,
    view_faults,
)
from mindbatch.checkpoint.formats.stored import DTYPES, ByteExtent, ReadableFile, StoredFile
from mindbatch.checkpoint.formats.zip_members import stored_members
from mindbatch.io.errors import CheckpointError
from mindbatch.io.foreign_formats import foreign_format

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
    file = ReadableFile(path)
    try:
        head = file.fetch(0, 64)
        with located(path):
            if head.startswith(b"PK\3\4"):
                views, extents = _zipped(file)
            elif head.startswith(b"\x80\2\x8a\x0a"):
                views, extents = _old(file)
            else:
                raise CheckpointError(f"{foreign_format(head) or 'not a file of torch.save'}; {_NEEDED}")
            return _opened(file, views, extents)
    except BaseException:
        file.close()
        raise


def _opened(
    file: ReadableFile, views: Mapping[str, TensorView], extents: Mapping[str, ByteExtent]
) -> StoredFile:
    faults = [f"tensor {shown(name)}: {fault}" for name in views for fault in view_faults(name, views[name])]
    raise_if_any(faults)
    tensors = [stored_view(name, view, extents[view.storage.key]) for name, view in views.items()]
    return StridedFile(file, "pytorch", tensors)


def _zipped(file: ReadableFile) -> tuple[dict[str, TensorView], dict[str, ByteExtent]]:
    """The tensors of a zip file, and where the storages are, by key."""
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
    content = _loaded(pickled, "data.pkl")
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
    magic = _loaded(TensorUnpickler(data), "the magic number")
    version = _loaded(TensorUnpickler(data), "the version")
    if magic != _MAGIC or version != _OLD_VERSION:
        raise CheckpointError(f"a Python pickle that torch.save has not written; {_NEEDED}")
    system = _loaded(TensorUnpickler(data), "the system's description")
    if not isinstance(system, dict) or system.get("little_endian") is not True:
        raise CheckpointError("little_endian of the system's description must be True")
    pickled = TensorUnpickler(data)
    content = _loaded(pickled, "the tensors' pickle")
    keys = _loaded(TensorUnpickler(data), "the storages' list")
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


def _loaded(pickled: TensorUnpickler, what: str) -> Any:
    try:
        return pickled.load()
    except PickleFault as fault:
        raise CheckpointError(f"{what}: {fault}") from None


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
