"""Reads folders that a reshard has made: reshard.json, the marker of a finished one, and a rank's tensors."""

import os
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import has_file
from mindbatch.checkpoint.folders.tensor_set import TensorSet, open_source, seem_copies
from mindbatch.checkpoint.folders.weight_files import RANK_FOLDER, rank_folders
from mindbatch.checkpoint.json_object import read_json_object
from mindbatch.io.closing import closed_on_error
from mindbatch.io.error_lines import text_override
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.parallel.topology import TensorSlice

MARKER_NAME = "reshard.json"
"""Written last: a folder that has it is whole."""

JOURNAL_NAME = "reshard.journal"
"""In a folder while it is made."""

MERGED_KEY = "adapters"
"""In the settings: the digests of all adapters that were ever merged, each with its scaling."""

_MAX_MARKER_BYTES = 100_000_000
_PLAIN = re.compile(r"[\w./@+-]+")
_RANKS = (
    "holds rank folders of a checkpoint and no config.json; make a model of them, with the folder of its "
    "config.json and tokenizer: `{command}`"
)


@dataclass(frozen=True)
class Marker:
    """Identity and settings of the reshard that made a folder; all its files, with sizes that are known."""

    identity: str
    settings: Mapping[str, Any]
    files: Mapping[str, int | None]

    def changed(self, folder: Path) -> list[str]:
        """Lists the files that are missing from the folder, or have other sizes."""
        return [name for name, size in self.files.items() if not _is_unchanged(folder / name, size)]


def read_marker(folder: Path) -> Marker | None:
    """Reads the folder's marker; None if there is none, or another file has its name."""
    try:
        content = read_json_object(folder / MARKER_NAME, _MAX_MARKER_BYTES)
    except (CheckpointError, OSError):
        return None
    match content:
        case {"identity": str(identity), "settings": dict(settings), "files": dict(files)}:
            sizes = {name: size if type(size) is int else None for name, size in files.items()}
            return Marker(identity, settings, sizes)
    return None


def noted_settings(source: Path) -> Mapping[str, Any]:
    """Reads the settings of the reshard that made a folder or file; empty if no reshard did."""
    marker = read_marker(source if source.is_dir() else source.parent)
    if marker is None or not (source.is_dir() or source.name in marker.files):
        return {}
    return marker.settings


def merged_before(source: Path) -> dict[str, float]:
    """Reads which adapters were merged into a checkpoint by reshards, with their scalings."""
    noted = noted_settings(source).get(MERGED_KEY)
    if not isinstance(noted, dict):
        return {}
    return {digest: float(scaling) for digest, scaling in noted.items() if type(scaling) in (int, float)}


def refuse_merged_before(digests: Mapping[str, str], source: Path) -> None:
    """Raises ConfigError if the checkpoint has one of the adapters already: none is added twice.

    digests: `LoraPlan.digest` of each adapter, by the key=value that names it.
    """
    before = merged_before(source)
    errors = [
        f"{adapter}: {source} has this adapter merged already, with scaling {before[digest]:g} "
        f"({MARKER_NAME} says so); it would be added twice"
        for adapter, digest in digests.items()
        if digest in before
    ]
    if errors:
        raise ConfigError(errors)


def _is_unchanged(path: Path, size: int | None) -> bool:
    try:
        return path.is_file() and size in (None, path.stat().st_size)
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return False


def rank_tensors(home: Path, needed: TensorSlice, stage: int, stages: int) -> TensorSet:
    """Opens the tensors of one rank of a stage.

    Raises:
        ConfigError: the folder was made for other numbers of ranks or stages.
        CheckpointError: it is not finished, ranks are missing, or files are damaged.
    """
    if has_file(home, JOURNAL_NAME):
        raise CheckpointError(f"{home}: not finished ({JOURNAL_NAME} exists); run the same reshard again")
    ranks = rank_folders(home)
    if not ranks:
        raise CheckpointError(f"{home}: no rank_0, rank_1 ...; `mindbatch reshard` makes them")
    marker = read_marker(home)
    settings = marker.settings if marker else {}
    of_names = _names_errors(settings)
    if of_cut := _cut_errors(home, settings, len(ranks), (needed.size, stages), fits=not of_names):
        raise ConfigError(f"{home}: {error}" for error in [*of_names, *of_cut])
    raise_if_any(of_names, str(home))
    if len(ranks) != needed.size * stages:
        raise CheckpointError(
            f"{home}: has {len(ranks)} of the {needed.size * stages} ranks that {MARKER_NAME} speaks of; "
            "rank folders are missing"
        )
    source = open_source(ranks[stage * needed.size + needed.rank])
    with closed_on_error(source):
        source.check_sums()
    return source.ranks[0]


