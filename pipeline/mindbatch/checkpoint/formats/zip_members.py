"""Byte extents of a zip file's members, none of them compressed or at odds with the directory.

Format: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 to 4.5, of which torch.save uses a small part: no
compression, no comment, one disk; sizes may stand after the bytes, and in 64 bits.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.formats.stored import ByteExtent, ReadableFile, name_faults
from mindbatch.io.errors import CheckpointError

MAX_DIRECTORY_BYTES = 16 << 20
MAX_MEMBERS = 100_000

_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_SIZE_LATER, _UTF_8 = 1 << 3, 1 << 11
_IN_64_BITS = 0xFFFFFFFF
_SIZES_64 = 1  # number of the extra field


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    flags: int
    nbytes: int
    header: int


def stored_members(file: ReadableFile) -> Mapping[str, ByteExtent]:
    """The members by name, all of it bounded. CheckpointError, without the path, for what is not right."""
    start, nbytes, count = _directory(file)
    entries = _entries(file.fetch(start, nbytes), count)
    members: dict[str, ByteExtent] = {}
    position, previous = 0, "the beginning"
    for entry in sorted(entries, key=lambda entry: entry.header):
        if entry.header < position:
            raise CheckpointError(f"zip member {shown(entry.name)} overlaps {previous}")
        extent = _content(file, entry)
        position, previous = extent.offset + extent.nbytes, shown(entry.name)
        if position > start:
            raise CheckpointError(f"zip member {previous} ends at byte {position}, within the directory")
        members[entry.name] = extent
    return members


def _directory(file: ReadableFile) -> tuple[int, int, int]:
    """Offset and bytes of the central directory, and how many members it has."""
    position = file.size - _END.size
    end = file.fetch(max(position, 0), _END.size)
    if position < 0 or not end.startswith(b"PK\5\6"):
        raise CheckpointError("truncated, or no zip file: it does not end with a directory")
    _, disk, first_disk, here, count, nbytes, start, comment = _END.unpack(end)
    if _IN_64_BITS in (nbytes, start) or count == 0xFFFF or _has_locator(file, position):
        return _directory_64(file, position)
    if disk or first_disk or here != count or comment:
        raise CheckpointError("a zip file of several disks or with a comment; torch.save makes none")
    return _checked(start, nbytes, count, position)


def _has_locator(file: ReadableFile, end: int) -> bool:
    return end >= _LOCATOR_64.size and file.fetch(end - _LOCATOR_64.size, 4) == b"PK\6\7"


def _directory_64(file: ReadableFile, end: int) -> tuple[int, int, int]:
    position = end - _LOCATOR_64.size - _END_64.size
    records = file.fetch(max(position, 0), _END_64.size + _LOCATOR_64.size)
    if position < 0 or not records.startswith(b"PK\6\6"):
        raise CheckpointError("the zip file's directory of 64 bits is missing")
    _, length, _, _, disk, first_disk, here, count, nbytes, start = _END_64.unpack(records[: _END_64.size])
    locator = _LOCATOR_64.unpack(records[_END_64.size :])
    if disk or first_disk or here != count or length != _END_64.size - 12:
        raise CheckpointError("the zip file's directory of 64 bits is not as torch.save writes it")
    if locator != (b"PK\6\7", 0, position, 1):
        raise CheckpointError("the zip file's directory of 64 bits is not where its locator says")
    return _checked(start, nbytes, count, position)


def _checked(start: int, nbytes: int, count: int, end: int) -> tuple[int, int, int]:
    if nbytes > MAX_DIRECTORY_BYTES or count > MAX_MEMBERS:
        raise CheckpointError(
            f"a zip file of {count} members, its directory of {nbytes} bytes; at most {MAX_MEMBERS} and "
            f"{MAX_DIRECTORY_BYTES} are allowed"
        )
    if start + nbytes != end:
        raise CheckpointError(f"the zip file's directory must end at byte {end}; says {start + nbytes}")
    return start, nbytes, count


def _entries(directory: bytes, count: int) -> list[_Entry]:
    """The directory's entries, which must be `count` and fill it."""
    entries: list[_Entry] = []
    names = set[str]()
    position = 0
    while position < len(directory):
        entry, position = _entry(directory, position)
        if entry.name in names:
            raise CheckpointError(f"zip member {shown(entry.name)} is there twice")
        names.add(entry.name)
        entries.append(entry)
    if len(entries) != count:
        raise CheckpointError(f"the zip file's directory has {len(entries)} members and says {count}")
    return entries


