"""Rank folders with copies of one checkpoint, as data-parallel trainings save it, and no slices of it."""

from collections.abc import Sequence

from mindbatch.checkpoint.faults import shown
from mindbatch.checkpoint.folders.tensor_set import TensorSet
from mindbatch.checkpoint.formats.open_file import in_threads

_BEGINNING_BYTES = 4096


def seem_copies(ranks: Sequence[TensorSet]) -> bool:
    """True if several ranks have the same tensors, judged by their first bytes: those of shards differ."""
    first, *others = ranks
    return bool(others) and all(
        _entries(other) == _entries(first)
        and all(_beginning(other, name) == _beginning(first, name) for name in first.tensors)
        for other in others
    )


def copy_faults(ranks: Sequence[TensorSet]) -> list[str]:
    """A line for each tensor that differs between ranks which seem to be copies; everything is read."""
    first, *others = ranks
    pairs = [(other, name) for other in others for name in first.tensors]

    def is_equal(pair: tuple[TensorSet, str]) -> bool:
        other, name = pair
        return first.file(name).has_bytes_of(name, other.file(name), name)

    equal = in_threads(is_equal, pairs)
    return [
        f"{other.file(name).path}: tensor {shown(name)} is not as in {first.file(name).path}; they seem to "
        "be copies of one checkpoint, and one is damaged or of another: give the file that is meant"
        for other, name in pairs
        if not equal[other, name]
    ]


def _entries(rank: TensorSet) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in rank.tensors.items()}


def _beginning(rank: TensorSet, name: str) -> bytes:
    buffer = bytearray(min(_BEGINNING_BYTES, rank.info(name).nbytes))
    rank.read_into(name, 0, memoryview(buffer))
    return bytes(buffer)
