"""Finds the files of an iteration of MindFormers' Checkpoint 2.0.

latest_checkpointed_iteration.txt                     the number of the newest whole iteration
iteration_00000010/metadata.json                      describes the shards; absent where one rank saved
iteration_00000010/PREFIX-model-0000000-0000002.safetensors
iteration_00000010/PREFIX-opt-0000000-0000002.safetensors    the optimizer's, which is left alone
"""

import re
from collections.abc import Collection
from pathlib import Path

from mindbatch.checkpoint.error_lines import shown
from mindbatch.checkpoint.folders.folder_files import file_in, file_names, has_file
from mindbatch.checkpoint.json_object import read_limited
from mindbatch.io.errors import CheckpointError

TRACKER = "latest_checkpointed_iteration.txt"
WEIGHTS = re.compile(r"(?:.+-)?model-(\d{7})-(\d{7})\.safetensors", re.DOTALL)
"""Names of the files of weights: the number of each, and how many there are."""
METADATA = "metadata.json"
COMMON = "common.json"
ADAPTER = "mindformers_adapter_config.json"
_ITERATION = re.compile(r"iteration_(\d{8,18})")
_MAX_DIGITS = 18


def iteration_name(number: int) -> str:
    return f"iteration_{number:08d}"


def holds_weights(file: str) -> bool:
    """True if a file of an iteration holds weights, not the optimizer's state."""
    return WEIGHTS.fullmatch(file) is not None


def iteration_in(folder: Path, names: Collection[str] | None = None) -> Path | None:
    """Finds the iteration to read: the one that the tracker names, or `folder` itself; None if it is none.

    names: names of the entries of `folder`; None lists them.

    Raises:
        CheckpointError: the tracker is damaged, names a missing iteration, or is missing itself.
    """
    names = file_names(folder) if names is None else names
    if TRACKER in names:
        return _tracked(folder)
    if any(map(holds_weights, names)):
        return folder
    if iterations := sorted(name for name in names if _ITERATION.fullmatch(name)):
        raise CheckpointError(
            f"{folder}: has iterations and no {TRACKER} that says which of them is whole; give one of them, "
            f"as {folder / iterations[-1]}"
        )
    return None


def holds_adapter(folder: Path) -> bool:
    """True if `folder` is an adapter that MindFormers 2.1 saved without its base, or has one in it."""
    return has_file(folder, ADAPTER)


def _tracked(folder: Path) -> Path:
    data = read_limited(file_in(folder, TRACKER), 4096)
    text = data.decode("ascii", "replace").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        raise CheckpointError(f"{folder / TRACKER}: holds {shown(text)}; must be the number of an iteration")
    iteration = folder / iteration_name(int(text))
    if not iteration.is_dir():
        raise CheckpointError(f"{folder / TRACKER}: names iteration {text}, and there is no {iteration.name}")
    return iteration


def weight_files(iteration: Path) -> list[Path]:
    """Lists the iteration's files of weights in the order of their numbers.

    Raises:
        CheckpointError: there is none, one is missing, or the iteration holds an adapter alone.
    """
    names = file_names(iteration)
    if ADAPTER in names:
        raise CheckpointError(
            f"{iteration}: holds an adapter alone ({ADAPTER}), which MindFormers saved without its base; "
            "needed are the weights of a whole model, of a training with save_trainable_only: False"
        )
    files = {int(match[1]): (name, int(match[2])) for name in names if (match := WEIGHTS.fullmatch(name))}
    if not files:
        raise CheckpointError(f"{iteration}: no files of weights, PREFIX-model-0000000-0000001.safetensors")
    total = max(count for _, count in files.values())
    if [*sorted(files)] != [*range(total)] or {count for _, count in files.values()} != {total}:
        raise CheckpointError(
            f"{iteration}: has {len(files)} of the {total} files of weights that their names speak of"
        )
    if total > 1 and METADATA not in names:
        raise CheckpointError(
            f"{iteration}: {total} files of weights and no {METADATA}, which says how they fit"
        )
    return [file_in(iteration, files[number][0]) for number in sorted(files)]
