"""Model folders of Hugging Face, and single ranks of them: configuration and weights, checked as a whole."""

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mindbatch.checkpoint.error_lines import (
    MAX_LINES,
    collecting,
    did_you_mean,
    first_lines,
    raise_if_any,
    shown,
)
from mindbatch.checkpoint.folders.folder_files import (
    CONFIG_NAME,
    existing_folder,
    file_names,
    read_configs,
)
from mindbatch.checkpoint.folders.resharded import copied_tensors, rank_tensors
from mindbatch.checkpoint.folders.tensor_set import StoredSegment, TensorSet, model_tensors
from mindbatch.checkpoint.folders.weight_files import rank_folders, weights_in
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, Array, read_values
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.checkpoint.placement.regions import Segment, full_region
from mindbatch.kernels.codes import Codes, CodeType
from mindbatch.parallel.topology import WHOLE, TensorSlice


class StoredWeights(Protocol):
    """Opened tensors by name, each verified against its digest, if it has one, before it is read.

    shard: rank for which every tensor was sharded before it was stored; WHOLE for a full checkpoint.
    stages: number of pipeline stages that the layers were divided over; 1 for all layers.

    CheckpointError for missing names, damage, and files that cannot be read any more.
    """

    @property
    def path(self) -> Path: ...

    @property
    def shard(self) -> TensorSlice: ...

    @property
    def stages(self) -> int: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    def file_name(self, name: str) -> str:
        """The name of the file that holds the tensor, from `path` on."""
        ...

    def info(self, name: str) -> StoredTensor: ...

    def floats(
        self, name: str, *, rows: slice | None = None, columns: slice | None = None, is_widened: bool = True
    ) -> Array:
        """Reads a tensor of FLOAT_DTYPES, or some rows of it, and of a matrix some columns.

        The values are in memory of their own; little more than them is read.

        is_widened: True for float32; False allows the stored type, as `array_type` has it.
        """
        ...


class CodedWeights(ABC):
    """`StoredWeights` of which some matrices are whole numbers with scales."""

    @abstractmethod
    def code_type(self, name: str) -> CodeType | None:
        """The type of a matrix's numbers; None if it is not made of such."""

    @abstractmethod
    def codes(
        self, name: str, outputs: slice, inputs: slice, kind: CodeType, number: int | None = None
    ) -> Codes:
        """Reads some outputs and inputs of a matrix, both given by bounds inside it.

        kind: a `packed_type` of its own type; groups of it begin with the inputs.
        number: that of the matrix in a stack; None for a single matrix.
        """


class ModelFolder(TensorSet):
    """An opened folder: `config`, `generation_config` (None when absent) and tensors by name.

    Opening reads heads only, and checks that other ranks exist. A digests.json verifies the heads at once and
    each tensor when it is first read. Code of the folder never runs. `notes` are lines for the user.
    `quantised` describes how matrices are quantised, None for floats, and `stored_bits` what a number of them
    takes in the files.
    """

    quantised: str | None = None
    stored_bits: float = 0.0

    def __init__(
        self,
        path: str | os.PathLike[str],
        rank: TensorSlice | None = None,
        *,
        stage: int = 0,
        stages: int = 1,
    ) -> None:
        """Opens a whole model, or one rank of the rank folders that `mindbatch reshard` made.

        stage: stage of the rank; each of the `stages` has rank.size folders.

        Raises:
            ConfigError: `path` is not a folder, or was cut for other ranks.
            CheckpointError: lists what is missing or damaged.
        """
        folder = existing_folder(path)
        self.shard, self.stages = rank or WHOLE, stages
        errors: list[str] = []
        opened: TensorSet | None = None
        with collecting(errors):
            self.config, self.generation_config = read_configs(folder)
        with collecting(errors):
            opened = rank_tensors(folder, rank, stage, stages) if rank else model_tensors(folder)
        if errors and opened is not None:
            opened.close()
        raise_if_any(errors)
        assert opened is not None
        super().__init__(folder, opened.files, opened.digests)
        self.notes = code_notes(folder, self.config)

    @property
    def weight_paths(self) -> tuple[Path, ...]:
        return tuple(self.files[name].path for name in sorted(self.files))

    def floats(
        self, name: str, *, rows: slice | None = None, columns: slice | None = None, is_widened: bool = True
    ) -> Array:
        """Reads as `read_values`; a tensor with a digest is read whole the first time, to verify it."""
        return read_values(self.verified(name), name, rows, columns, is_widened=is_widened)

    def stored_segments(self, name: str) -> Iterable[StoredSegment]:
        """Lists the segments of stored tensors that make up a tensor."""
        shape = self.info(name).shape
        return [(self, name, shape, Segment(full_region(shape), full_region(shape)))]


