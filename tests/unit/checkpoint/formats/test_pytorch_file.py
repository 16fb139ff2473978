"""PyTorch's files: read to the bit, or refused where torch.save would not write so; nothing runs."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mindbatch.checkpoint.formats import pickled_tensors
from mindbatch.checkpoint.formats.floats import read_values
from mindbatch.checkpoint.formats.pytorch_file import open_pytorch
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.io.errors import CheckpointError
from pytorch_bytes import (
    ORDERED,
    REBUILD,
    mapping,
    members_of,
    number,
    old_pytorch_bytes,
    pytorch_bytes,
    sizes,
    storage,
    tensor,
    text,
    zip_of,
)

HOME = Path(__file__).parent / "pytorch"
BASE = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
VIEWS = {
    "base": BASE,
    "last": BASE[2],
    "columns": BASE[:, 1:3, 2:],
    "permuted": BASE.transpose(2, 0, 1),
    "steps": BASE[::2, :, ::3],
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "half": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "one": np.array(7, np.float32),
    "none": np.zeros((0, 3), np.float32),
    "parameter": np.arange(4, dtype=np.float32),
    "tied": BASE[0],
}
KINDS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64"} | {
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"
}  # fmt: skip
ARRAYS: dict[str, NDArray[Any]] = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.arange(4)}
GOOD = pytorch_bytes(ARRAYS)
MEMBER, LOCAL, ENTRY = b"w/data/0", False, True


def contents(file: StoredFile, name: str) -> bytes:
    data = bytearray(file.info(name).nbytes)
    if data:
        file.read_into(name, 0, memoryview(data))
    return bytes(data)


@pytest.mark.parametrize("saved", ["views.bin", "views_old.bin"])
def test_views_of_a_storage_are_read_row_major(saved: str) -> None:
    with open_pytorch(HOME / saved) as file:
        assert file.tensors.keys() == VIEWS.keys()
        for name, array in VIEWS.items():
            np.testing.assert_array_equal(read_values(file, name), array)
        np.testing.assert_array_equal(
            read_values(file, "permuted", rows=slice(1, 4)), BASE.T[1:4].swapaxes(1, 2)
        )
        np.testing.assert_array_equal(read_values(file, "matrix", None, slice(1, 2)), VIEWS["matrix"][:, 1:])


@pytest.mark.parametrize("saved", ["dtypes.bin", "dtypes_old.bin"])
def test_every_dtype(saved: str) -> None:
    with open_pytorch(HOME / saved) as file:
        found = {name: tensor.dtype for name, tensor in file.tensors.items()}
        assert found == {f"torch.{name}": kind for name, kind in KINDS.items()}
        assert contents(file, "torch.int64") == np.arange(5).tobytes()
        assert contents(file, "torch.bool") == bytes([0, 1, 1, 1, 1])
        np.testing.assert_array_equal(read_values(file, "torch.bfloat16"), np.arange(5, dtype=np.float32))


@pytest.mark.parametrize("saved", ["module.bin", "module_old.bin"])
def test_the_state_of_a_module(saved: str) -> None:
    """It has _metadata, which BUILD puts into the mapping."""
    with open_pytorch(HOME / saved) as file:
        assert [*file.tensors] == ["0.weight", "0.bias", "1.weight", "1.bias"]
        np.testing.assert_array_equal(read_values(file, "0.weight"), np.full((2, 3), 0.5, np.float32))


@pytest.mark.parametrize("write", [pytorch_bytes, old_pytorch_bytes])
def test_every_byte_is_needed(tmp_path: Path, write: Callable[[dict[str, NDArray[Any]]], bytes]) -> None:
    good, path = write(ARRAYS), tmp_path / "w.bin"
    path.write_bytes(good)
    with open_pytorch(path) as file:
        assert {name: contents(file, name) for name in ARRAYS} == {k: v.tobytes() for k, v in ARRAYS.items()}
    for length in range(1, len(good), 7):
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError):
            open_pytorch(path)


def _pickled(value: bytes) -> bytes:
    """A file with this as the value of a tensor's name."""
    return pytorch_bytes(ARRAYS, mapping({"a": value}))


def _called(function: str, *arguments: str) -> bytes:
    module, _, name = function.rpartition(".")
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(map(text, arguments)) + b"tR"


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        import os

        return os.system, (self.command,)


