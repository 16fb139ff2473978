"""A tiny model of every model type, for what is promised of all of them."""

from pathlib import Path
from typing import Any

from model_folders import ENCODERS, FIXTURE, dense_cases, descriptions, ragged, write_folder


def _first_of_each() -> dict[str, Path]:
    """By case, the fixture that has it: of each the first case of a type, which may have several forms."""
    every = dict.fromkeys(descriptions(), FIXTURE) | dense_cases()
    every |= dict.fromkeys(descriptions(ENCODERS), ENCODERS)
    first: dict[tuple[str, Path], str] = {}
    for case, path in every.items():
        first.setdefault((descriptions(path)[case]["config"]["model_type"], path), case)
    return {case: path for (_, path), case in first.items()}


TYPE_CASES = _first_of_each()


def description_of(case: str) -> dict[str, Any]:
    """See `model_folders.descriptions`."""
    return descriptions(TYPE_CASES[case])[case]


def config_of(case: str) -> dict[str, Any]:
    """The case's config.json."""
    found: dict[str, Any] = description_of(case)["config"]
    return found


def prompts_of(case: str) -> list[list[int]]:
    """16 prompts of different lengths."""
    return ragged(case, TYPE_CASES[case])


def write_case(folder: Path, case: str) -> Path:
    """The case's model folder."""
    write_folder(folder, description_of(case))
    return folder
