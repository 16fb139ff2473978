"""Recognises files that are not of the expected format by their first bytes."""

_SIGNATURES = (
    (
        b"version https://git-lfs.github.com/spec/v1",
        "a Git LFS pointer, not the file itself (fetch it with `git lfs pull`)",
    ),
    (b"PK\x03\x04", "a zip archive (a PyTorch checkpoint is one; its name ends in .bin, .pt or .pth)"),
    *((bytes([0x80, number]), "a Python pickle, which is never executed") for number in range(2, 6)),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"<!DOCTYPE", "an HTML page (perhaps of a failed download)"),
    (b"<html", "an HTML page (perhaps of a failed download)"),
)


def foreign_format(head: bytes) -> str | None:
    """A description of the format whose signature `head` begins with, or None when it is none of them."""
    return next((description for magic, description in _SIGNATURES if head.startswith(magic)), None)
