"""Folders `rank_0`, `rank_1`, ... of a distributed checkpoint, and which file of each is meant."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from mindbatch.checkpoint.faults import first_lines, raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import file_in, file_names, nothing_readable
from mindbatch.checkpoint.formats.open_file import SUFFIXES
from mindbatch.io.errors import CheckpointError
from mindbatch.io.foreign_formats import foreign_folder

_RANK = re.compile(r"rank_(\d{1,6})")
_SAVED = re.compile(r"(.*)-(\d{1,18})_(\d{1,18})(\.ckpt|\.safetensors)", re.DOTALL)

Step = tuple[int, int]
"""Epoch and step at the end of a checkpoint's name."""


def rank_folders(folder: Path) -> list[Path]:
    """The rank folders by rank; empty when there is none.

    CheckpointError when ranks are missing, or one is there twice (rank_1 and rank_01), is no folder, or is a
    link that leads out.
    """
    names_by_rank: dict[int, list[str]] = {}
    for name in file_names(folder):
        if match := _RANK.fullmatch(name):
            names_by_rank.setdefault(int(match[1]), []).append(name)
    missing = [rank for rank in range(max(names_by_rank, default=-1) + 1) if rank not in names_by_rank]
    faults = [f"{' and '.join(names)} are one rank" for names in names_by_rank.values() if len(names) > 1]
    faults += [
        fault for names in names_by_rank.values() for name in names for fault in _folder_faults(folder, name)
    ]
    if missing:
        ranks = ", ".join(first_lines(missing, str, noun="ranks"))
        faults.append(f"ranks are missing: {ranks}; there must be rank_0 to rank_{max(names_by_rank)}")
    raise_if_any(faults, str(folder))
    return [folder / names_by_rank[rank][0] for rank in range(len(names_by_rank))]


def _folder_faults(home: Path, name: str) -> list[str]:
    """Faults of a rank folder: not a folder, or a link that leads out of `home`."""
    if not (home / name).is_dir():
        return [f"{name} is not a folder; must be one with the files of its rank"]
    target = Path(os.path.realpath(home / name))
    if target.is_relative_to(os.path.realpath(home)):
        return []
    return [f"{name} is a symbolic link to {target}; must stay inside {home}"]


def checkpoint_in(folder: Path) -> tuple[Path, Step | None]:
    """The folder's checkpoint file; of several the newest, by the epoch and step in its name.

    MindSpore and MindFormers name them PREFIX-EPOCH_STEP.ckpt. CheckpointError when there is none, when
    several do not differ by epoch and step alone, or for a link that leads out of the folder.
    """
    names = [name for name in file_names(folder) if name.endswith(SUFFIXES)]
    if not names:
        needed = f"needed is a {' or '.join(SUFFIXES)} file, or give a file of PyTorch itself"
        raise CheckpointError(nothing_readable(folder, "no checkpoint", needed, foreign_folder(folder)))
    saved = {name: match for name in names if (match := _SAVED.fullmatch(name))}
    steps = {name: (int(match[2]), int(match[3])) for name, match in saved.items()}
    if len(names) == 1:
        return file_in(folder, names[0]), steps.get(names[0])
    kinds = {(match[1], match[4]) for match in saved.values()}
    if len(saved) < len(names) or len(kinds) > 1 or len(set(steps.values())) < len(names):
        listed = ", ".join(first_lines(names, shown, limit=4, noun="files"))
        raise CheckpointError(
            f"{folder}: several checkpoint files, {listed}; must be one, or differ by the epoch and step in "
            "PREFIX-EPOCH_STEP.ckpt alone, of which the newest is taken"
        )
    newest = max(steps, key=lambda name: steps[name])
    return file_in(folder, newest), steps[newest]


def step_faults(folder: Path, steps: Iterable[Step | None]) -> list[str]:
    """Fault when the ranks' files are of different steps, as a killed training may leave them."""
    ranks: dict[Step | None, int] = {}
    for rank, step in enumerate(steps):
        ranks.setdefault(step, rank)
    if len(ranks) < 2:
        return []
    shown_steps = [f"rank_{rank} {_shown_step(step)}" for step, rank in ranks.items()]
    listed = ", ".join(first_lines(shown_steps, str, limit=4, noun="steps"))
    return [f"{folder}: the newest files are of different steps: {listed}; must be of one"]


def _shown_step(step: Step | None) -> str:
    return "has none in its name" if step is None else f"epoch {step[0]} step {step[1]}"
