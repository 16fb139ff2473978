"""Plans `mindbatch reshard`: plans and proves the copies, lays out the files, and merges an adapter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindbatch.checkpoint.error_lines import raise_if_any, shown
from mindbatch.checkpoint.folders.folder_files import (
    CONFIG_FILES,
    CONFIG_NAME,
    TOKENIZER_FILES,
    file_in,
    has_file,
    read_config,
)
from mindbatch.checkpoint.folders.resharded import MERGED_KEY, merged_before
from mindbatch.checkpoint.folders.widened import WidenedFile
from mindbatch.checkpoint.formats.floats import FLOAT_DTYPES, STORED_FLOATS
from mindbatch.checkpoint.formats.open_file import open_tensor_file
from mindbatch.checkpoint.formats.registry import WRITTEN
from mindbatch.checkpoint.formats.safetensors import SAFETENSORS
from mindbatch.checkpoint.formats.stored import StoredFile
from mindbatch.checkpoint.iterations.metadata import descriptions
from mindbatch.checkpoint.iterations.metadata import file_name as iteration_file
from mindbatch.checkpoint.json_object import read_limited
from mindbatch.checkpoint.placement.proof import proved_copies
from mindbatch.checkpoint.placement.regions import Placements, RankFiles, whole_placements
from mindbatch.checkpoint.reshard.execution import worker_count
from mindbatch.checkpoint.reshard.job import jobs_of
from mindbatch.checkpoint.reshard.plan import ReshardPlan, layouts_of
from mindbatch.checkpoint.reshard.replicas import replicas_of
from mindbatch.config_json.foreign_models import QUANTIZATION
from mindbatch.config_json.quantisation import open_quantised
from mindbatch.io.errors import ConfigError
from mindbatch.io.screen_text import concealed
from mindbatch.tasks.reshard.names import MINDFORMERS, Naming, named, target_naming
from mindbatch.tasks.reshard.schema import ITERATION_FORMAT, ReshardConfig
from mindbatch.tasks.reshard.source import ReshardSource

if TYPE_CHECKING:
    from mindbatch.checkpoint.lora.plan import LoraPlan

COPIED_FILES = (*CONFIG_FILES, *TOKENIZER_FILES, "chat_template.json")
"""The files of a model folder besides its weights."""

_MAX_COPIED_BYTES = 1 << 28
_DTYPE_KEYS = ("torch_dtype", "dtype")


def plan_reshard(config: ReshardConfig, opened: ReshardSource) -> ReshardPlan:
    """Plans and proves the reshard of an opened source.

    Raises:
        ConfigError: the model cannot be divided over these ranks, or its sharding is unknown.
        CheckpointError: a tensor cannot be converted or stored, or the proof of the plan fails.
    """
    naming = target_naming(config, opened.model.architecture if opened.model else None)
    target = _target(config, opened, naming)
    tensors = proved_copies(opened.files, target)
    dtypes = _dtypes(config, opened, target)
    num_ranks = config.target.model_parallel * config.target.pipeline_stage
    is_iteration = config.target.format == ITERATION_FORMAT
    file_of = [_file_name(rank, num_ranks, config.target.format) for rank in range(num_ranks)]
    layouts = layouts_of(tensors, file_of, dtypes, SAFETENSORS.name if is_iteration else config.target.format)
    other_files = _other_files(config, opened.folder)
    if is_iteration:
        whole = named(naming, opened.model_placements(1, 1), 1, 1)
        other_files |= descriptions(target, whole, config.target.model_parallel, dtypes)
    adapter = None
    if config.lora.merge is not None:
        from mindbatch.tasks.reshard.adapter import plan_adapter  # adapters are seldom merged

        adapter = plan_adapter(config.lora.merge, config, opened)
    jobs = jobs_of(
        tensors,
        opened.files,
        opened.source.ranks,
        layouts,
        file_of,
        dtypes,
        lora=adapter,
        allow_overflow=config.target.overflow == "infinity",
        overflow_hint="; give another target.dtype, or target.overflow=infinity",
    )
    return ReshardPlan(
        target=Path(config.target.dir or "").resolve(),
        settings=concealed(_settings(config) | _adapter_settings(opened, adapter)),
        source=opened.source.identity(),
        tensors=tuple(tensors),
        layouts=layouts,
        jobs=tuple(jobs),
        other_files=other_files,
        workers=worker_count(config.workers, sum(job.nbytes for job in jobs)),
        replicas=tuple(replicas_of(opened.files, opened.source.ranks)) if config.verify else (),
        verify=config.reads_back,
        replace=config.target.replace,
        stamps=opened.source.stamps(),
        opened=_open_widened if opened.is_widened else open_tensor_file,
    )


def _open_widened(path: str) -> StoredFile:
    """A file of the target, or the source's folder."""
    folder = open_quantised(Path(path)) if Path(path).is_dir() else None
    return open_tensor_file(path) if folder is None else WidenedFile(folder)


def _adapter_settings(opened: ReshardSource, plan: LoraPlan | None) -> dict[str, Any]:
    """Collects the adapters for the marker file: this one, and those merged into the source before."""
    merged = merged_before(opened.source.path)
    if plan is None:
        return {MERGED_KEY: merged} if merged else {}
    merged[plan.digest] = plan.scaling
    return {MERGED_KEY: merged, **plan.scalings}


