"""What a file that is not what its name says most likely is, told from its first bytes."""

_SIGNATURES = (
    (
        b"version https://git-lfs.github.com/spec/v1",
        "a Git LFS pointer, not the file itself (fetch it with `git lfs pull`)",
    ),
    (b"PK\x03\x04", "a zip archive (a PyTorch pickle checkpoint is one), which is never opened"),
    *((bytes([0x80, number]), "a Python pickle, which is never opened") for number in range(2, 6)),
    (b"GGUF", "a GGUF file"),
    (b"\x89HDF\r\n", "an HDF5 file"),
    (b"<!DOCTYPE", "an HTML page (perhaps of a failed download)"),
    (b"<html", "an HTML page (perhaps of a failed download)"),
)

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl")

HOW_TO_CONVERT = (
    "pickled weights can run code and are never opened; {needed}; convert them where you trust them, with "
    "transformers' model.save_pretrained(NEW_FOLDER, safe_serialization=True) or "
    "safetensors.torch.save_file(state_dict, 'model.safetensors')"
)


def foreign_format(head: bytes) -> str | None:
    """A description of the format whose signature `head` begins with, or None when it is none of them."""
    return next((description for magic, description in _SIGNATURES if head.startswith(magic)), None)
