"""A tiny model of every model type, for what is promised of all of them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from model_folders import (
    CONTEXTS,
    ENCODERS,
    FIXTURE,
    MINDFORMERS_FIXTURE,
    dense_cases,
    descriptions,
    ragged,
    write_folder,
)

from mindbatch.model_spec.registry import describe

ALL_CASES = (
    dict.fromkeys(descriptions(), FIXTURE)
    | dense_cases()
    | dict.fromkeys(descriptions(ENCODERS), ENCODERS)
    | dict.fromkeys(descriptions(CONTEXTS), CONTEXTS)
    | {"telechat": MINDFORMERS_FIXTURE}
)
"""By case, the fixture that has it."""


def first_of_each(cases: Iterable[str]) -> list[str]:
    """The first case of each type in each fixture: a type may have several forms."""
    first: dict[tuple[str, Path], str] = {}
    for case in cases:
        first.setdefault((type_of(case), ALL_CASES[case]), case)
    return [*first.values()]


def description_of(case: str) -> dict[str, Any]:
    """See `model_folders.descriptions`."""
    return descriptions(ALL_CASES[case])[case]


def config_of(case: str) -> dict[str, Any]:
    """The case's config.json."""
    found: dict[str, Any] = description_of(case)["config"]
    return found


def type_of(case: str) -> str:
    """Its model type: two of them have the same name in config.json."""
    return describe(config_of(case)).model_type


def prompts_of(case: str) -> list[list[int]]:
    """16 prompts of different lengths."""
    return ragged(case, ALL_CASES[case])


def write_case(folder: Path, case: str) -> Path:
    """The case's model folder."""
    write_folder(folder, description_of(case))
    return folder


TYPE_CASES = first_of_each(ALL_CASES)
