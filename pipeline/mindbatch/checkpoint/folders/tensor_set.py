"""Opens the tensors of a source: a model folder, one file, or a folder of rank folders."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

from mindbatch.checkpoint.error_lines import collecting, did_you_mean, raise_if_any, shown
from mindbatch.checkpoint.folders.digests import Digests, damage, read_digests, tensor_digest
from mindbatch.checkpoint.folders.folder_files import existing_folder, file_names
from mindbatch.checkpoint.folders.foreign_folders import foreign_file
from mindbatch.checkpoint.folders.iteration_files import iteration_in, weight_files
from mindbatch.checkpoint.folders.weight_files import (
    TrainingStep,
    checkpoint_in,
    open_shards,
    open_weights,
    rank_folders,
    step_errors,
    weights_in,
)
from mindbatch.checkpoint.formats.open_file import allow_open_files, in_threads, open_tensor_file
from mindbatch.checkpoint.formats.safetensors import MAP_NAME
from mindbatch.checkpoint.formats.stored import StoredFile, StoredTensor
from mindbatch.checkpoint.placement.plan import first_locations
from mindbatch.checkpoint.placement.regions import RankFiles, Segment, Shape
from mindbatch.io.closing import Closing, closed_on_error
from mindbatch.io.errors import CheckpointError

HUGGING_FACE, UNIFIED, SINGLE_FILE, RANKS = "huggingface", "unified", "file", "ranks"
ITERATION = "iteration"


class TensorSet(Closing):
    """The tensors of one full checkpoint, or of one rank; `tensors` in the order of files and data.

    path: path that was opened.
    files: opened files by name.
    file_of: name of the file that holds a tensor.
    texts: strings that a .ckpt holds besides tensors.
    digests: content of the digests.json beside the files, if there is one.
    """

    def __init__(
        self,
        path: Path,
        files: Mapping[str, StoredFile],
        digests: Digests | None = None,
        step: TrainingStep | None = None,
    ) -> None:
        self.path = path
        self.files = files
        self.digests = digests
        self.step = step
        self._verified: set[str] = set()
        self.file_of = {name: key for key, file in files.items() for name in file.tensors}
        self.tensors = {name: info for file in files.values() for name, info in file.tensors.items()}
        self.texts = {name: text for file in files.values() for name, text in file.texts.items()}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.tensors)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def identity(self) -> Any:
        """Identity of the tensors as JSON: digests if there are any, else sizes and times."""
        if self.digests is not None:
            content = json.dumps([self.digests.files, self.digests.heads], sort_keys=True)
            return {"digests": hashlib.sha256(content.encode()).hexdigest()}
        return {"files": {name: [*file.stamp, file.head_digest()] for name, file in self.files.items()}}

    def stamps(self) -> dict[Path, tuple[int, int]]:
        """Size and time of the files, as in `Source.stamps`."""
        if self.digests is not None:
            return {}
        return {file.path: file.stamp for file in self.files.values()}

    def info(self, name: str) -> StoredTensor:
        self.file(name)
        return self.tensors[name]

    def file(self, name: str) -> StoredFile:
        """The file that holds the tensor. CheckpointError when there is none of that name."""
        try:
            return self.files[self.file_of[name]]
        except KeyError:
            near = did_you_mean(name, self.tensors)
            raise CheckpointError(f"{self.path}: no tensor {shown(name)}{near}") from None

    def file_name(self, name: str) -> str:
        """The file that holds the tensor, from the path on. CheckpointError when none does."""
        return str(self.file(name).path.relative_to(self.path))

    def are_equal(self, one: str, other: str) -> bool:
        """True if both tensors exist with the same shape and numbers, whatever their dtypes."""
        if not {one, other} <= self.tensors.keys():
            return False
        first, second = self.file(one), self.file(other)
        if first.info(one).shape != second.info(other).shape:
            return False
        if first.info(one).dtype == second.info(other).dtype:
            return first.has_bytes_of(one, second, other)
        # With NumPy, which `inspect` does not need.
        from mindbatch.checkpoint.formats.floats import have_equal_floats

        return have_equal_floats((first, one), (second, other))

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        self.file(name).read_into(name, start, buffer)

    def digest(self, name: str) -> str | None:
        """The tensor's recorded digest, None where there is no digests.json."""
        return self.digests.files[self.file_of[name]][name] if self.digests else None

    def verified(self, name: str) -> StoredFile:
        """Returns the tensor's file, after the tensor has been read once against its digest, if there is one.

        CheckpointError when it is damaged.
        """
        file = self.file(name)
        if self.digests is not None and name not in self._verified:
            raise_if_any(self.damages({name: tensor_digest(file, name)}))
            self._verified.add(name)
        return file

    def computed_digests(self, names: Iterable[str]) -> dict[str, str]:
        """The digests of these tensors as they are now; reads them, in threads."""
        return in_threads(lambda name: tensor_digest(self.file(name), name), names)

    def checked_digests(self, names: Iterable[str]) -> dict[str, str]:
        """Computes digests; CheckpointError names tensors that are not as digests.json says."""
        digests = self.computed_digests(names)
        raise_if_any(self.damages(digests))
        return digests

    def damages(self, digests: Mapping[str, str]) -> list[str]:
        """A line for each computed digest that is not the recorded one, if there is one."""
        recorded = {name: self.digest(name) or digest for name, digest in digests.items()}
        damaged = (name for name, digest in digests.items() if digest != recorded[name].lower())
        return [damage(self.file(name), name) for name in damaged]

    def checksum_errors(self) -> list[str]:
        """Reads the files that have a CRC-32, and lists those whose bytes have another."""
        return [line for file in self.files.values() for line in _crc_errors(file)]

    def close(self) -> None:
        for file in self.files.values():
            file.close()


