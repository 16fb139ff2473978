"""`mindbatch inspect`: what is in a checkpoint of any format, or in a strategy file."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

from mindbatch.checkpoint.faults import raise_if_any, shown
from mindbatch.checkpoint.folders.digests import DIGESTS_NAME
from mindbatch.checkpoint.folders.folder_files import CONFIG_NAME, file_names, has_file, read_config
from mindbatch.checkpoint.folders.rank_copies import seem_copies
from mindbatch.checkpoint.folders.tensor_set import HUGGING_FACE, RANKS, Source, TensorSet, open_source
from mindbatch.checkpoint.strategy.strategy import Strategy, TensorLayout
from mindbatch.checkpoint.strategy.strategy_file import is_strategy_file, read_strategy
from mindbatch.config.path_faults import checkpoint_fault, settled
from mindbatch.config.schema import TaskConfig, option
from mindbatch.io.errors import EXIT_DONE, CheckpointError, ConfigError
from mindbatch.io.foreign_formats import foreign_folder
from mindbatch.io.screen_text import show, show_json
from mindbatch.models.foreign_models import QUANTIZATION
from mindbatch.models.registry import chosen_type
from mindbatch.tasks.inspect_page import RankContent, TensorRow, source_page, strategy_page
from mindbatch.tasks.inspect_run import HowItRuns, how_it_runs, nearest_lines

_COPIES = "the rank folders hold copies of one checkpoint: their tensors begin alike; reshard reads the first"
NO_CHECKPOINT = "path: must be given: mindbatch inspect PATH, a file or folder"


@dataclass
class InspectConfig(TaskConfig):
    """The keys of `mindbatch inspect`."""

    positional: ClassVar[tuple[str, ...]] = ("path",)

    path: str | None = option(
        None, "a .safetensors or .ckpt file, a model folder, rank folders, or a strategy file", is_path=True
    )
    filter: str | None = option(None, "show the names that match this pattern, such as *.bias")
    limit: int = option(200, "most tensors shown; all are counted", minimum=0)
    digests: bool = option(False, "compute the SHA-256 of every tensor, and compare it with digests.json")
    format: str = option("text", "text or json", choices=("text", "json"))
    verbose: bool = option(False, "show tracebacks")

    def settle_paths(self) -> list[str]:
        faults = [] if self.path is not None else [NO_CHECKPOINT]
        self.path = settled("path", self.path, checkpoint_fault, faults, is_model=True)
        return faults


def run(config: InspectConfig) -> int:
    """Runs the task; CheckpointError after the page when digests show damage."""
    assert config.path is not None
    path = Path(config.path)
    if _holds_strategies(path):
        _show_strategy(config, read_strategy(path))
        return EXIT_DONE
    reasons, stored_as = _why_not_run(path), None
    try:
        stored_as = None if reasons else _quantised_as(path)
        with open_source(path) as source:
            ranks = [_content(tensors, config) for tensors in source.ranks]
            has_copies = source.kind == RANKS and seem_copies(source.ranks)
    except CheckpointError as error:
        raise CheckpointError(dict.fromkeys([*reasons, *error.faults])) from None
    how = None
    if not reasons and source.kind == HUGGING_FACE and _says_what_it_is(path):
        how, reasons = _how_it_runs(path)
    if config.format == "json":
        quantised = {} if stored_as is None else {"quantised": stored_as}
        runs = {} if how is None else {"runs": how.to_json()}
        show_json(_source_json(source, ranks, config.limit) | quantised | runs | {"not_run": reasons})
    else:
        closing = [*(how.lines() if how else ()), *map("not run by this version: {}".format, reasons)]
        closing += nearest_lines(path) if reasons else ()
        closing += [_COPIES] if has_copies else []
        show(source_page(source, ranks, closing, config.limit, config.digests, config.filter, stored_as))
    raise_if_any([fault for rank in ranks for fault in rank.faults])
    return EXIT_DONE


def _says_what_it_is(path: Path) -> bool:
    return has_file(path, CONFIG_NAME) and "model_type" in read_config(path)


def _how_it_runs(path: Path) -> tuple[HowItRuns | None, list[str]]:
    """Determines how a model folder runs, or the errors for which it does not."""
    try:
        return how_it_runs(path), []
    except (CheckpointError, ConfigError) as error:
        return None, [*error.faults]


def _holds_strategies(path: Path) -> bool:
    """True if the file, or every file of the folder that may be one, is a strategy file."""
    if path.is_file():
        return path.suffix in (".ckpt", ".json") and is_strategy_file(path)
    if not path.is_dir():
        raise CheckpointError(f"{path}: not a regular file; must be a file or a folder")
    files = [path / name for name in file_names(path) if name.endswith(".ckpt")]
    return bool(files) and all(map(is_strategy_file, files))


def _why_not_run(path: Path) -> list[str]:
    """Lists why a folder holds no model that can be run; empty where it does, or none is expected there."""
    if not path.is_dir():
        return []
    try:
        if has_file(path, CONFIG_NAME):
            chosen_type(read_config(path), "auto", str(path / CONFIG_NAME))
        elif foreign := foreign_folder(path):
            return [f"{path}: {foreign}"]
    except CheckpointError as error:
        return [*error.faults]
    return []


def _quantised_as(path: Path) -> str | None:
    """Names the quantization of a folder's matrices; None for floats.

    Raises:
        CheckpointError: they contradict that, or cannot be read.
    """
    source = str(path / CONFIG_NAME)
    if not path.is_dir() or not has_file(path, CONFIG_NAME):
        return None
    config = read_config(path)
    if QUANTIZATION not in config:
        return None
    from mindbatch.models.quantisation import open_whole  # NumPy, which other folders do not need

    with open_whole(path, config, source) as folder:
        return folder.quantised


def _matches(name: str, config: InspectConfig) -> bool:
    return config.filter is None or fnmatchcase(name, config.filter)


def _content(tensors: TensorSet, config: InspectConfig) -> RankContent:
    """Lists a rank's tensors and texts; with digests=true everything is read."""
    names = [name for name in tensors.tensors if _matches(name, config)]
    computed = tensors.computed_digests(names) if config.digests else {}
    content = RankContent(
        tensors.path,
        [
            TensorRow(tensors.info(name), tensors.file_of[name], computed.get(name, tensors.digest(name)))
            for name in names
        ],
        {name: text for name, text in tensors.texts.items() if _matches(name, config)},
        _witness(tensors),
    )
    for name, digest in computed.items():
        recorded = tensors.digest(name)
        if recorded is not None and recorded.lower() != digest:
            content.faults.append(
                f"{tensors.file(name).path}: tensor {shown(name)} is damaged: its SHA-256 is not the one in "
                f"{DIGESTS_NAME}"
            )
    if config.digests:
        content.faults += tensors.checksum_faults()
        content.faults = content.faults or tensors.head_faults()
    return content


