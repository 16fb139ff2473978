"""Prints the parts of a layout, and writes its strategy files to a folder."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mindbatch.checkpoint.strategy.strategy_file import MAX_STRATEGY_BYTES, strategy_in
from mindbatch.config.model_schema import ParallelConfig
from mindbatch.io.amounts import counted
from mindbatch.io.errors import CheckpointError, ConfigError
from mindbatch.io.regular_file import read_regular
from mindbatch.io.screen_text import printable, show_json, show_page
from mindbatch.io.storage import StorageError, write_whole


@dataclass(frozen=True)
class PlanPart:
    """A part of the output: its content as JSON, and the same as a page of text."""

    json: dict[str, Any]
    page: str


FindLayout = Callable[[], PlanPart]
"""Computes a layout with validated settings, and writes its strategy files."""


def show_parts(report: str, first: PlanPart, **others: PlanPart | None) -> None:
    """Prints the pages below each other, or with report=json one object with the others by name."""
    there = {name: part for name, part in others.items() if part is not None}
    if report == "json":
        show_json(first.json | {name: part.json for name, part in there.items()})
    else:
        show_page("\n\n".join(part.page for part in (first, *there.values())))


_SIZES = ("data_parallel", "model_parallel", "pipeline_stage")


def layout_head(model_type: str, parallel: ParallelConfig, paths: Sequence[Path]) -> dict[str, Any]:
    """Makes the JSON of a layout without its tensors. paths: the strategy files."""
    sizes = sizes_json(parallel)
    return {
        "kind": "layout",
        "model_type": model_type,
        **sizes,
        "ranks": math.prod(sizes.values()),
        "strategy_files": [str(path) for path in paths],
    }


def sizes_json(parallel: ParallelConfig) -> dict[str, int]:
    return {name: getattr(parallel, name) for name in _SIZES}


def sizes_line(content: Mapping[str, Any]) -> str:
    """Formats the numbers of ranks in the JSON of a layout."""
    sizes = " x ".join(f"{name} {content[name]}" for name in _SIZES)
    return f"{sizes}: {counted(math.prod(content[name] for name in _SIZES), 'rank')}"


def refuse_other_files(folder: Path, own: Iterable[str]) -> None:
    """Raises ConfigError if the folder has other files than those of the names `own`.

    MindSpore reads all strategy files of a folder as one strategy, so no others must be there.
    """
    if not folder.is_dir():
        return
    others = sorted({path.name for path in folder.iterdir()}.difference(own))
    if others:
        raise ConfigError(
            f"layout.dir={folder}: holds {others[0]}, which is no strategy file of this layout; "
            "give a new folder"
        )


def write_strategies(folder: Path, files: Mapping[str, bytes], replace: bool) -> list[Path]:
    """Writes the files, except those that exist with the same content.

    Raises:
        ConfigError: a file exists with another strategy, and `replace` is False.
    """
    wanted = {folder / name: content for name, content in files.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [path for path in wanted if path.exists()]
        other = [path for path in there if not _says_the_same(path, wanted[path])]
    except OSError as error:
        raise StorageError.writing(folder, error) from error
    if other and not replace:
        raise ConfigError(f"{other[0]}: holds something else; layout.replace=true writes over it")
    for path, content in wanted.items():
        if path in other or path not in there:
            write_whole(path, content)
    return [*wanted]


def _says_the_same(path: Path, content: bytes) -> bool:
    """True if a file has the same strategy, with its parameters in any order."""
    stored = read_regular(path, MAX_STRATEGY_BYTES)
    if stored == content:
        return True
    try:
        old, wanted = strategy_in(stored, path), strategy_in(content, path)
    except CheckpointError:
        return False
    return ({*old.layouts}, old.stage) == ({*wanted.layouts}, wanted.stage)


def strategy_lines(paths: Sequence[str]) -> list[str]:
    """Lists the strategy files and the MindSpore functions that take them."""
    if not paths:
        return ["layout.dir=FOLDER keeps MindSpore's strategy files"]
    lines = [f"strategy file: {printable(path)}" for path in paths]
    if len(paths) == 1:
        return [*lines, "mindspore.transform_checkpoints takes it as dst_strategy_file or src_strategy_file"]
    return [
        *lines,
        "mindspore.merge_pipeline_strategys makes one file of them, for mindspore.transform_checkpoints",
    ]