StoredSegment = tuple[TensorSet, str, Shape, Segment]
"""Opened tensors, the name of one of them, the view in which its regions are counted, and a segment of it."""


def stored_segments(files: RankFiles, sets: Sequence[TensorSet]) -> dict[str, list[StoredSegment]]:
    """Lists the segments that make up each full tensor, each from the lowest rank that has it.

    sets: opened tensors of each rank.
    """
    return {
        tensor: [
            (sets[rank], name, files.ranks[rank][name].shard.view, segment)
            for rank, name, segment in by_region.values()
        ]
        for tensor, by_region in first_locations(files).items()
    }


@dataclass(frozen=True)
class Source(Closing):
    """An opened checkpoint of a kind above: one TensorSet, or one for each rank or file of an iteration."""

    path: Path
    kind: str
    ranks: list[TensorSet]

    def dtype(self, name: str) -> str:
        """The dtype of a tensor; all ranks that have it agree (see dtype_errors)."""
        return next(rank.tensors[name].dtype for rank in self.ranks if name in rank.tensors)

    def dtype_errors(self, is_unused: Callable[[str], bool] = lambda name: False) -> list[str]:
        """Lists tensors, but for unused ones, that ranks have in several dtypes."""
        errors: list[str] = []
        first: dict[str, tuple[str, Path]] = {}
        for rank in self.ranks:
            for name, info in rank.tensors.items():
                path = rank.file(name).path
                dtype, other = first.setdefault(name, (info.dtype, path))
                if dtype != info.dtype and not is_unused(name):
                    errors.append(f"{path}: tensor {shown(name)} is {info.dtype}; it is {dtype} in {other}")
        return errors

    def identity(self) -> Any:
        """Identity of the source as JSON."""
        return [rank.identity() for rank in self.ranks]

    def stamps(self) -> dict[Path, tuple[int, int]]:
        """Returns size and time (`StoredFile.stamp`) of files without digests, to see later changes."""
        return {path: stamp for rank in self.ranks for path, stamp in rank.stamps().items()}

    def check_sums(self) -> None:
        """Checks the CRCs of files without digests. CheckpointError names every changed file."""
        sets = (rank for rank in self.ranks if rank.digests is None)
        raise_if_any([line for rank in sets for line in rank.checksum_errors()])

    def close(self) -> None:
        for tensors in self.ranks:
            tensors.close()