def _witness(tensors: TensorSet) -> str | None:
    if tensors.digests is not None:
        return DIGESTS_NAME
    return "CRC-32" if all(file.crc for file in tensors.files.values()) else None


def _source_json(source: Source, ranks: list[RankContent], limit: int) -> dict[str, Any]:
    return {
        "path": str(source.path),
        "kind": source.kind,
        "ranks": [
            {
                "rank": rank,
                "path": str(content.path),
                "count": len(content.rows),
                "bytes": sum(row.tensor.nbytes for row in content.rows),
                "tensors": [_tensor_json(row) for row in content.rows[:limit]],
                "texts": content.texts,
                "witness": content.witness,
            }
            for rank, content in enumerate(ranks)
        ],
    }


def _tensor_json(row: TensorRow) -> dict[str, Any]:
    tensor = row.tensor
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": [*tensor.shape],
        "bytes": tensor.nbytes,
        "file": row.file,
        "sha256": row.digest,
    }


def _show_strategy(config: InspectConfig, strategy: Strategy) -> None:
    assert config.path is not None
    layouts = [layout for layout in strategy.layouts if _matches(layout.name, config)]
    if config.format == "text":
        show(strategy_page(config.path, strategy, layouts, config.limit))
        return
    content = {
        "path": config.path,
        "kind": "strategy",
        "stages": [*strategy.stages],
        "devices_per_stage": strategy.num_devices,
        "ranks": strategy.num_ranks,
        "count": len(layouts),
        "parameters": [_layout_json(strategy, layout) for layout in layouts[: config.limit]],
    }
    show_json(content)


def _layout_json(strategy: Strategy, layout: TensorLayout) -> dict[str, Any]:
    return {
        "name": layout.name,
        "stage": strategy.stage_of(layout),
        "device_matrix": [*layout.device_matrix],
        "tensor_map": [*layout.tensor_map],
        "param_split_shape": [*layout.param_split_shape],
        "indices_offset": [*layout.indices_offset],
        "field": layout.field,
        "opt_weight_shard_step": layout.opt_shard_step,
        "opt_weight_shard_size": layout.opt_shard_size,
    }