def _entry(directory: bytes, position: int) -> tuple[_Entry, int]:
    end = position + _ENTRY.size
    head = directory[position:end]
    if len(head) < _ENTRY.size or not head.startswith(b"PK\1\2"):
        raise CheckpointError(f"byte {position} of the zip file's directory is no entry")
    (
        _, _, _, flags, method, _, _, _, packed, nbytes, name_bytes, extra_bytes, comment, disk, _, _, header,
    ) = _ENTRY.unpack(head)  # fmt: skip
    raw, extra = directory[end : end + name_bytes], directory[end + name_bytes :][:extra_bytes]
    name = _plain_name(raw)
    if method or flags & ~(_SIZE_LATER | _UTF_8) or comment or disk:
        raise CheckpointError(f"zip member {shown(name)} is compressed, encrypted or otherwise special")
    sizes = _sizes_64(name, (nbytes, packed, header), extra)
    if sizes[0] != sizes[1]:
        raise CheckpointError(f"zip member {shown(name)}: {sizes[1]} bytes stored, {sizes[0]} said")
    return _Entry(name, flags, sizes[0], sizes[2]), end + name_bytes + extra_bytes


def _plain_name(raw: bytes) -> str:
    """A member's name, when every part of the path is a plain one."""
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise CheckpointError(f"zip member {shown(raw)}: a name must be UTF-8") from None
    if any(name_faults(part) or part == "." for part in name.split("/")):
        raise CheckpointError(f"zip member {shown(name)}: a name must be a plain path inside the file")
    return name


def _sizes_64(name: str, sizes: tuple[int, ...], extra: bytes) -> list[int]:
    """The sizes in order, with those that do not fit 32 bits from the extra field."""
    large = sum(size == _IN_64_BITS for size in sizes)
    if not large:
        return [*sizes]
    position = 0
    while position + 4 <= len(extra):
        number, length = struct.unpack_from("<2H", extra, position)
        if number == _SIZES_64 and length >= 8 * large and position + 4 + length <= len(extra):
            large_sizes = iter(struct.unpack_from(f"<{large}Q", extra, position + 4))
            return [next(large_sizes) if size == _IN_64_BITS else size for size in sizes]
        position += 4 + length
    raise CheckpointError(f"zip member {shown(name)}: its sizes of 64 bits are missing")


def _content(file: ReadableFile, entry: _Entry) -> ByteExtent:
    """Locates the member's bytes, behind a header of its own that must match the directory."""
    head = file.fetch(entry.header, _LOCAL.size + len(entry.name.encode()))
    where = f"zip member {shown(entry.name)}"
    if len(head) < _LOCAL.size or not head.startswith(b"PK\3\4"):
        raise CheckpointError(f"{where}: no header at byte {entry.header}")
    _, _, flags, method, _, _, _, packed, nbytes, name_bytes, extra_bytes = _LOCAL.unpack(head[: _LOCAL.size])
    if (flags, method, name_bytes) != (entry.flags, 0, len(head) - _LOCAL.size) or head[
        _LOCAL.size :
    ] != entry.name.encode():
        raise CheckpointError(f"{where}: its own header and the directory differ")
    own_sizes = {packed, nbytes} - {_IN_64_BITS} - ({0} if flags & _SIZE_LATER else set())
    if own_sizes - {entry.nbytes}:
        raise CheckpointError(f"{where}: its own header says other sizes than the directory, {entry.nbytes}")
    return ByteExtent(entry.header + len(head) + extra_bytes, entry.nbytes)