def open_source(path: str | os.PathLike[str]) -> Source:
    """Opens a Hugging Face folder, a file of tensors, a folder with a .safetensors or .ckpt, rank folders, or
    an iteration of MindFormers' Checkpoint 2.0.

    A folder that MindSpore's unified_safetensors has made is opened like one of Hugging Face's shards.

    Raises:
        ConfigError: there is nothing at the path.
        CheckpointError: lists what is damaged, unsafe, missing or ambiguous.
    """
    path = Path(path)
    if path.is_file():
        if reason := foreign_file(path):
            raise CheckpointError(f"{path}: {reason}")
        return Source(path, SINGLE_FILE, [_single(path, None)])
    folder = existing_folder(path)
    names = file_names(folder)
    if weights_in(names) is not None:
        return Source(folder, HUGGING_FACE, [model_tensors(folder)])
    if ranks := rank_folders(folder):
        source = Source(folder, RANKS, _all_opened(ranks, lambda rank: _single(*checkpoint_in(rank))))
        with closed_on_error(source):
            raise_if_any(step_errors(folder, (tensors.step for tensors in source.ranks)))
        return source
    if (iteration := iteration_in(folder, names)) is not None:
        return Source(iteration, ITERATION, shard_sets(iteration))
    if MAP_NAME in names:
        return Source(
            folder, UNIFIED, [_with_digests(folder, open_shards(folder, MAP_NAME), others_allowed=True)]
        )
    return Source(folder, SINGLE_FILE, [_single(*checkpoint_in(folder))])


def shard_sets(iteration: Path) -> list[TensorSet]:
    """Opens each file of weights of an iteration. CheckpointError as for `weight_files`."""
    return _all_opened(weight_files(iteration), lambda path: _single(path, None))


def _all_opened(paths: Sequence[Path], opened: Callable[[Path], TensorSet]) -> list[TensorSet]:
    """Opens all paths, or raises the errors of all."""
    allow_open_files(len(paths))
    sets: list[TensorSet] = []
    errors: list[str] = []
    for path in paths:
        with collecting(errors):
            sets.append(opened(path))
    if errors:
        for tensors in sets:
            tensors.close()
    raise_if_any(errors)
    return sets


def _single(path: Path, step: TrainingStep | None) -> TensorSet:
    return _with_digests(path, {path.name: open_tensor_file(path)}, others_allowed=True, step=step)


def model_tensors(folder: Path) -> TensorSet:
    return _with_digests(folder, open_weights(folder))


def _with_digests(
    path: Path,
    files: Mapping[str, StoredFile],
    *,
    others_allowed: bool = False,
    step: TrainingStep | None = None,
) -> TensorSet:
    """Makes a TensorSet with its digests of opened files; closes these if the digests do not match."""
    tensors = TensorSet(path, files, step=step)
    with closed_on_error(tensors):
        folder = path.parent if path.is_file() else path
        tensors.digests = read_digests(folder, files, others_allowed=others_allowed)
    return tensors


def _crc_errors(file: StoredFile) -> list[str]:
    if file.crc is None:
        return []
    end, expected = file.crc
    checksum = 0
    for chunk in file.byte_chunks(0, end):
        checksum = crc32(chunk, checksum)
    if checksum == expected:
        return []
    return [f"{file.path}: damaged: its CRC-32 is {checksum:08x}, recorded is {expected:08x}"]


_BEGINNING_BYTES = 4096


def seem_copies(ranks: Sequence[TensorSet]) -> bool:
    """True if several ranks have the same tensors, judged by their first bytes: those of shards differ."""
    first, *others = ranks
    return bool(others) and all(
        other.shapes == first.shapes
        and all(_beginning(other, name) == _beginning(first, name) for name in first.tensors)
        for other in others
    )


def copy_errors(ranks: Sequence[TensorSet]) -> list[str]:
    """Reads ranks that seem to be copies, and lists the tensors that differ."""
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


def _beginning(rank: TensorSet, name: str) -> tuple[str, bytes]:
    info = rank.info(name)
    buffer = bytearray(min(_BEGINNING_BYTES, info.nbytes))
    rank.read_into(name, 0, memoryview(buffer))
    return info.dtype, bytes(buffer)
