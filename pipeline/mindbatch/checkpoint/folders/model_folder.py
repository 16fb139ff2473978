"""Model folders of Hugging Face, and single ranks of them: configuration and weights, checked as a whole."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from mindbatch.checkpoint.faults import collecting, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import (
    CONFIG_NAME,
    existing_folder,
    file_names,
    has_file,
    read_configs,
)
from mindbatch.checkpoint.folders.rank_folders import rank_folders
from mindbatch.checkpoint.folders.reshard_marker import JOURNAL_NAME, MARKER_NAME, read_marker
from mindbatch.checkpoint.folders.tensor_set import TensorSet, model_tensors, open_source
from mindbatch.checkpoint.folders.weight_files import weights_in
from mindbatch.checkpoint.formats.floats import Array, FloatArray, read_float32, read_floats, read_stored
from mindbatch.checkpoint.formats.stored import StoredTensor
from mindbatch.io.closing import Closing
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.io.foreign_formats import reshard_command
from mindbatch.parallel.topology import WHOLE, TensorSlice

_WHOSE = {"hf": "those of Hugging Face", "mindformers": "those of MindFormers"}


class StoredShape(Protocol):
    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class StoredWeights(Protocol):
    """Opened tensors by name, each verified against its digest, if it has one, before its values are given.

    shard: the rank for which every tensor was cut before it was stored; WHOLE for a full checkpoint.
    stages: into so many pipeline stages the layers were cut; 1 for all layers.
    Raises CheckpointError for names that are not there, damage, and files that cannot be read any more.
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

    def info(self, name: str) -> StoredShape: ...

    def floats(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> FloatArray:
        """The values of a tensor of FLOAT_DTYPES, or those of some rows, and of a matrix some columns.

        They are in memory of their own, and of a file little more is read than what is asked for.
        """
        ...

    def packable(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> Array:
        """Reads float32, float16 or the bits of bfloat16 (uint16), whichever takes no conversion."""
        ...


class ModelFolder(Closing):
    """An opened folder: `config`, `generation_config` (None when absent) and tensors by name.

    Opening reads headers only; of other ranks only the presence is looked at. With a digests.json what is
    around the tensors is verified at once, and each tensor when it is first read. No code of it ever runs;
    `notes` are remarks for the user, one line each. `quantised` is how matrices are stored; None for floats.
    """

    quantised: str | None = None

    def __init__(
        self,
        path: str | os.PathLike[str],
        rank: TensorSlice | None = None,
        *,
        stage: int = 0,
        stages: int = 1,
        names: str = "hf",
    ) -> None:
        """Opens a whole model, or one rank of the rank folders that `mindbatch reshard` made.

        stage: the rank's; each of the `stages` has rank.size folders.
        names: those of the rank's tensors, as `target.names` of the reshard.

        Raises:
            ConfigError: `path` is not a folder, or was cut for other ranks.
            CheckpointError: lists what is missing or damaged.
        """
        self.path = existing_folder(path)
        self.shard, self.stages = rank or WHOLE, stages
        faults: list[str] = []
        with collecting(faults):
            self.config, self.generation_config = read_configs(self.path)
        with collecting(faults):
            self._tensors = (
                model_tensors(self.path)
                if rank is None
                else _rank_tensors(self.path, rank, (stage, stages), names)
            )
        if faults and hasattr(self, "_tensors"):
            self.close()
        raise_if_any(faults)
        self._verified: set[str] = set()
        self.notes = code_notes(self.path, self.config)

    @property
    def names(self) -> tuple[str, ...]:
        return self._tensors.names

    @property
    def weight_paths(self) -> tuple[Path, ...]:
        """The files that hold the tensors, sorted by name."""
        return tuple(self._tensors.files[name].path for name in sorted(self._tensors.files))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return self._tensors.nbytes

    def file_name(self, name: str) -> str:
        """The file that holds the tensor, from the folder on. CheckpointError when none does."""
        return str(self._tensors.file(name).path.relative_to(self.path))

    def info(self, name: str) -> StoredTensor:
        """The tensor's dtype, shape and place. CheckpointError when there is none of that name."""
        return self._tensors.info(name)

    def are_equal(self, one: str, other: str) -> bool:
        """True if both are stored with the same shape and numbers."""
        return self._tensors.are_equal(one, other)

    def has(self, name: str) -> bool:
        return name in self._tensors.tensors

    def floats(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> FloatArray:
        """Reads as read_float32, verified: against a digest the whole tensor is read, whatever is asked."""
        self._check_once(name)
        return read_float32(self._tensors.file(name), name, rows, columns)

    def packable(self, name: str, *, rows: slice | None = None, columns: slice | None = None) -> Array:
        """Reads as read_floats, verified as `floats` are."""
        self._check_once(name)
        return read_floats(self._tensors.file(name), name, rows, columns)

    def stored(self, name: str) -> Array:
        """A whole tensor as `array_type` of its dtype has it, verified."""
        self._check_once(name)
        return read_stored(self._tensors.file(name), name)

    def _check_once(self, name: str) -> None:
        if name not in self._verified:
            self._tensors.check(name)
            self._verified.add(name)

    def close(self) -> None:
        self._tensors.close()


def has_weights(home: Path) -> bool:
    """True if a folder holds a full model as Hugging Face's do."""
    return weights_in(file_names(home)) is not None


def is_cut(home: Path) -> bool:
    """True if a folder has rank folders and no full model."""
    return not has_weights(home) and bool(rank_folders(home))


def _rank_tensors(home: Path, needed: TensorSlice, place: tuple[int, int], names: str) -> TensorSet:
    """The tensors of one rank, when all ranks are there and were cut for so many.

    place: the rank's stage, and the number of stages.
    """
    if has_file(home, JOURNAL_NAME):
        raise CheckpointError(f"{home}: not finished ({JOURNAL_NAME} is there); run the same reshard again")
    ranks = rank_folders(home)
    if not ranks:
        raise CheckpointError(f"{home}: no rank_0, rank_1 ...; `mindbatch reshard` makes them")
    marker, (stage, stages) = read_marker(home), place
    settings = marker.settings if marker else {}
    of_names = _names_faults(settings, names)
    if marker is None:
        _refuse_copies(home)
    if of_cut := _cut_faults(home, settings, len(ranks), (needed.size, stages), fits=not of_names):
        raise ConfigError(f"{home}: {fault}" for fault in [*of_names, *of_cut])
    raise_if_any(of_names, str(home))
    if len(ranks) != needed.size * stages:
        raise CheckpointError(
            f"{home}: has {len(ranks)} of the {needed.size * stages} ranks that {MARKER_NAME} speaks of; "
            "rank folders are missing"
        )
    source = open_source(ranks[stage * needed.size + needed.rank])
    try:
        source.check_sums()
    except CheckpointError:
        source.close()
        raise
    return source.ranks[0]


def _refuse_copies(home: Path) -> None:
    """ConfigError where the ranks hold no slices."""
    from mindbatch.checkpoint.folders.rank_copies import seem_copies  # few folders have ranks

    with open_source(home) as source:
        if seem_copies(source.ranks):
            raise ConfigError(
                f"{home}: its {len(source.ranks)} rank folders hold copies of one checkpoint; make one model "
                f"of them: `{reshard_command(home)}`"
            )


def _names_faults(settings: Mapping[str, Any], needed: str) -> list[str]:
    names = settings.get("names", needed)
    if names == needed:
        return []
    return [f"has names={shown(names)}; needed are {_WHOSE[needed]}, target.names={needed}"]


def _cut_faults(
    home: Path, settings: Mapping[str, Any], num_ranks: int, asked: tuple[int, int], *, fits: bool
) -> list[str]:
    """Faults of a folder cut for other ranks; without a marker the number of folders counts.

    asked: model-parallel ranks of a stage, and stages. fits: whether the folder is right but for its cut.
    """
    whole = f"make a whole one: `{reshard_command(home)}`"
    if not settings:
        if num_ranks == asked[0] * asked[1]:
            return []
        count_line = f"has {num_ranks} rank folders and no {MARKER_NAME} that says how they were cut"
        return [f"{count_line}; asked for: {_shown_cut(*asked)}; {whole}"]
    cut = settings.get("model_parallel", num_ranks // asked[1]), settings.get("pipeline_stage", asked[1])
    if cut == asked:
        return []
    keys = f"give {_parallel_keys(*cut)}, or " if fits else ""
    return [f"was cut for {_shown_cut(*cut)}; asked for: {_shown_cut(*asked)}; {keys}{whole}"]


def _shown_cut(size: Any, stages: Any) -> str:
    if stages == 1:
        return f"{shown(size)} rank{'' if size == 1 else 's'} (model_parallel={shown(size)})"
    return f"{shown(stages)} stages x {shown(size)} slices (pipeline_stage x model_parallel)"


def _parallel_keys(size: Any, stages: Any) -> str:
    stages_key = "" if stages == 1 else f" parallel.pipeline_stage={shown(stages)}"
    return f"parallel.model_parallel={shown(size)}{stages_key}"


def code_notes(folder: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    """Notes on code in the folder, which is never executed."""
    notes = []
    if "auto_map" in config:
        notes.append(f"{folder / CONFIG_NAME}: auto_map is ignored; code of a model folder is never executed")
    scripts = [name for name in file_names(folder) if name.endswith(".py")]
    if scripts:
        more = f" and {len(scripts) - 1} more" if len(scripts) > 1 else ""
        notes.append(f"{folder / scripts[0]}{more}: ignored; code of a model folder is never executed")
    return tuple(notes)
