"""What makes a data file unusable as a whole, found before any of its rows is read."""

from mindbatch.dataset.byte_streams import DamagedData, opened, plain
from mindbatch.dataset.csv_table import table_fault
from mindbatch.dataset.data_files import DataFile
from mindbatch.dataset.json_array import array_fault
from mindbatch.dataset.parquet_table import parquet_fault

_HEAD_BYTES = 64
_OWN = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "parquet": b"PAR1\x15"}
_SIGNATURES = {
    b"version https://git-lfs.github.com/spec/v1": "a Git LFS pointer; fetch the data with `git lfs pull`",
    b"PK\x03\x04": "a zip archive; unpack it first",
    _OWN["gzip"]: "gzip data; its name must end in .gz",
    _OWN["zstd"]: "zstd data; its name must end in .zst",
    _OWN["parquet"]: "a Parquet file; name it .parquet or give data.format=parquet",
    b"\xff\xfe": "UTF-16 text; must be UTF-8",
    b"\xfe\xff": "UTF-16 text; must be UTF-8",
}


def file_fault(file: DataFile, max_row_bytes: int) -> str | None:
    """Why the file cannot be what its name or the given format says, or None.

    Raises:
        MindBatchError: the file cannot be opened or read.
    """
    if foreign := _foreign(file):
        return f"is {foreign}"
    try:
        if file.format == "parquet":
            return parquet_fault(file)
        if file.format == "json":
            return array_fault(file)
        if file.format in ("csv", "tsv"):
            return table_fault(file, max_row_bytes)
        with opened(file) as stream:
            stream.peek(1)
    except DamagedData as damage:
        return str(damage)
    return None


def _foreign(file: DataFile) -> str | None:
    """What the file is instead, told from its first bytes."""
    with plain(file.path) as disk:
        head = disk.read(_HEAD_BYTES) or b""
    own = _OWN.get(file.compression or file.format)
    return next(
        (what for magic, what in _SIGNATURES.items() if magic != own and head.startswith(magic)), None
    )