def _target(config: ReshardConfig, opened: ReshardSource, naming: Naming | None) -> RankFiles:
    model_parallel, stages = config.target.model_parallel, config.target.pipeline_stage
    wanted = _wanted(config, opened)
    if naming is not None:
        opened.notes += _foreign_cuts(naming, wanted, model_parallel)
    return named(naming, wanted, model_parallel, model_parallel * stages)


def _foreign_cuts(naming: Naming, wanted: Placements, model_parallel: int) -> Iterator[str]:
    """Yields notes on tensors that MindFormers' own networks would shard otherwise."""
    setting = f"target.model_parallel={model_parallel}"
    reads = "mindbatch reads these files, MindFormers needs them cut otherwise (docs/mindformers.md)"
    padded = [
        name
        for name, placement in wanted.items()
        if any(shard and shard.padding for shard in placement.shards)
    ]
    if model_parallel > 1 and not padded:
        yield (
            f"{setting}: the vocabulary is cut over the ranks, as MindFormers has it with "
            "vocab_emb_dp: False alone (docs/mindformers.md)"
        )
    if padded:
        yield f"{setting}: {', '.join(padded)}: padded on the last ranks; {reads}"
    if model_parallel > naming.heads.kv_heads:
        yield f"{setting}: several ranks have the same key/value head; {reads}"


def _wanted(config: ReshardConfig, opened: ReshardSource) -> Placements:
    model_parallel, stages = config.target.model_parallel, config.target.pipeline_stage
    if opened.model is not None:
        return opened.model_placements(model_parallel, stages, "target.")
    if model_parallel * stages == 1:
        return whole_placements(opened.files.shapes)
    raise ConfigError(
        f"source={opened.source.path}: no {CONFIG_NAME}, which says how the model is cut; give "
        "source_config=FOLDER of the model"
    )


def _dtypes(config: ReshardConfig, opened: ReshardSource, target: RankFiles) -> dict[str, str]:
    wanted = STORED_FLOATS.get(config.target.dtype)
    errors, dtypes = [], {}
    for name, sources in _made_of(opened, target).items():
        read = {opened.source.dtype(source): source for source in sources}
        if wanted is not None and read.keys() <= {*FLOAT_DTYPES}:
            dtypes[name] = wanted
            continue
        dtypes[name] = min(read)
        if len(read) > 1:
            listed = ", ".join(f"{shown(source)} is {dtype}" for dtype, source in sorted(read.items()))
            errors.append(f"tensor {shown(name)}: is made of several dtypes: {listed}; give target.dtype")
        elif wanted is not None and min(read).startswith(("F", "C")):
            errors.append(
                f"tensor {shown(name)}: {min(read)} is not changed to {config.target.dtype}; changed are "
                f"{', '.join(FLOAT_DTYPES)}, and target.dtype=keep changes none"
            )
    raise_if_any(errors)
    return dtypes


def _made_of(opened: ReshardSource, target: RankFiles) -> dict[str, dict[str, None]]:
    """Lists, for each tensor in the target's files, the tensors in the source's files that it is made of."""
    sources: dict[str, dict[str, None]] = {}
    for tensors in target.ranks:
        for name, stored in tensors.items():
            made_of = sources.setdefault(name, {})
            for tensor in stored.tensors:
                made_of |= dict.fromkeys(opened.stored_names[tensor])
    return {name: made_of or dict.fromkeys(opened.stored_names[name]) for name, made_of in sources.items()}


def _file_name(rank: int, num_ranks: int, kind: str) -> str:
    if kind == ITERATION_FORMAT:
        return iteration_file(rank, num_ranks)
    written = WRITTEN[kind]
    if num_ranks == 1:
        return f"model{written.suffixes[0]}"
    return f"rank_{rank}/{written.rank_file.format(rank=rank)}"


def _settings(config: ReshardConfig) -> dict[str, Any]:
    target = config.target
    settings: dict[str, Any] = {
        "model_parallel": target.model_parallel,
        "pipeline_stage": target.pipeline_stage,
        "format": target.format,
        "dtype": target.dtype,
        "overflow": target.overflow,
        "names": target.names,
    }
    if target.names == MINDFORMERS:
        settings["qkv_concat"] = target.qkv_concat
        if target.qkv_concat:
            settings["qkv_grouped"] = target.qkv_grouped
    return settings


def _other_files(config: ReshardConfig, folder: Path | None) -> dict[str, bytes]:
    """Copies the model folder's other files; config.json gets the dtype of the target."""
    if folder is None:
        return {}
    there = [name for name in COPIED_FILES if has_file(folder, name)]
    copied = {name: read_limited(file_in(folder, name), _MAX_COPIED_BYTES) for name in there}
    if config.target.dtype != "keep":
        copied[CONFIG_NAME] = _with_dtype(folder, config.target.dtype)
    return copied


def _with_dtype(folder: Path, dtype: str) -> bytes:
    content = read_config(folder)
    keys = [key for key in _DTYPE_KEYS if key in content] or [_DTYPE_KEYS[0]]
    content.pop(QUANTIZATION, None)  # whose weights are written as floats
    return (json.dumps({**content, **dict.fromkeys(keys, dtype)}, indent=2) + "\n").encode()