COUNT = storage("0", 6)
PICKLES = {
    "os.system": (_called("os.system", "touch executed"), "GLOBAL 'os.system' is not one"),
    "posix.system": (_called("posix.system", "touch executed"), "GLOBAL 'posix.system' is not one"),
    "builtins": (_called("builtins.eval", "1"), "GLOBAL 'builtins.eval' is not one"),
    "torch.load": (_called("torch.load", "x"), "GLOBAL 'torch.load' is not one"),
    "dotted": (_called("torch.FloatStorage.x", "x"), "GLOBAL 'torch.FloatStorage.x' is not one"),
    "nested": (REBUILD + b"(" + _called("os.system", "x") + b"tR", "GLOBAL 'os.system' is not one"),
    "storage called": (_called("torch.FloatStorage", "x"), "REDUCE torch.FloatStorage with other arguments"),
    "stack global": (text("os") + text("system") + b"\x93", "opcode STACK_GLOBAL is not one"),
    "inst": (b"(" + text("x") + b"ios\nsystem\n", "opcode INST is not one"),
    "obj": (b"(" + ORDERED + b"o", "opcode OBJ is not one"),
    "newobj": (ORDERED + b")\x81", "opcode NEWOBJ is not one"),
    "ext": (b"\x82\x01", "opcode EXT1 is not one"),
    "persid": (b"P0\n", "opcode PERSID is not one"),
    "int": (b"I1\n", "opcode INT is not one"),
    "buffer": (b"\x97", "opcode NEXT_BUFFER is not one"),
    "unknown": (b"\xff", "opcode 0xff is not one"),
    "build of a dict": (b"}" + b"}" + text("_metadata") + b"Nsb", "BUILD of what is not"),
    "build with __setstate__": (ORDERED + b")R}" + text("__class__") + b"Nsb", "BUILD of what is not"),
    "build of a tensor": (
        tensor(COUNT, [6], [1]) + b"}" + text("_metadata") + b"Nsb",
        "BUILD of what is not",
    ),
    "hooks": (
        REBUILD + b"(" + COUNT + number(0) + sizes([6]) + sizes([1]) + b"\x88}" + text("x") + b"NstR",
        "REDUCE torch._utils._rebuild_tensor_v2 with other arguments",
    ),
    "negated": (
        REBUILD
        + b"("
        + COUNT
        + number(0)
        + sizes([6])
        + sizes([1])
        + b"\x89"
        + ORDERED
        + b")R}"
        + text("neg")
        + b"\x88stR",
        "REDUCE torch._utils._rebuild_tensor_v2 with other arguments",
    ),
    "persistent text": (text("x") + b"Q", "BINPERSID of what is not a storage"),
    "persistent module": (storage("0", 6, name=b"module"), "BINPERSID of what is not a storage"),
    "persistent path": (storage("../../x", 6), "BINPERSID of what is not a storage"),
    "persistent count": (storage("0", -1), "BINPERSID of what is not a storage"),
    "persistent kind": (
        b"(" + text("storage") + ORDERED + text("0") + text("cpu") + number(6) + b"tQ",
        "BINPERSID",
    ),
    "two counts": (
        b"(" + COUNT + storage("0", 7) + b"t",
        "storage 0 holds 7 F32; before it held 6 F32",
    ),
    "no storage": (tensor(storage("9", 6), [6], [1]), "storage 9 is missing"),
    "lying count": (tensor(storage("0", 2**40), [6], [1]), "storage 0 of 1099511627776 F32 needs"),
    "beyond": (tensor(COUNT, [6], [1], 1), "ends at element 7 of a storage of 6"),
    "far beyond": (tensor(COUNT, [2**40, 2**40], [2**40, 1]), "is too large"),
    "large stride": (tensor(COUNT, [2], [2**62]), "of a storage of 6"),
    "negative": (tensor(COUNT, [-1], [1]), "REDUCE torch._utils._rebuild_tensor_v2 with other arguments"),
    "expanded": (tensor(COUNT, [2**30, 2**30], [0, 0]), "repeats elements"),
    "overlapping": (tensor(COUNT, [3, 3], [1, 1]), "repeats elements"),
    "strides": (tensor(COUNT, [2, 3], [3]), "with strides"),
    "dimensions": (tensor(COUNT, [1] * 40, [1] * 40), "REDUCE torch._utils._rebuild_tensor_v2"),
    "a number": (number(7), "'a' is of type int; must be a mapping of names to tensors"),
    "nested mapping": (b"}" + text("b") + tensor(COUNT, [6], [1]) + b"s", "'a' is of type dict; must be"),
    "empty stack": (b"R", "opcode REDUCE cannot be carried out"),
    "no mark": (b"te", "opcode APPENDS cannot be carried out"),
    "memo": (b"h\x07", "opcode BINGET cannot be carried out .Memo value not found at index 7"),
    "key": (b"}" + number(1) + b"Ns", "a key of type int; must be a string"),
    "huge string": (b"X" + struct.pack("<I", 2**31), "truncated"),
    "huge integer": (b"\x8a\xff" + bytes(255), "'a' is of type int"),
    "called by a list": (ORDERED + b"]R", "REDUCE of what is no function and its arguments"),
    "call of a class": (storage("0", 6) + b")R", "REDUCE of what is no function and its arguments"),
    "no value": (b"NN", "a key without its value"),
    "set in a list": (b"]" + number(0) + b"Ns", "adds to what is no dict"),
    "not text": (b"X\1\0\0\0\xff", "opcode BINUNICODE cannot be carried out .'utf-8'"),
    "long name": (b"c" + b"x" * 300, "GLOBAL 'xxx"),
}