def copied_tensors(home: Path) -> TensorSet | None:
    """Opens the first rank if the rank folders hold copies of one whole checkpoint; None if they do not.

    Data-parallel jobs of MindFormers save and read such folders, one for each rank.

    Raises:
        CheckpointError: lists what is missing or damaged.
    """
    if read_marker(home) is not None or len(rank_folders(home)) < 2:
        return None
    source = open_source(home)
    with closed_on_error(source):
        first, *others = source.ranks
        is_copied = seem_copies(source.ranks)
        raise_if_any(first.checksum_errors() if is_copied and first.digests is None else [])
    for tensors in others if is_copied else source.ranks:
        tensors.close()
    return first if is_copied else None


def _names_errors(settings: Mapping[str, Any]) -> list[str]:
    names = settings.get("names", "hf")
    if names == "hf":
        return []
    return [f"has names={shown(names)}; needed are those of Hugging Face, target.names=hf"]


def _cut_errors(
    home: Path, settings: Mapping[str, Any], num_ranks: int, requested: tuple[int, int], *, fits: bool
) -> list[str]:
    """Lists errors of a folder sharded for other ranks; without a marker by the number of folders.

    requested: model-parallel ranks of a stage, and stages. fits: False if the folder has other errors.
    """
    whole = f"make a whole one: `{reshard_command(home)}`"
    if not settings:
        if num_ranks == requested[0] * requested[1]:
            return []
        count_line = f"has {num_ranks} rank folders and no {MARKER_NAME} that says how they were cut"
        return [f"{count_line}; requested: {_shown_cut(*requested)}; {whole}"]
    cut = (
        settings.get("model_parallel", num_ranks // requested[1]),
        settings.get("pipeline_stage", requested[1]),
    )
    if cut == requested:
        return []
    keys = f"give {_parallel_keys(*cut)}, or " if fits else ""
    return [f"was cut for {_shown_cut(*cut)}; requested: {_shown_cut(*requested)}; {keys}{whole}"]


def _shown_cut(size: Any, stages: Any) -> str:
    if stages == 1:
        return f"{shown(size)} rank{'' if size == 1 else 's'} (model_parallel={shown(size)})"
    return f"{shown(stages)} stages x {shown(size)} slices (pipeline_stage x model_parallel)"


def _parallel_keys(size: Any, stages: Any) -> str:
    stages_key = "" if stages == 1 else f" parallel.pipeline_stage={shown(stages)}"
    return f"parallel.model_parallel={shown(size)}{stages_key}"


def ranks_without_config(folder: Path) -> str | None:
    """Describes a folder of rank folders alone, and the command that makes a model of it; None for others."""
    with suppress(OSError):
        if any(map(RANK_FOLDER.fullmatch, os.listdir(folder))):
            return _RANKS.format(command=reshard_command(folder))
    return None


def reshard_command(folder: Path) -> str:
    keys = {"source": str(folder)}
    if not (folder / "config.json").is_file():
        above = folder.parent
        keys["source_config"] = str(above) if (above / "config.json").is_file() else "MODEL_FOLDER"
    if isinstance(strategy := noted_settings(folder).get("strategy"), str):  # of transform_ckpt.py
        keys["source_strategy"] = strategy
    keys["target.dir"] = "whole" if not Path("whole").exists() else f"{folder.name}_whole"
    return f"mindbatch reshard {' '.join(_override(key, text) for key, text in keys.items())}"


def _override(key: str, text: str) -> str:
    return f"{key}={text}" if _PLAIN.fullmatch(text) else shlex.quote(text_override(key, text))
