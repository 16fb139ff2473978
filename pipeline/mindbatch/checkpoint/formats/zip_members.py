"""Byte extents of a zip file's members, none of them compressed or at odds with the directory.

Of what PKWARE's APPNOTE.TXT 6.3.10 describes, torch.save uses a small part: no compression, no comment, one
disk; sizes may stand after the bytes, and in 64 bits.
"""

import struct
import zipfile
from collections.abc import Mapping
from typing import IO, cast

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.stored import ByteExtent, ReadableFile, name_faults
from mindbatch.io.errors import CheckpointError

MAX_DIRECTORY_BYTES = 8 << 20
MAX_MEMBERS = 100_000

_LOCAL = struct.Struct("<4s5H3I2H")
_SIZE_LATER, _UTF_8 = 1 << 3, 1 << 11
_IN_64_BITS = 0xFFFFFFFF


class _Positioned:
    """A file as zipfile reads it. CheckpointError for more bytes at once than a directory may have."""

    def __init__(self, file: ReadableFile) -> None:
        self._file, self._position = file, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        position = offset + (self._file.size if whence == 2 else 0)
        if position < 0:
            raise OSError("before the beginning")
        self._position = position
        return position

    def tell(self) -> int:
        return self._position

    def read(self, count: int = -1) -> bytes:
        count = self._file.size - self._position if count < 0 else count
        if count > MAX_DIRECTORY_BYTES:
            raise CheckpointError(
                f"a zip file with a directory of {count} bytes; at most {MAX_DIRECTORY_BYTES} are allowed"
            )
        data = self._file.fetch(self._position, count)
        self._position += len(data)
        return data


def stored_members(file: ReadableFile) -> Mapping[str, ByteExtent]:
    """The members by name, all of it bounded. CheckpointError, without the path, for what is not right."""
    try:
        archive = zipfile.ZipFile(cast(IO[bytes], _Positioned(file)))
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
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
    if any(name_faults(part) or part == "." for part in name.split("/")):
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