@pytest.mark.parametrize("protocol", range(6))
def test_an_evil_object_is_never_executed(tmp_path: Path, protocol: int) -> None:
    """By Python's own pickles of it, whole and within both formats."""
    marker, path = tmp_path / "executed", tmp_path / "w.bin"
    evil = pickle.dumps({"a": Evil(f"touch {marker}")}, protocol)
    for content in (
        evil,
        pytorch_bytes(ARRAYS, evil),
        old_pytorch_bytes(ARRAYS).replace(b"\x80\x02}(", evil, 1),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError):
            open_pytorch(path)
    assert not marker.exists()
    pickle.loads(evil)
    assert marker.exists()  # the object would have done it


def _bombs() -> dict[str, bytes]:
    doubled = b")" + b"".join(b"q\0h\0\x86" for _ in range(200))
    return {
        "deep": b")" + b"\x85" * 30_000,
        "deep lists": b"]" * 30_000 + b"a" * 29_999,
        "doubled": doubled,
        "doubled as a key": b"}" + doubled + b"Ns",
        "doubled as an id": doubled + b"Q",
        "doubled as arguments": ORDERED + doubled + b"R",
        "in itself": b"}q\0" + text("x") + b"h\0s",
        "endless": b"N" * 100_100,
    }


@pytest.mark.parametrize("case", _bombs())
def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    monkeypatch.setattr(pickled_tensors, "MAX_OPERATIONS", 100_000)
    path = tmp_path / "w.bin"
    path.write_bytes(_pickled(_bombs()[case]))
    with pytest.raises(CheckpointError) as refused:
        open_pytorch(path)
    assert len(str(refused.value)) < 500


def _field(is_entry: bool, offset: int, value: bytes) -> bytes:
    """The good file with a field of a member's header changed: its own, or its entry in the directory."""
    start = (GOOD.rindex(MEMBER) - 46 if is_entry else GOOD.index(MEMBER) - 30) + offset
    return GOOD[:start] + value + GOOD[start + len(value) :]


def _slip(name: str) -> bytes:
    return zip_of({**members_of(ARRAYS), name: b"x"})