class ComputedFolder(ModelFolder):
    """A folder whose tensors are made when they are read: no bytes of a file are those of one."""

    def are_equal(self, one: str, other: str) -> bool:
        if not {one, other} <= self.tensors.keys():
            return False
        return np.array_equal(self.floats(one), self.floats(other))


def has_weights(home: Path) -> bool:
    return weights_in(file_names(home)) is not None


def is_cut(home: Path) -> bool:
    """True if a folder holds no full model, but rank folders with shards of one."""
    if has_weights(home) or not rank_folders(home):
        return False
    copied = copied_tensors(home)
    if copied is not None:
        copied.close()
    return copied is None


def code_notes(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    if "auto_map" in config:
        notes.append(f"{folder / CONFIG_NAME}: auto_map is ignored; code of a model folder is never executed")
    scripts = [name for name in file_names(folder) if name.endswith(".py")]
    if scripts:
        more = f" and {len(scripts) - 1} more" if len(scripts) > 1 else ""
        notes.append(f"{folder / scripts[0]}{more}: ignored; code of a model folder is never executed")
    return tuple(notes)


def match_tensors(
    expected: Mapping[str, tuple[int, ...]],
    folder: StoredWeights | TensorSet,
    optional_unexpected: Iterable[str] = (),
    dtypes: Collection[str] = FLOAT_DTYPES,
) -> list[str]:
    """Compares a folder's tensors with those of a model; returns about ten error lines, and counts the rest.

    expected: shapes by name.
    optional_unexpected: shell patterns of names that may exist without being needed, as "*.attn.masked_bias".
    dtypes: dtypes that are allowed.
    """
    patterns = tuple(optional_unexpected)
    present = set(folder.names)
    misfits = {
        name: errors
        for name, shape in expected.items()
        if name in present and (errors := _misfits(folder.info(name), shape, dtypes))
    }
    missing = [name for name in expected if name not in present]
    unexpected = [
        name
        for name in folder.names
        if name not in expected and not any(fnmatchcase(name, pattern) for pattern in patterns)
    ]
    wanted = {name: tuple(expected[name]) for name in missing}
    kinds = [
        ([*misfits], lambda name: f"{_label(folder, name)} {misfits[name]}", "tensors that do not fit"),
        (missing, lambda name: _missing(folder, name, expected[name]), "missing tensors"),
        (unexpected, lambda name: _unexpected(folder, name, wanted), "unexpected tensors"),
    ]
    share = MAX_LINES // max(1, sum(bool(names) for names, _, _ in kinds))
    return [line for names, describe, noun in kinds for line in first_lines(names, describe, share, noun)]


def _misfits(info: StoredTensor, shape: tuple[int, ...], dtypes: Collection[str]) -> str:
    errors = []
    if info.shape != tuple(shape):
        errors.append(f"has shape {[*info.shape]}, needed is {[*shape]}")
    if info.dtype not in dtypes:
        errors.append(f"has dtype {info.dtype}, needed is one of {', '.join(dtypes)}")
    return "; ".join(errors)


def _missing(folder: StoredWeights | TensorSet, name: str, shape: tuple[int, ...]) -> str:
    return f"{folder.path}: tensor {shown(name)} is missing; needed with shape {[*shape]}"


def _unexpected(folder: StoredWeights | TensorSet, name: str, wanted: Mapping[str, tuple[int, ...]]) -> str:
    shape = folder.info(name).shape
    near = did_you_mean(name, [candidate for candidate, needed in wanted.items() if needed == shape])
    return f"{_label(folder, name)} of shape {[*shape]} is not part of this model{near}"


def _label(folder: StoredWeights | TensorSet, name: str) -> str:
    return f"{folder.path / folder.file_name(name)}: tensor {shown(name)}"