ZIPS = {
    "slip": (_slip("../../x"), "must be a plain path"),
    "absolute": (_slip("/etc/passwd"), "must be a plain path"),
    "backslash": (_slip("w\\x"), "must be a plain path"),
    "compressed": (zip_of(members_of(ARRAYS), zipfile.ZIP_DEFLATED), "is compressed"),
    "twice": (_field(ENTRY, 46, b"w/data/1"), "is there twice|differ"),
    "lying size": (_field(ENTRY, 20, struct.pack("<II", 2**31, 2**31)), "says other sizes"),
    "beyond": (
        zip_of(members_of(ARRAYS)).replace(struct.pack("<II", 24, 24), struct.pack("<II", 2**31, 2**31)),
        "within the directory",
    ),
    "two sizes": (_field(ENTRY, 20, struct.pack("<II", 24, 25)), "24 bytes stored, 25 said"),
    "other size": (
        _field(LOCAL, 18, struct.pack("<II", 25, 25)),
        "its own header says other sizes",
    ),
    "short": (_field(ENTRY, 20, struct.pack("<II", 20, 20)), "says other sizes|needs 24 bytes"),
    "overlap": (_field(ENTRY, 42, struct.pack("<I", 0)), "overlaps|differ"),
    "outside": (_field(ENTRY, 42, struct.pack("<I", 2**31)), "no header at byte"),
    "encrypted": (_field(ENTRY, 8, b"\1\0"), "encrypted"),
    "other name": (_field(ENTRY, 46, b"w/data/7"), "differ"),
    "64 bits": (_field(ENTRY, 24, b"\xff" * 4), "24 bytes stored, 4294967295 said"),
    "comment": (GOOD[:-2] + b"\1\0!", "5 members; at most 100000 are allowed, and no comment"),
    "directory": (GOOD[:-6] + b"\0\0\0\0\0\0", "no header at byte"),
    "huge directory": (GOOD[:-10] + b"\0\0\0\x7f" + GOOD[-6:], "Bad offset|directory of 2130706432 bytes"),
    "no pickle": (zip_of({"w/data/0": bytes(24)}), "without data.pkl"),
    "torchscript": (_slip("w/constants.pkl"), "a TorchScript archive"),
    "big-endian": (zip_of({**members_of(ARRAYS), "w/byteorder": b"big"}), "byteorder b'big'; must be"),
    "after the pickle": (zip_of({**members_of(ARRAYS), "w/data.pkl": mapping({}) + b"x"}), "1 bytes after"),
    "nothing": (zip_of({**members_of(ARRAYS), "w/data.pkl": mapping({})}), "holds an empty mapping"),
    "a list": (zip_of({**members_of(ARRAYS), "w/data.pkl": b"\x80\2]."}), "holds a value of type list"),
    "protocol": (zip_of({**members_of(ARRAYS), "w/data.pkl": b"\x80\4]."}), "pickle protocol 4; must be 2"),
}


def test_a_directory_of_many_members_is_refused_at_once(tmp_path: Path) -> None:
    """It was read in a time that grew with the square of its bytes."""
    entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 4)
    directory = b"".join(entry + b"%06d" % number for number in range(130_000))
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(directory), 4, 0)
    (tmp_path / "w.bin").write_bytes(b"PK\3\4" + directory + end)
    with pytest.raises(CheckpointError, match="a zip file of 130000 members; at most 100000 are allowed"):
        open_pytorch(tmp_path / "w.bin")


OLD = old_pytorch_bytes(ARRAYS)
OLDS = {
    "version": (OLD.replace(b"M\xe9\3", b"M\xea\3"), "that torch.save has not written"),
    "big-endian": (OLD.replace(b"\x88u.", b"\x89u."), "little_endian"),
    "keys": (OLD.replace(text("1") + b"e.", text("2") + b"e."), "name each storage of the tensors once"),
    "key twice": (OLD.replace(text("1") + b"e.", text("0") + b"e."), "name each storage of the tensors once"),
    "count": (OLD.replace(struct.pack("<Q", 6), struct.pack("<Q", 7)), "needs 24 bytes, the file holds 28"),
    "more": (OLD + b"x", "1 bytes after the last storage"),
    "evil": (OLD.replace(b"ctorch\nFloatStorage\n", b"cos\nsystem\n"), "GLOBAL 'os.system'"),
}


REFUSED = {"zip " + name: case for name, case in ZIPS.items()} | OLDS
REFUSED |= {"pickle " + name: (_pickled(value), said) for name, (value, said) in PICKLES.items()}


@pytest.mark.parametrize(("content", "said"), REFUSED.values(), ids=REFUSED)
def test_what_torch_save_does_not_write_is_refused(
    tmp_path: Path, content: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zip files, pickles in them, and old files; nothing runs."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "w.bin"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=said) as refused:
        open_pytorch(path)
    assert [line.startswith(f"{path}: ") and line.isprintable() for line in refused.value.lines] == [True]
    assert [*tmp_path.iterdir()] == [path]
